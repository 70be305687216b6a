"""Scores of predictions, and the report of a training run: printed in percent; report.json has everything."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elmokit.fs.json_files import read_json
from elmokit.settings import conform

REPORT = "report.json"
ERRORS_SHOWN = 10

Confusion = dict[str, dict[str, int]]  # counts by correct label (outer key) and predicted label


@dataclass(frozen=True)
class F1Score:
    """Precision, recall and F1, from 0 to 1, 0 if undefined; and the number of gold answers."""

    precision: float
    recall: float
    f1: float
    support: int

    @classmethod
    def from_counts(cls, correct: int, predicted: int, gold: int) -> F1Score:
        """From the numbers of correct predictions, of predictions, and of gold answers."""
        f1 = 2 * correct / max(predicted + gold, 1)
        return cls(correct / max(predicted, 1), correct / max(gold, 1), f1, gold)


def confusion_counts(gold: Iterable[str], predicted: Iterable[str]) -> Confusion:
    """Count pairs of labels: correct labels in alphabetical order, for each the predicted ones, most frequent first."""
    counts: dict[str, Counter[str]] = {}
    for correct_label, predicted_label in zip(gold, predicted, strict=True):
        counts.setdefault(correct_label, Counter())[predicted_label] += 1
    return {label: dict(row.most_common()) for label, row in sorted(counts.items())}


def score_by_label(confusion: Confusion) -> dict[str, F1Score]:
    """Precision, recall and F1 of each label that is correct or predicted somewhere, in alphabetical order."""
    gold = {label: sum(row.values()) for label, row in confusion.items()}
    predicted: Counter[str] = Counter()
    for row in confusion.values():
        predicted.update(row)
    correct = {label: confusion.get(label, {}).get(label, 0) for label in gold.keys() | predicted.keys()}
    return {
        label: F1Score.from_counts(correct[label], predicted[label], gold.get(label, 0)) for label in sorted(correct)
    }


@dataclass(frozen=True)
class TaskScores:
    """Scores of a set of examples.

    Attributes:
        values: Scores by name, as `Task.score` returns them.
        by_label: Precision, recall and F1 of each label or type of span; None if answers are not labels.
        confusion: Counts by correct label (outer key) and predicted label; None if answers are not labels.
    """

    values: dict[str, float]
    by_label: dict[str, F1Score] | None = None
    confusion: Confusion | None = None

    def __str__(self) -> str:
        lines = ["  ".join(f"{name} {100 * value:.2f}" for name, value in self.values.items())]
        if self.by_label:
            width = max(map(len, self.by_label))
            lines.append(f"\n{'':{width}}  precision  recall      f1   count")
            for label, score in self.by_label.items():
                percents = f"{100 * score.precision:>11.2f}{100 * score.recall:>8.2f}{100 * score.f1:>8.2f}"
                lines.append(f"{label:{width}}{percents}{score.support:>8}")
        rows = (self.confusion or {}).items()
        errors = [(-count, gold, label) for gold, row in rows for label, count in row.items() if gold != label]
        if errors:
            lines.append("\nmost frequent errors")
            lines += [f"{-count:>8}  {gold} as {label}" for count, gold, label in sorted(errors)[:ERRORS_SHOWN]]
        return "\n".join(lines)


@dataclass(frozen=True)
class Epoch:
    """One pass over the training set."""

    loss: float  # mean over batches
    scores: dict[str, float]  # on the development set after it
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class LearnedMix:
    """A trained scalar mix: the weights of the layers after the softmax, and gamma."""

    weights: list[float]
    gamma: float

    def __str__(self) -> str:
        return f"gamma {self.gamma:.3f}, layers {' '.join(f'{weight:.3f}' for weight in self.weights)}"


@dataclass(frozen=True)
class FitReport:
    """The result of a training run. Scores are those of `Task.score`."""

    task: str
    metric: str  # the score that stopped the training
    best_epoch: int  # from 1
    dev: dict[str, float]
    test: dict[str, float] | None
    by_label: dict[str, F1Score] | None  # on the test set, or without one the development set
    confusion: Confusion | None  # on the same set
    mixes: list[LearnedMix]  # of ELMo at the input and at the output, as far as it enters there
    encoder_mix: LearnedMix | None  # of the hidden states of another encoder
    parameters: int  # trained ones
    examples: int  # of the training set
    words: int
    words_per_second: float  # of the training set, including the time to score the development set
    settings: dict[str, Any]  # those of task, words and training, and what identifies model and data
    epochs: list[Epoch]
    seconds: float  # of all epochs, and of the rest of the process that finished the run

    @property
    def final(self) -> TaskScores:
        """Scores on the test set, or without one on the development set."""
        return TaskScores(self.dev if self.test is None else self.test, self.by_label, self.confusion)

    def __str__(self) -> str:
        lines = [f"{'development' if self.test is None else 'test'} set, in percent", str(self.final)]
        if self.test is not None:
            scores = (f"{name} {100 * score:.2f}" for name, score in self.dev.items())
            lines.append(f"\ndevelopment set: {'  '.join(scores)}")
        lines.append(f"\nbest epoch: {self.best_epoch} of {len(self.epochs)}")
        place = self.settings["words"]["elmo"]
        places = ("input", "output") if place == "both" else (place,)
        lines += [f"ELMo at the {place}: {mix}" for mix, place in zip(self.mixes, places, strict=False)]
        if self.encoder_mix is not None:
            lines.append(f"encoder: {self.encoder_mix}")
        lines.append(f"trained parameters: {self.parameters:,}")
        lines.append(f"time: {self.seconds:.0f} s, {self.words_per_second:,.0f} words/s in training")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The report as indented JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> FitReport:
        """Read a report.json. ValueError if it is damaged, or of another version."""
        return conform(cls, read_json(path), str(path))
