"""Readers of labelled texts and trees; pooling that ignores padding; the networks by their formulas."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import log_softmax
from task_oracles import BiattentiveOracle, GivenWords, PooledOracle, random_network, random_words, sentences_of

from elmokit.tasks.attention import masked_max, masked_mean, masked_softmax
from elmokit.tasks.classification import (
    BiattentiveNetwork,
    ClassificationBatch,
    ClassificationConfig,
    ClassificationTask,
    LabelledText,
    PooledNetwork,
    labelled_phrases,
)
from elmokit.tasks.config import FitConfig, WordsConfig
from elmokit.tasks.fit import fit
from elmokit.tasks.predict import predict_file

TREE = "(3 (2 It) (4 (2 's) (4 (2 a) (3 -LRB-good-RRB-))))"


def test_labelled_phrases_start_with_the_whole_sentence() -> None:
    assert [(" ".join(phrase.words), phrase.label) for phrase in labelled_phrases(TREE)] == [
        ("It 's a -LRB-good-RRB-", "3"),
        ("It", "2"),
        ("'s a -LRB-good-RRB-", "4"),
        ("'s", "2"),
        ("a -LRB-good-RRB-", "4"),
        ("a", "2"),
        ("-LRB-good-RRB-", "3"),
    ]


@pytest.mark.parametrize("phrases, count", [(True, 7), (False, 1)])
def test_only_read_training_returns_phrases_of_trees(phrases: bool, count: int, tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text(f"{TREE}\n\n{TREE}\n")
    task = ClassificationTask(ClassificationConfig(phrases=phrases))
    assert len(list(task.read_training(tmp_path / "trees.txt"))) == 2 * count
    assert list(task.read(tmp_path / "trees.txt")) == 2 * labelled_phrases(TREE)[:1]


def test_fit_on_trees_trains_on_phrases_and_scores_whole_sentences(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text(f"{TREE}\n(1 (1 bad) (1 film))\n")
    task = ClassificationTask(ClassificationConfig(network="pooled"))
    words, config = WordsConfig(elmo="none", word_dim=4), FitConfig(max_epochs=1, device="cpu")
    files = 3 * [tmp_path / "trees.txt"]
    model, report = fit(task, *files, words=words, config=config, output=tmp_path / "model")
    assert report.examples == 7 + 3
    assert report.confusion is not None and sum(sum(row.values()) for row in report.confusion.values()) == 2
    predicted = predict_file(model, tmp_path / "trees.txt", tmp_path / "predicted.jsonl")
    assert predicted.examples == len((tmp_path / "predicted.jsonl").read_text().splitlines()) == 2


def test_words_of_phrases_are_not_counted_again(tmp_path: Path) -> None:
    task = ClassificationTask()
    (tmp_path / "trees.txt").write_text("(1 (1 good) (1 film))\n(1 (1 good) (1 (1 red) (1 film)))\n")
    examples = list(task.read_training(tmp_path / "trees.txt"))
    assert list(task.counted_sentences(examples)) == [("good", "film"), ("good", "red", "film")]
    (tmp_path / "texts.txt").write_text("1 good film\n1 good\n")  # a text of its own, although contained in another
    examples = list(task.read_training(tmp_path / "texts.txt"))
    assert list(task.counted_sentences(examples)) == [("good", "film"), ("good",)]


def test_read_splits_lines_into_label_and_words(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("1 A Good film\n\n0 Bad .\n")
    task = ClassificationTask(ClassificationConfig(lowercase=True))
    found = list(task.read(tmp_path / "texts.txt"))
    assert found == [LabelledText(("a", "good", "film"), "1"), LabelledText(("bad", "."), "0")]
    assert [text.label for text in task.read(tmp_path / "texts.txt", with_answers=False)] == [None, None]
    (tmp_path / "texts.txt").write_text("1 A\n0\n")
    with pytest.raises(ValueError, match=r"texts.txt, line 2: expected \"LABEL TEXT\""):
        list(task.read(tmp_path / "texts.txt"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.conllu", "1\tA\n", r"train\.conllu should have lines \"LABEL TEXT\", not the format of \.conllu files"),
        ("train.txt", '{"text": "good film", "label": "positive"}\n', 'line 1: expected "LABEL TEXT"'),
    ],
)
def test_read_refuses_other_formats(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        list(ClassificationTask().read(tmp_path / name))


def test_pooling_and_softmax_ignore_padding() -> None:
    vectors = torch.randn(3, 5, 2)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False], [False] * 5])
    for row, count in ((0, 5), (1, 2)):
        torch.testing.assert_close(masked_mean(vectors, mask)[row], vectors[row, :count].mean(0))
        torch.testing.assert_close(masked_max(vectors, mask)[row], vectors[row, :count].amax(0))
        weights = masked_softmax(vectors[..., 0], mask)[row]
        torch.testing.assert_close(weights[:count], vectors[row, :count, 0].softmax(0))
        assert not weights[count:].any()
    for pooled in (masked_mean(vectors, mask), masked_max(vectors, mask), masked_softmax(vectors[..., 0], mask)):
        assert not pooled[2].any()


@pytest.mark.parametrize(
    "tree, message",
    [
        ("(3 (2 It", "a bracket is never closed"),
        ("(3 a) b", "'b' is outside"),
        ("(", "has no label"),
        ("((S (NP a)))", "has no label"),
        ("(3 a) (2 b)", "a second tree"),
        ("(3 )", "a phrase of the label 3 has no words"),
        ("(3 (2 ) (4 good))", "a phrase of the label 2 has no words"),
    ],
)
def test_read_names_the_line_of_an_unbalanced_tree(tree: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text(f"{TREE}\n{tree}\n")
    with pytest.raises(ValueError, match=rf"line 2 is not a tree of labels: .*{message}"):
        list(ClassificationTask().read(tmp_path / "trees.txt"))


def test_read_takes_a_tree_after_spaces_for_a_tree(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text("  (3 (2 It) (4 good))\n")
    assert list(ClassificationTask().read(tmp_path / "trees.txt")) == [LabelledText(("It", "good"), "3")]


@pytest.mark.parametrize("label, message", [(1, "must be a string, not 1"), (None, "has no label")])
def test_check_refuses_labels_that_are_no_strings(label: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClassificationTask().check(LabelledText(("a",), label))


def test_only_the_network_whose_words_attend_to_each_other_limits_their_number() -> None:
    text = LabelledText(("a",) * 5_001)
    ClassificationTask(ClassificationConfig(network="pooled")).check_length(text)
    with pytest.raises(ValueError, match="it has 5,001 words"):
        ClassificationTask().check_length(text)


@pytest.mark.parametrize("balanced, expected", [(False, 0.1), (True, 0.5)])
def test_balanced_loss_makes_rare_labels_as_likely_as_frequent_ones(balanced: bool, expected: float) -> None:
    texts = [LabelledText(("same", "words"), "rare" if number % 10 == 0 else "frequent") for number in range(60)]
    task = ClassificationTask(ClassificationConfig(network="pooled", balanced=balanced, dropout=0.0))
    words = WordsConfig(elmo="none", word_dim=4, word_dropout=0.0)
    config = FitConfig(max_epochs=20, patience=20, halve_after=5, batch_size=60, learning_rate=0.1, device="cpu")
    model, _ = fit(task, texts, texts, words=words, config=config)
    # Of equal development scores the first epoch's weights are kept: train once more with the loss itself.
    optimizer = torch.optim.Adam(model.network.parameters(), lr=0.05)
    batch = model.example_set(texts).batch(np.arange(60), torch.device("cpu"))
    for _ in range(100):
        optimizer.zero_grad()
        model.network.loss(batch).backward()
        optimizer.step()
    assert model.predict([["same", "words"]])[0].scores["rare"] == pytest.approx(expected, abs=0.02)


def test_read_splits_at_tabs_where_the_first_line_has_one(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("very good \tA fine film .\n\nbad\tA dull one .\n")
    first, second = ClassificationTask().read(tmp_path / "texts.txt")
    assert (first.label, second.label) == ("very good", "bad") and first.words == ("A", "fine", "film", ".")
    (tmp_path / "texts.txt").write_text("very good\tA fine film .\nbad A dull one .\n")
    with pytest.raises(ValueError, match=r"texts\.txt, line 2: expected a tab between label and text"):
        list(ClassificationTask().read(tmp_path / "texts.txt"))


def test_fit_refuses_texts_in_the_place_of_labels(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("".join(f"Text number {number} .\t{number % 2}\n" for number in range(30)))
    with pytest.raises(ValueError, match="30 texts have 30 labels, such as 'Text number 0"):
        fit(ClassificationTask(), tmp_path / "texts.txt", tmp_path / "texts.txt", words=WordsConfig(elmo="none"))


def test_fit_accepts_a_development_set_with_one_text_for_each_label(tmp_path: Path) -> None:
    lines = [f"intent{number} text of intent {number}\n" for number in range(30)]
    (tmp_path / "train.txt").write_text("".join(lines * 2))
    (tmp_path / "dev.txt").write_text("".join(lines))
    task = ClassificationTask(ClassificationConfig(network="pooled"))
    words, config = WordsConfig(elmo="none", word_dim=4), FitConfig(max_epochs=1, device="cpu")
    _, report = fit(task, tmp_path / "train.txt", tmp_path / "dev.txt", words=words, config=config)
    assert report.examples == 60


def test_predict_file_refuses_raw_text_in_place_of_labelled(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("wonderful cast and story\nboring mess\n")
    task = ClassificationTask(labels={"labels": ["neg", "pos"], "counts": [1, 1]})
    with pytest.raises(ValueError, match=r"raw\.txt should have a label .* predict raw text with --text"):
        list(task.read(tmp_path / "raw.txt", with_answers=False))
    (tmp_path / "raw.txt").write_text("wonderful cast and story\n")
    with pytest.raises(ValueError, match=r"raw\.txt should have a label .* predict raw text with --text"):
        list(task.read(tmp_path / "raw.txt", with_answers=False))
    (tmp_path / "raw.txt").write_text("? wonderful cast and story\n? boring mess\n")  # a mark for what is not known
    assert len(list(task.read(tmp_path / "raw.txt", with_answers=False))) == 2


@pytest.mark.parametrize("make, oracle_of", [(BiattentiveNetwork, BiattentiveOracle), (PooledNetwork, PooledOracle)])
def test_network_and_loss_equal_the_formulas(make: type, oracle_of: type) -> None:
    weights, labels = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([2, 0, -1, 2])
    config = ClassificationConfig(encoder_dim=4, integrator_dim=3, maxout_dim=6)
    network = random_network(make, config, GivenWords(), weights)
    words, oracle = random_words([4, 1, 2, 5]), oracle_of(network)
    batch = ClassificationBatch(words, labels)  # type: ignore[arg-type]
    expected = np.array([*map(oracle.scores, sentences_of(words))])
    np.testing.assert_allclose(network(batch), expected, rtol=1e-9)
    # The mean over the texts whose label is known, by the weights of their labels.
    losses = -log_softmax(expected)[[0, 1, 3], [2, 0, 2]]
    assert network.loss(batch).item() == pytest.approx(np.average(losses, weights=[2.0, 0.5, 2.0]))
