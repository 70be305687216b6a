"""Published files of sentence pairs, ESIM by its formulas, scores."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import log_softmax
from task_oracles import ESIMOracle, GivenWords, random_network, random_words, sentences_of
from toy_tasks import toy_tasks

from elmokit.tasks import WordsConfig
from elmokit.tasks.fitting import fit
from elmokit.tasks.fitting.task import read_examples
from elmokit.tasks.pairs import (
    ESIM,
    PairBatch,
    PairPrediction,
    PairsConfig,
    PairsTask,
    SentencePair,
    pearson,
    ranks,
    spearman,
)

SICK = (
    "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\tA dog runs\tA "
    "cat sits\t2.5\tNEUTRAL\n"
)
MRPC = (
    '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tHe said "yes.\tShe said no.\r\n'
)


def test_read_accepts_the_columns_of_published_files(tmp_path: Path) -> None:
    (tmp_path / "sick.txt").write_text(SICK)
    (tmp_path / "mrpc.tsv").write_bytes(MRPC.encode())
    task = PairsTask()
    (sick,) = read_examples(task, tmp_path / "sick.txt")
    assert sick == SentencePair(("A", "dog", "runs"), ("A", "cat", "sits"), "NEUTRAL")
    (mrpc,) = read_examples(task, tmp_path / "mrpc.tsv")
    assert mrpc == SentencePair(("He", "said", '"', "yes", "."), ("She", "said", "no", "."), "1")
    (score,) = read_examples(PairsTask(PairsConfig(target="score")), tmp_path / "sick.txt")
    assert score == SentencePair(("A", "dog", "runs"), ("A", "cat", "sits"), score=2.5)
    rows = [
        {"sentence1": "A b", "sentence2": "c", "gold_label": label} for label in ("neutral", "-")
    ]
    (tmp_path / "snli.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [pair.label for pair in read_examples(task, tmp_path / "snli.jsonl")] == ["neutral"]


def test_score_of_paraphrases_includes_f1_of_the_positive_class() -> None:
    task = PairsTask(labels={"labels": ["0", "1"]})
    gold = [SentencePair(("a",), ("b",), label) for label in "1100"]
    found = [PairPrediction(("a",), ("b",), label) for label in "1010"]
    assert task.score(gold, found).values == {"score": 0.5, "accuracy": 0.5, "f1": 0.5}


# --- Similarity -----------------------------------------------------------------------------------

SIMILARITY = {"Ann": 4.5, "Bob": 3.0, "Eve": 1.0}  # by the first word, from 1 to 5 as in SICK


@pytest.mark.slow
def test_fit_predicts_similarity_on_the_scale_of_its_training_set() -> None:
    toy = toy_tasks()["pairs"]
    task = PairsTask(replace(toy.task.config, target="score"))
    pairs = [replace(pair, label=None, score=SIMILARITY[pair.first[0]]) for pair in toy.examples]
    gold = np.array([pair.score for pair in pairs])
    words = WordsConfig(elmo="none", word_dim=16, word_dropout=0.0)
    model, report = fit(task, pairs, pairs, words=words, config=toy.config)
    *predictions, empty = model.predict_examples([*pairs, SentencePair((), ())])
    predicted = np.array([prediction.score for prediction in predictions])
    np.testing.assert_allclose(predicted, gold, atol=0.3)
    assert empty.score == pytest.approx(gold.mean())
    assert report.dev["score"] == pytest.approx(np.corrcoef(gold, predicted)[0, 1])


def test_correlations_equal_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    left = random.integers(0, 9, 50).astype(float)
    right = random.normal(size=50)
    np.testing.assert_allclose(ranks(left), stats.rankdata(left))
    assert pearson(left, right) == pytest.approx(stats.pearsonr(left, right).statistic)
    assert spearman(left, right) == pytest.approx(stats.spearmanr(left, right).statistic)
    assert pearson(left, np.ones(50)) == 0.0


@pytest.mark.parametrize("length", [0, 1, 3, 7])
def test_constant_samples_do_not_correlate_though_their_mean_is_rounded(length: int) -> None:
    constant = np.full(length, 0.1)
    other = np.arange(float(length))
    assert (
        pearson(constant, constant) == pearson(constant, other) == spearman(constant, constant) == 0
    )


# --- The network ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_outputs", [1, 3])
def test_network_and_loss_equal_the_formulas(num_outputs: int) -> None:
    network = random_network(ESIM, PairsConfig(hidden_dim=4), GivenWords(), num_outputs)
    first = random_words([4, 1, 3], seed=2)
    second = random_words([2, 3, 1], seed=3)
    labels = torch.tensor([0, 2, -1])
    scores = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    batch, oracle = PairBatch(first, second, labels, scores), ESIMOracle(network)  # type: ignore[arg-type]
    expected = np.array([*map(oracle.outputs, sentences_of(first), sentences_of(second))])
    np.testing.assert_allclose(network(batch), expected, rtol=1e-9)
    if num_outputs == 1:
        loss = np.mean((expected[:, 0] - scores.numpy()) ** 2)
    else:  # the label of the third pair is unknown
        loss = -np.mean(log_softmax(expected)[[0, 1], [0, 2]])
    assert network.loss(batch).item() == pytest.approx(loss)
