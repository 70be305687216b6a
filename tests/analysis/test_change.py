"""Distances of the uses of a word in two corpora: against pairs one by one, and p-values that mean what they say."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit import cli
from elmokit.analysis import uses
from elmokit.analysis.change import compare_vectors, semantic_change
from elmokit.analysis.config import ChangeConfig
from elmokit.analysis.uses import unit_vectors
from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM

OLD = "".join(f"They saw the play {n} times .\nA dog sat .\n" for n in range(6))
NEW = "".join(f"Children play outside {n} .\n" for n in range(5))


def random_units(count: int, seed: int, shift: float = 0.0) -> np.ndarray:
    return unit_vectors(np.random.default_rng(seed).normal(size=(count, 6)) + shift)


def test_distances_equal_those_of_all_pairs() -> None:
    first, second = random_units(7, 0), random_units(4, 1)
    pairwise, prototype = compare_vectors(first, second, permutations=0)
    assert pairwise.distance == pytest.approx(np.mean([1 - u @ v for u in first for v in second]))
    left, right = first.mean(0), second.mean(0)
    assert prototype.distance == pytest.approx(1 - left @ right / np.linalg.norm(left) / np.linalg.norm(right))
    assert pairwise.p_value is None and prototype.p_value is None


def test_p_values_are_small_for_a_change_and_spread_evenly_without_one() -> None:
    pairwise, prototype = compare_vectors(random_units(20, 0, 1.0), random_units(20, 1, -1.0), permutations=200)
    assert pairwise.p_value == prototype.p_value == 1 / 201
    by_chance = [compare_vectors(random_units(12, 2 * n), random_units(9, 2 * n + 1), 100)[1] for n in range(80)]
    p_values = np.array([distance.p_value for distance in by_chance])
    assert 0.35 < p_values.mean() < 0.65 and (p_values < 0.05).mean() < 0.2


def test_p_values_are_those_of_permutations_one_by_one() -> None:
    first, second = random_units(12, 0), random_units(9, 1)
    vectors, random, as_large = np.concatenate([first, second]), np.random.default_rng(3), np.ones(2)
    observed = compare_vectors(first, second, permutations=0)
    for _ in range(100):
        order = random.permutation(21)
        shuffled = compare_vectors(vectors[order[:12]], vectors[order[12:]], permutations=0)
        as_large += [one.distance >= other.distance for one, other in zip(shuffled, observed, strict=True)]
    result = compare_vectors(first, second, permutations=100, seed=3)
    assert [each.p_value for each in result] == pytest.approx((as_large / 101).tolist())
    assert [each.distance for each in result] == pytest.approx([each.distance for each in observed])


def test_distance_of_equal_groups_is_not_below_zero() -> None:
    for seed in range(20):
        vectors = np.repeat(random_units(1, seed), 5, axis=0)
        assert all(each.distance >= 0 for each in compare_vectors(vectors[:2], vectors[2:], permutations=0))


@pytest.fixture
def embedder() -> Embedder:
    torch.manual_seed(0)
    return Embedder(Pretrained(BiLM(BiLMConfig.preset("tiny")), tokenizer="whitespace-1"), device="cpu")


def test_semantic_change_compares_the_sampled_uses(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text(OLD)
    (tmp_path / "new.txt").write_text(NEW)
    config = ChangeConfig(max_uses=50, permutations=50)
    report = semantic_change(["play"], tmp_path / "old.txt", tmp_path / "new.txt", embedder, config=config)
    (change,) = report.words
    assert change.uses == (6, 5)
    vectors = [
        unit_vectors(np.stack([embedder.embed([line.split()], "top")[0][line.split().index("play")] for line in lines]))
        for lines in ([line for line in OLD.splitlines() if "play" in line], NEW.splitlines())
    ]
    assert change.pairwise.distance == pytest.approx(float(np.mean(1 - vectors[0] @ vectors[1].T)), abs=1e-5)


def test_semantic_change_needs_words_with_two_uses(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("a well-known dog sat there\n" * 3)
    english = Embedder(replace(embedder.model, tokenizer="english-1"), device="cpu")
    for word, found in (
        ("dog", "has 1 distinct uses of 'dog'"),
        ("well-known", r"0 distinct uses of 'well \| - \| known'"),
    ):
        with pytest.raises(ValueError, match=found):
            semantic_change([word], tmp_path / "old.txt", tmp_path / "old.txt", english)
    with pytest.raises(ValueError, match="list of words"):
        semantic_change("dog", tmp_path / "old.txt", tmp_path / "old.txt", english)


def test_semantic_change_reads_each_corpus_once_for_all_words(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old.txt").write_text(OLD + "The dog barks .\n")
    (tmp_path / "new.txt").write_text(NEW + "Play with the dog .\nMy Dog !\n")
    corpora = tmp_path / "old.txt", tmp_path / "new.txt"
    config = ChangeConfig(max_uses=4, permutations=20)
    alone = [semantic_change([word], *corpora, embedder, config=config).words for word in ("play", "dog")]
    read: list[Path] = []
    real = uses.read_lines
    monkeypatch.setattr(uses, "read_lines", lambda path: read.append(path) or real(path))
    together = semantic_change(["play", "dog"], *corpora, embedder, config=config)
    assert together.words == [change for (change,) in alone]
    assert [path.name for path in read] == ["old.txt", "new.txt"]


def test_change_verb_prints_and_writes(embedder: Embedder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(embedder.model, tmp_path / "tiny")
    (tmp_path / "old.txt").write_text(OLD)
    (tmp_path / "new.txt").write_text(NEW)
    command = f"change play --first {tmp_path}/old.txt --second {tmp_path}/new.txt --model {tmp_path}/tiny"
    assert cli.main(f"{command} --output {tmp_path}/out.json".split()) == 0
    header, row, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["word", "uses", "pairwise", "p", "prototype", "p"] and row.startswith("play")
    (word,) = json.loads((tmp_path / "out.json").read_text())["words"]
    assert row.split() == [
        "play",
        "6/5",
        *(f"{word[kind][key]:.3f}" for kind in ("pairwise", "prototype") for key in word[kind]),
    ]
    assert cli.main(f"{command} --max-uses 1".split()) == 2
