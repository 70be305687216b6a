"""Pairs of sentences: entailment, paraphrase, similarity, by ESIM (Chen et al. 2017, "Enhanced LSTM
for NLI").

One BiLSTM encodes both sentences, which are aligned by attention; each word is compared with its
soft alignment, a second BiLSTM composes the comparisons, and a classifier, or a regression for
similarity, reads the pooled result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.settings import Count, DropoutRate, check
from elmokit.tasks import DEFAULT_FIT, FitConfig
from elmokit.tasks.fitting.task import (
    BatchOfWords,
    Task,
    TaskNetwork,
    TaskScores,
    accuracy,
    check_label,
    label_ids,
    label_of,
    most_probable,
    parts_of,
    words_of,
)
from elmokit.tasks.fitting.words import (
    BiLSTM,
    EncodedWords,
    WordBatch,
    WordEncoder,
    Words,
    masked_max,
    masked_mean,
    masked_softmax,
)

# Column names, also of published files: SICK, MRPC, SNLI.
FIRST = ("first", "sentence_A", "#1 String", "sentence1")
SECOND = ("second", "sentence_B", "#2 String", "sentence2")
LABEL = ("label", "entailment_judgment", "Quality", "gold_label")
SCORE = ("score", "relatedness_score")
NO_LABEL = "-"  # pairs of SNLI whose annotators disagreed, which are skipped


def pearson(left: np.ndarray, right: np.ndarray) -> float:
    """Pearson's correlation of two samples; 0 where one of them is constant."""
    if any((sample == sample[:1]).all() for sample in (left, right)):
        return 0.0
    return float(np.corrcoef(left, right)[0, 1])


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, equal values sharing their mean rank."""
    _, number, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[number]


def spearman(left: np.ndarray, right: np.ndarray) -> float:
    """Spearman's rank correlation of two samples; 0 where one of them is constant."""
    return pearson(ranks(left), ranks(right))


@dataclass(frozen=True)
class PairsConfig:
    """The network for pairs of sentences, and the columns of its files."""

    target: Literal["label", "score"] = "label"
    """label: one of a few classes (entailment, paraphrase); score: a number (similarity)."""
    hidden_dim: Count = 200
    """Width of the BiLSTMs, in each direction, and of the layers between them."""
    dropout: DropoutRate = 0.5
    """Dropout of the input of each layer."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class SentencePair:
    """Two sentences, and their label or score if it is known."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    label: str | None = None
    score: float | None = None


@dataclass(frozen=True)
class PairPrediction:
    """The label of a pair with the probabilities of all labels, or the score of the pair."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    label: str | None = None
    scores: dict[str, float] | None = None
    score: float | None = None


class PairBatch(NamedTuple):
    """Pairs with their labels or scores."""

    first: WordBatch
    second: WordBatch
    labels: Tensor  # (B,) int64; -1 for one that the training set lacks
    scores: Tensor  # (B,) float32, standardized


class ESIM(TaskNetwork):
    """Encode, align, compare, compose, pool, classify; with one output, predict a score."""

    def __init__(self, config: PairsConfig, words: WordEncoder, num_outputs: int) -> None:
        super().__init__(words)
        self.num_outputs = num_outputs
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = BiLSTM(words.dim, config.hidden_dim)
        compared = 4 * (self.encoder.output_dim + words.output_dim)
        self.project = nn.Linear(compared, config.hidden_dim)
        self.composer = BiLSTM(config.hidden_dim, config.hidden_dim)
        self.hidden = nn.Linear(4 * self.composer.output_dim, config.hidden_dim)
        self.output = nn.Linear(config.hidden_dim, num_outputs)

    def forward(self, batch: PairBatch) -> Tensor:
        """Scores of the labels, (B, K), or the predicted score of each pair, (B, 1)."""
        first, second = self.words(batch.first), self.words(batch.second)
        a, b = self._encode(first), self._encode(second)
        similarity = a @ b.transpose(1, 2)  # (B, T of the first, T of the second)
        aligned_a = masked_softmax(similarity, second.mask[:, None, :]) @ b
        aligned_b = masked_softmax(similarity.transpose(1, 2), first.mask[:, None, :]) @ a
        pooled = [
            *self._compose(a, aligned_a, first.mask),
            *self._compose(b, aligned_b, second.mask),
        ]
        hidden = torch.tanh(self.hidden(self.dropout(torch.cat(pooled, dim=1))))
        return self.output(self.dropout(hidden))

    def _encode(self, words: EncodedWords) -> Tensor:
        return words.join(self.encoder(words.vectors, words.mask))

    def _compose(self, x: Tensor, aligned: Tensor, mask: Tensor) -> list[Tensor]:
        compared = torch.cat([x, aligned, x - aligned, x * aligned], dim=2)
        composed = self.composer(self.dropout(F.relu(self.project(compared))), mask)
        return [masked_mean(composed, mask), masked_max(composed, mask)]

    def loss(self, batch: PairBatch) -> Tensor:
        """Cross entropy of the labels, or mean squared error of the standardized scores."""
        outputs = self(batch)
        if self.num_outputs == 1:
            return F.mse_loss(outputs.squeeze(1), batch.scores)
        return F.cross_entropy(outputs, batch.labels, ignore_index=-1)

    def decode(self, batch: PairBatch) -> list[list[float]]:
        """For each pair the probabilities of the labels, or its standardized score."""
        outputs = self(batch)
        return (outputs if self.num_outputs == 1 else outputs.softmax(dim=1)).tolist()


class PairsTask(Task[SentencePair, PairPrediction]):
    """A label or a score for two sentences.

    Files are tab-separated with a line of column names, or JSON lines; the columns are first,
    second, and label or score, or have the names of SICK, MRPC and SNLI.
    """

    name = "pairs"
    Config = PairsConfig
    fit_config = FitConfig(max_epochs=20, learning_rate=5e-4).over(DEFAULT_FIT)
    max_words = 5_000  # attention takes memory that grows with the square
    config: PairsConfig

    # --- Examples ---------------------------------------------------------------------------------

    def columns(self, path: Path | None) -> Sequence[Sequence[str]]:
        return FIRST, SECOND, SCORE if self.config.target == "score" else LABEL

    def make_example(
        self, inputs: Sequence[str | Words], answer: Any = None
    ) -> SentencePair | None:
        """From a pair of strings, which are tokenized, or of lists of words; and label or score."""
        if answer == NO_LABEL:
            return None
        first, second = (words_of(part, self.tokenizer) for part in parts_of(inputs))
        if self.config.target == "label":
            return SentencePair(first, second, label=label_of(answer))
        return SentencePair(first, second, score=None if answer is None else float(answer))

    def sentences(self, example: SentencePair) -> Iterable[Words]:
        return (example.first, example.second)

    def check(self, example: SentencePair) -> None:
        if self.config.target == "label":
            check_label(example.label)
        elif example.score is None or not math.isfinite(example.score):
            raise ValueError(f"the score of the pair must be a number, not {example.score}")

    def learn(self, examples: Sequence[SentencePair]) -> dict[str, Any]:
        if self.config.target == "label":
            return {"labels": sorted({example.label or "" for example in examples})}
        scores = np.array([example.score for example in examples], dtype=np.float64)
        return {"mean": float(scores.mean()), "deviation": float(scores.std()) or 1.0}

    # --- The network ------------------------------------------------------------------------------

    def network(self, words: WordEncoder) -> ESIM:
        is_label = self.config.target == "label"
        return ESIM(self.config, words, len(self.labels["labels"]) if is_label else 1)

    def collate(self, examples: Sequence[SentencePair], words: BatchOfWords) -> PairBatch:
        labels = label_ids((example.label for example in examples), self.labels.get("labels", ()))
        scores = torch.tensor([example.score or 0.0 for example in examples])
        if self.config.target == "score":
            scores = (scores - self.labels["mean"]) / self.labels["deviation"]
        first = words([example.first for example in examples])
        second = words([example.second for example in examples])
        return PairBatch(first, second, labels, scores)

    # --- Answers ----------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[SentencePair], decoded: Sequence[Any]
    ) -> list[PairPrediction]:
        if self.config.target == "label":
            answers = zip(examples, most_probable(self.labels["labels"], decoded), strict=True)
            return [PairPrediction(pair.first, pair.second, *answer) for pair, answer in answers]
        mean, deviation = self.labels["mean"], self.labels["deviation"]
        predictions = []
        for pair, answer in zip(examples, decoded, strict=True):
            score = mean + deviation * answer[0] if answer else mean
            predictions.append(PairPrediction(pair.first, pair.second, score=score))
        return predictions

    def score(
        self, examples: Sequence[SentencePair], predictions: Sequence[PairPrediction]
    ) -> TaskScores:
        """Accuracy, of labels "0" and "1" also F1 of "1"; of scores their correlations."""
        if self.config.target == "score":
            scores = np.array([example.score for example in examples])
            predicted_scores = np.array([prediction.score for prediction in predictions])
            linear = pearson(scores, predicted_scores)
            rank = spearman(scores, predicted_scores)
            return TaskScores({"score": linear, "pearson": linear, "spearman": rank})
        gold = [example.label or "" for example in examples]
        predicted = [prediction.label or "" for prediction in predictions]
        right = accuracy(gold, predicted)
        values = {"score": right, "accuracy": right}
        scores = TaskScores.of_labels(values, gold, predicted, self.labels["labels"])
        if self.labels["labels"] == ["0", "1"]:
            positive = (scores.by_label or {}).get("1")
            values["f1"] = 0.0 if positive is None else positive.f1
        return scores

    def to_json(self, prediction: PairPrediction) -> dict[str, Any]:
        return {name: value for name, value in vars(prediction).items() if value is not None}
