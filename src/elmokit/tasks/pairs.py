"""Pairs of sentences: entailment, paraphrase, similarity, by ESIM (Chen et al. 2017, "Enhanced LSTM
for NLI").

One BiLSTM encodes both sentences, which are aligned by attention; each word is compared with its
soft alignment, a second BiLSTM composes the comparisons, and a classifier, or a regression for
similarity, reads the pooled result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.correlation import pearson, spearman
from elmokit.settings import Count, DropoutRate, check
from elmokit.tasks.config import FitConfig
from elmokit.tasks.fitting.task import (
    BatchOfWords,
    Confusion,
    Task,
    TaskNetwork,
    check_label,
    confusion_counts,
    label_numbers,
    label_of,
    most_probable,
    read_table,
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
from elmokit.text import get_tokenizer

# Column names, also of published files: SICK, MRPC, SNLI.
FIRST = ("first", "sentence_A", "#1 String", "sentence1")
SECOND = ("second", "sentence_B", "#2 String", "sentence2")
LABEL = ("label", "entailment_judgment", "Quality", "gold_label")
SCORE = ("score", "relatedness_score")
NO_LABEL = "-"  # pairs of SNLI whose annotators disagreed, which are skipped


@dataclass(frozen=True)
class PairsConfig:
    """The network for pairs of sentences, and the columns of its files."""

    target: Literal["label", "score"] = "label"
    """label: one of a few classes (entailment, paraphrase); score: a number (similarity)."""
    hidden_dim: Count = 200
    """Width of the BiLSTMs, in each direction, and of the layers between them."""
    dropout: DropoutRate = 0.5
    """Dropout of the input of each layer."""
    tokenizer: str = "english-1"
    """Tokenizer for the sentences of files and for strings; whitespace-1 if files are tokenized
    already.
    """

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
    """Pairs with the indices of their labels, (B,) int64, -1 for an unknown one; or with their
    scores, (B,) float32.
    """

    first: WordBatch
    second: WordBatch
    labels: Tensor
    scores: Tensor


class ESIM(TaskNetwork):
    """Encode, align, compare, compose, pool, classify; with one output, predict a score."""

    def __init__(self, config: PairsConfig, words: WordEncoder, num_outputs: int) -> None:
        super().__init__()
        self.words, self.num_outputs = words, num_outputs
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

    def decode(self, batch: PairBatch, with_probabilities: bool = True) -> list[list[float]]:
        """For each pair the probabilities of the labels, or its standardized score."""
        outputs = self(batch)
        return (outputs if self.num_outputs == 1 else outputs.softmax(dim=1)).tolist()


class PairsTask(Task[SentencePair, PairPrediction]):
    """A label or a score for two sentences.

    Files are tab-separated with a line of column names, or JSON lines; the columns are first,
    second, and label or score, or have the names of SICK, MRPC and SNLI.
    """

    name = "pairs"
    metric = "score"
    reads_text = False
    Config = PairsConfig
    fit_config = FitConfig(max_epochs=20, learning_rate=5e-4)
    max_words = 5_000  # attention takes memory that grows with the square
    config: PairsConfig

    # --- Examples ---------------------------------------------------------------------------------

    def read(self, path: Path, with_answers: bool = True) -> Iterator[SentencePair]:
        pairs = read_table(self, path, self._tokenize, with_answers)
        return (pair for pair in pairs if pair.label != NO_LABEL)

    @property
    def columns(self) -> Sequence[Sequence[str]]:
        return FIRST, SECOND, SCORE if self.config.target == "score" else LABEL

    def from_values(
        self, values: Sequence[Any], tokenize: Callable[[str], list[str]]
    ) -> SentencePair:
        """From two sentences, as in `from_text`, and their label or score."""
        *pair, answer = values
        example = self.from_text(pair, tokenize)
        if self.config.target == "label":
            return replace(example, label=label_of(answer))
        return example if answer is None else replace(example, score=float(answer))

    def _tokenize(self, text: str) -> list[str]:
        return get_tokenizer(self.config.tokenizer).tokenize(text)

    def from_text(
        self, text: Sequence[str | Words], tokenize: Callable[[str], list[str]]
    ) -> SentencePair:
        """From a pair of strings, which are tokenized as those of files are, or of lists of
        words.
        """
        first, second = (words_of(part, self._tokenize) for part in text)
        return SentencePair(first, second)

    def sentences(self, example: SentencePair) -> Iterable[Words]:
        return (example.first, example.second)

    def check(self, example: SentencePair) -> None:
        if self.config.target == "label":
            check_label(example.label)
        elif example.score is None or not math.isfinite(example.score):
            raise ValueError(f"the score of the pair must be a number, not {example.score}")

    def learn(self, examples: Sequence[SentencePair]) -> dict[str, Any]:
        if self.config.target == "label":
            return {
                "labels": sorted(
                    {example.label for example in examples if example.label is not None}
                )
            }
        scores = np.array([example.score for example in examples], dtype=np.float64)
        return {"mean": float(scores.mean()), "deviation": float(scores.std()) or 1.0}

    # --- The network ------------------------------------------------------------------------------

    def network(self, words: WordEncoder) -> ESIM:
        return ESIM(
            self.config, words, len(self.labels["labels"]) if self.config.target == "label" else 1
        )

    def collate(self, examples: Sequence[SentencePair], words: BatchOfWords) -> PairBatch:
        labels = label_numbers(
            (example.label for example in examples), self.labels.get("labels", ())
        )
        scores = torch.tensor([example.score or 0.0 for example in examples])
        if self.config.target == "score":
            scores = (scores - self.labels["mean"]) / self.labels["deviation"]
        first, second = (
            words([example.first for example in examples]),
            words([example.second for example in examples]),
        )
        return PairBatch(first, second, labels, scores)

    # --- Answers ----------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[SentencePair], decoded: Sequence[Any]
    ) -> list[PairPrediction]:
        pairs = zip(examples, decoded, strict=True)
        if self.config.target == "score":
            mean, deviation = self.labels["mean"], self.labels["deviation"]
            scores = (
                (pair, mean + deviation * answer[0] if answer else mean) for pair, answer in pairs
            )
            return [PairPrediction(pair.first, pair.second, score=score) for pair, score in scores]
        answers = zip(examples, most_probable(self.labels["labels"], decoded), strict=True)
        return [PairPrediction(pair.first, pair.second, *answer) for pair, answer in answers]

    def score(
        self, examples: Sequence[SentencePair], predictions: Sequence[PairPrediction]
    ) -> dict[str, float]:
        """Accuracy; for two labels "0" and "1" also F1 of "1"; for scores Pearson's and Spearman's
        correlation.
        """
        if self.config.target == "score":
            gold = np.array([example.score for example in examples])
            predicted = np.array([prediction.score for prediction in predictions])
            linear = pearson(gold, predicted)
            return {"score": linear, "pearson": linear, "spearman": spearman(gold, predicted)}
        pairs = [
            (example.label, prediction.label)
            for example, prediction in zip(examples, predictions, strict=True)
        ]
        accuracy = sum(gold == predicted for gold, predicted in pairs) / max(len(pairs), 1)
        scores = {"score": accuracy, "accuracy": accuracy}
        if self.labels["labels"] == ["0", "1"]:
            both = sum(gold == predicted == "1" for gold, predicted in pairs)
            either = sum(gold == "1" for gold, _ in pairs) + sum(
                predicted == "1" for _, predicted in pairs
            )
            scores["f1"] = 2 * both / max(either, 1)
        return scores

    def confusion(
        self, examples: Sequence[SentencePair], predictions: Sequence[PairPrediction]
    ) -> Confusion | None:
        if self.config.target == "score":
            return None
        return confusion_counts(
            (example.label or "" for example in examples),
            (each.label or "" for each in predictions),
        )

    def to_json(self, prediction: PairPrediction) -> dict[str, Any]:
        return {name: value for name, value in vars(prediction).items() if value is not None}
