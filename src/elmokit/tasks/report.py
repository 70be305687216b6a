"""Reports of training runs: printed as scores in percent and a summary; report.json has everything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

from elmokit.fs.json_files import from_json, read_json
from elmokit.tasks.metrics import Confusion, F1Score
from elmokit.tasks.task import Task

REPORT, PICTURE = "report.json", "report.png"
ERRORS_SHOWN = 10
Report = TypeVar("Report")


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

    @classmethod
    def of(cls, task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> TaskScores:
        """Score predictions for examples with answers."""
        confusion = task.confusion(examples, predictions)
        by_label = task.score_by_label(examples, predictions)
        return cls(task.score(examples, predictions), by_label, confusion)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The scores, a table by label, and the most frequent errors."""
        yield "  ".join(f"{name} {100 * value:.2f}" for name, value in self.values.items())
        if self.by_label:
            width = max(map(len, self.by_label))
            yield f"\n{'':{width}}  precision  recall      f1   count"
            for label, score in self.by_label.items():
                percents = f"{100 * score.precision:>11.2f}{100 * score.recall:>8.2f}{100 * score.f1:>8.2f}"
                yield f"{label:{width}}{percents}{score.support:>8}"
        if errors := self._errors():
            yield "\nmost frequent errors"
            yield from (f"{count:>8}  {gold} as {predicted}" for count, gold, predicted in errors)

    def _errors(self) -> list[tuple[int, str, str]]:
        """The most frequent pairs of a correct and another, predicted label."""
        rows = (self.confusion or {}).items()
        errors = [(count, gold, label) for gold, row in rows for label, count in row.items() if gold != label]
        return sorted(errors, key=lambda error: (-error[0], error[1:]))[:ERRORS_SHOWN]


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


@dataclass
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
    coverage: dict[str, int] | None  # of the training set's distinct words by pretrained vectors
    parameters: int  # trained ones
    examples: int  # of the training set
    words: int
    words_per_second: float  # of the training set, including the time to score the development set
    settings: dict[str, Any]
    identity: str  # hash of data and settings
    epochs: list[Epoch]
    seconds: float = 0.0  # of all epochs, and of the rest of the process that finished the run

    @property
    def final(self) -> TaskScores:
        """Scores on the test set, or without one on the development set."""
        return TaskScores(self.dev if self.test is None else self.test, self.by_label, self.confusion)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{'development' if self.test is None else 'test'} set, in percent"
        yield from self.final.lines()
        if self.test is not None:
            yield f"\ndevelopment set: {'  '.join(f'{name} {100 * score:.2f}' for name, score in self.dev.items())}"
        yield f"\nbest epoch: {self.best_epoch} of {len(self.epochs)}"
        for mix, place in zip(self.mixes, elmo_places(self.settings), strict=True):
            yield f"ELMo at the {place}: {mix}"
        if self.encoder_mix is not None:
            yield f"encoder: {self.encoder_mix}"
        yield f"trained parameters: {self.parameters:,}"
        yield f"time: {self.seconds:.0f} s, {self.words_per_second:,.0f} words/s in training"

    def to_json(self) -> str:
        """The report as indented JSON."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> FitReport:
        """Read a report.json. ValueError if it is damaged, or of another version."""
        return _read(cls, path, "a task model")


def elmo_places(settings: Mapping[str, Any]) -> list[str]:
    """Where ELMo enters, "input" or "output" for each mix."""
    place = settings["words"]["elmo"]
    return {"none": [], "both": ["input", "output"]}.get(place, [place])


@dataclass(frozen=True)
class MeanScore:
    """Mean and standard deviation of a score over runs; the deviation of a single run is 0."""

    mean: float
    deviation: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.2f}" + (f" ± {100 * self.deviation:.2f}" if self.deviation else "")


@dataclass(frozen=True)
class SeedsReport:
    """Scores of equal runs with different seeds, whose models are in `directories`."""

    task: str
    metric: str
    seeds: list[int]
    dev: dict[str, MeanScore]
    test: dict[str, MeanScore] | None
    seconds: float
    directories: list[str]

    @classmethod
    def of(cls, reports: Mapping[int, FitReport], directories: Sequence[Path]) -> SeedsReport:
        """From the reports of the runs, by seed."""
        runs = list(reports.values())
        tests = [run.test for run in runs if run.test is not None]
        return cls(
            task=runs[0].task,
            metric=runs[0].metric,
            seeds=list(reports),
            dev=_means([run.dev for run in runs]),
            test=_means(tests) if tests else None,
            seconds=sum(run.seconds for run in runs),
            directories=list(map(str, directories)),
        )

    def __str__(self) -> str:
        sets = {"development": self.dev, **({"test": self.test} if self.test else {})}
        lines = [f"{len(self.seeds)} seeds, in percent, mean ± standard deviation"]
        for name, scores in reversed(sets.items()):
            lines.append(f"{name} set: {'  '.join(f'{score} {value}' for score, value in scores.items())}")
        return "\n".join([*lines, f"time: {self.seconds:.0f} s"])

    def to_json(self) -> str:
        """The report as indented JSON."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> SeedsReport:
        """Read a report.json of several seeds. ValueError if it is damaged, or of another version."""
        return _read(cls, path, "several seeds")


def _read(kind: type[Report], path: Path, of: str) -> Report:
    try:
        return from_json(kind, read_json(path))
    except ValueError as error:
        raise ValueError(f"{path} is not the report of {of}: {error}") from error


def check_report(path: Path, kind: type) -> None:
    """FileExistsError if `path` is something other than a report of this kind, which it would replace."""
    try:
        if path.exists():
            from_json(kind, read_json(path))
    except ValueError as error:
        raise FileExistsError(f"{path} is not a {kind.__name__}: move it, or choose another output") from error


def _means(runs: Sequence[Mapping[str, float]]) -> dict[str, MeanScore]:
    columns = {name: [run[name] for run in runs] for name in runs[0]}
    return {
        name: MeanScore(mean(values), stdev(values) if len(values) > 1 else 0.0) for name, values in columns.items()
    }
