"""Distances of the uses of a word in two corpora: against pairs one by one, and p-values that mean
what they say.
"""

from pathlib import Path

import numpy as np
import pytest

from elmokit.analysis.change import change, compare_vectors
from elmokit.analysis.uses import unit_vectors
from elmokit.embed.embedder import Embedder

OLD = "".join(f"They saw the play {n} times .\nA dog sat .\n" for n in range(6))
NEW = "".join(f"Children play outside {n} .\n" for n in range(5))


def random_units(count: int, seed: int, shift: float = 0.0) -> np.ndarray:
    return unit_vectors(np.random.default_rng(seed).normal(size=(count, 6)) + shift)


def test_distances_equal_those_of_all_pairs() -> None:
    first = random_units(7, 0)
    second = random_units(4, 1)
    pairwise, prototype = compare_vectors(first, second, permutations=0)
    assert pairwise.distance == pytest.approx(np.mean([1 - u @ v for u in first for v in second]))
    left = first.mean(0)
    right = second.mean(0)
    assert prototype.distance == pytest.approx(
        1 - left @ right / np.linalg.norm(left) / np.linalg.norm(right)
    )
    assert pairwise.p_value is None
    assert prototype.p_value is None
    equal = np.repeat(random_units(1, 3), 5, axis=0)
    assert all(each.distance >= 0 for each in compare_vectors(equal[:2], equal[2:], permutations=0))


def test_p_values_are_those_of_permutations_one_by_one() -> None:
    first = random_units(12, 0)
    second = random_units(9, 1)
    vectors = np.concatenate([first, second])
    random = np.random.default_rng(3)
    as_large = np.ones(2)
    observed = compare_vectors(first, second, permutations=0)
    for _ in range(100):
        order = random.permutation(21)
        shuffled = compare_vectors(vectors[order[:12]], vectors[order[12:]], permutations=0)
        as_large += [
            one.distance >= other.distance for one, other in zip(shuffled, observed, strict=True)
        ]
    result = compare_vectors(first, second, permutations=100, seed=3)
    assert [each.p_value for each in result] == pytest.approx((as_large / 101).tolist())
    assert [each.distance for each in result] == pytest.approx([each.distance for each in observed])


def test_semantic_change_compares_the_sampled_uses(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text(OLD)
    (tmp_path / "new.txt").write_text(NEW)
    report = change(["play"], tmp_path / "old.txt", tmp_path / "new.txt", embedder, permutations=50)
    (word,) = report.words
    assert word.uses == (6, 5)
    vectors = [
        unit_vectors(
            np.stack(
                [
                    embedder.embed([line.split()], "top")[0][line.split().index("play")]
                    for line in lines
                ]
            )
        )
        for lines in ([line for line in OLD.splitlines() if "play" in line], NEW.splitlines())
    ]
    assert word.pairwise
    assert word.pairwise.distance == pytest.approx(
        float(np.mean(1 - vectors[0] @ vectors[1].T)), abs=1e-5
    )


def test_changes_of_several_words_equal_those_of_each(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text(OLD + "The dog barks .\n")
    (tmp_path / "new.txt").write_text(NEW + "Play with the dog .\nMy Dog !\n")
    corpora = tmp_path / "old.txt", tmp_path / "new.txt"
    options = {"max_uses": 4, "permutations": 20}
    alone = [change(word, *corpora, embedder, **options).words[0] for word in ("play", "dog")]
    assert change(["play", "dog"], *corpora, embedder, **options).words == alone
