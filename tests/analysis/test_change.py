"""Distances of the uses of a word in two corpora: against pairs one by one, and p-values that mean what they say."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit import cli
from elmokit.analysis import uses
from elmokit.analysis.change import change_figure, compare_vectors, semantic_change
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


def test_p_values_do_not_depend_on_how_many_permutations_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = random_units(12, 0), random_units(9, 1)
    vectors, random, as_large = np.concatenate([first, second]), np.random.default_rng(3), np.ones(2)
    observed = compare_vectors(first, second, permutations=0)
    for _ in range(100):  # one by one
        order = random.permutation(21)
        shuffled = compare_vectors(vectors[order[:12]], vectors[order[12:]], permutations=0)
        as_large += [one.distance >= other.distance for one, other in zip(shuffled, observed, strict=True)]
    for at_once in (1, 7, 101, 1_000):
        monkeypatch.setattr("elmokit.analysis.change.ASSIGNMENTS_AT_ONCE", at_once)
        result = compare_vectors(first, second, permutations=100, seed=3)
        assert [each.p_value for each in result] == pytest.approx((as_large / 101).tolist())
        assert [each.distance for each in result] == pytest.approx([each.distance for each in observed])


def test_many_permutations_need_little_memory() -> None:
    first, second = random_units(500, 0), random_units(500, 1)
    tracemalloc.start()
    compare_vectors(first, second, permutations=5_000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20e6  # 5,000 rows of 1,000 numbers: 40 MB


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
    assert change.uses == (6, 5) and change.points.shape == (11, 2)
    vectors = [
        unit_vectors(np.stack([embedder.embed([line.split()], "top")[0][line.split().index("play")] for line in lines]))
        for lines in ([line for line in OLD.splitlines() if "play" in line], NEW.splitlines())
    ]
    assert change.pairwise.distance == pytest.approx(float(np.mean(1 - vectors[0] @ vectors[1].T)), abs=1e-5)
    with pytest.raises(ValueError, match="has 0 distinct uses of 'dog', and a comparison needs 2"):
        semantic_change(["dog"], tmp_path / "new.txt", tmp_path / "old.txt", embedder)
    with pytest.raises(ValueError, match="give a list of words"):
        semantic_change("play", tmp_path / "new.txt", tmp_path / "old.txt", embedder)


def test_semantic_change_says_how_the_tokenizer_splits_a_word_without_uses(embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("a well-known dog sat there\n" * 3)
    english = Embedder(replace(embedder.model, tokenizer="english-1"), device="cpu")
    reason = r"; it is several tokens to this model: well \| - \| known$"
    with pytest.raises(ValueError, match=f"has 0 distinct uses of 'well-known', and a comparison needs 2{reason}"):
        semantic_change(["well-known"], tmp_path / "old.txt", tmp_path / "old.txt", english)
    with pytest.raises(ValueError, match=r"has 1 distinct uses of 'well-known', and a comparison needs 2$"):
        semantic_change(["well-known"], tmp_path / "old.txt", tmp_path / "old.txt", english, tokenize=False)


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


@pytest.mark.parametrize("layers", ["all", "first", 9])
def test_semantic_change_refuses_other_layers_before_it_reads_a_corpus(
    layers: str | int, embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old.txt").write_text(OLD)
    monkeypatch.setattr(uses, "read_lines", lambda path: pytest.fail("read it"))
    with pytest.raises(ValueError, match="layers must be mix"):
        semantic_change(["play"], tmp_path / "old.txt", tmp_path / "old.txt", embedder, layers)


def test_change_verb_prints_writes_and_plots(embedder: Embedder, tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    save(embedder.model, tmp_path / "tiny")
    (tmp_path / "old$.txt").write_text(OLD)
    (tmp_path / "new$.txt").write_text(NEW)
    command = f"change play --first {tmp_path}/old$.txt --second {tmp_path}/new$.txt --model {tmp_path}/tiny"
    assert cli.main(f"{command} --output {tmp_path}/out.json --plot {tmp_path}/out.png".split()) == 0
    assert "6/5" in capsys.readouterr().out
    (word,) = json.loads((tmp_path / "out.json").read_text())["words"]
    assert word["word"] == "play" and set(word["pairwise"]) == {"distance", "p_value"}
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert cli.main(f"{command} --max-uses 1".split()) == 2
    with pytest.raises(ValueError, match="one vector of a word is needed"):
        semantic_change(["play"], tmp_path / "old$.txt", tmp_path / "new$.txt", embedder, layers="all")


def test_change_figure_has_a_panel_for_each_word_and_names_the_corpora(embedder: Embedder, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "old.txt").write_text(OLD + "The dog barks .\n")
    (tmp_path / "new.txt").write_text(NEW + "A dog !\nMy dog !\n")
    report = semantic_change(["play", "dog"], tmp_path / "old.txt", tmp_path / "new.txt", embedder)
    figure = change_figure(report, ("old$", "new"))
    panels = figure.axes
    assert [axes.get_title().split(":")[0] for axes in panels] == ["play", "dog"]
    for axes, change in zip(panels, report.words, strict=True):
        assert [len(points.get_offsets()) for points in axes.collections] == list(change.uses)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["old$", "new"]
    hidden = change_figure(report, ("_1950.txt", "_2000.txt"))  # matplotlib's mark for labels to leave out
    assert [text.get_text() for text in hidden.legends[0].get_texts()] == ["_1950.txt", "_2000.txt"]
