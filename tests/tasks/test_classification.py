"""Readers of labelled texts and trees; the networks by their formulas."""

from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import log_softmax
from task_oracles import (
    BiattentiveOracle,
    GivenWords,
    PooledOracle,
    random_network,
    random_words,
    sentences_of,
)

from elmokit.tasks import FitConfig, WordsConfig
from elmokit.tasks.classification import (
    BiattentiveNetwork,
    ClassificationBatch,
    ClassificationConfig,
    ClassificationTask,
    LabelledText,
    PooledNetwork,
    labelled_phrases,
)
from elmokit.tasks.fitting import fit
from elmokit.tasks.fitting.model import predict_file

TREE = "(3 (2 It) (4 (2 's) (4 (2 a) (3 -LRB-good-RRB-))))"


def test_labelled_phrases_start_with_the_whole_sentence() -> None:
    assert [(" ".join(phrase.words), phrase.label) for phrase in labelled_phrases(TREE)] == [
        ("It 's a -LRB-good-RRB-", "3"), ("It", "2"), ("'s a -LRB-good-RRB-", "4"), ("'s", "2"),
        ("a -LRB-good-RRB-", "4"), ("a", "2"), ("-LRB-good-RRB-", "3"),
    ]  # fmt: skip


def test_fit_on_trees_trains_on_phrases_and_scores_whole_sentences(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text(f"{TREE}\n(1 (1 bad) (1 film))\n")
    task = ClassificationTask(ClassificationConfig(network="pooled"))
    words = WordsConfig(elmo="none", word_dim=4)
    config = FitConfig(max_epochs=1, device="cpu")
    files = 3 * [tmp_path / "trees.txt"]
    model, report = fit(task, *files, words=words, config=config, output=tmp_path / "model")
    assert report.examples == 7 + 3
    assert len(list(task.read(files[0]))) == 2
    assert sum(sum(row.values()) for row in report.confusion.values()) == 2
    predicted = predict_file(model, tmp_path / "trees.txt", tmp_path / "predicted.jsonl")
    assert predicted.examples == len((tmp_path / "predicted.jsonl").read_text().splitlines()) == 2


def test_a_line_has_a_label_and_a_text_or_a_tree(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text(f"1 A Good film\n\n0 Bad .\n  {TREE}\n")
    task = ClassificationTask(ClassificationConfig(lowercase=True))
    first, second, tree = task.read(tmp_path / "texts.txt")
    assert (first, second) == (
        LabelledText(("a", "good", "film"), "1"),
        LabelledText(("bad", "."), "0"),
    )
    assert tree == LabelledText(("it", "'s", "a", "-lrb-good-rrb-"), "3")
    assert [text.label for text in task.read(tmp_path / "texts.txt", "predict")] == [None] * 3
    learned = ClassificationTask(labels={"labels": ["good", "bad"]})
    with pytest.warns(UserWarning, match="--text"):
        list(learned.read(tmp_path / "texts.txt", "predict"))
    (tmp_path / "texts.txt").write_text("very good \tA fine film .\n\nbad\tA dull one .\n")
    first, second = ClassificationTask().read(tmp_path / "texts.txt")
    assert (first.label, second.label) == ("very good", "bad")
    assert first.words == (
        "A",
        "fine",
        "film",
        ".",
    )


@pytest.mark.parametrize(
    "make, oracle_of", [(BiattentiveNetwork, BiattentiveOracle), (PooledNetwork, PooledOracle)]
)
def test_network_and_loss_equal_the_formulas(make: type, oracle_of: type) -> None:
    labels = torch.tensor([2, 0, -1, 2])
    config = ClassificationConfig(encoder_dim=4, integrator_dim=3, maxout_dim=6)
    network = random_network(make, config, GivenWords(), 3)
    words = random_words([4, 1, 2, 5])
    oracle = oracle_of(network)
    batch = ClassificationBatch(words, labels)  # type: ignore[arg-type]
    expected = np.array([*map(oracle.scores, sentences_of(words))])
    np.testing.assert_allclose(network(batch), expected, rtol=1e-9)
    losses = -log_softmax(expected)[[0, 1, 3], [2, 0, 2]]  # of the texts whose label is known
    assert network.loss(batch).item() == pytest.approx(losses.mean())
