"""The interface of a downstream task: everything in which tasks differ.

A task is one file: its examples and how files of them are read, the network on top of the word
vectors, and how its answers are decoded, scored and written. Training, saving, prediction and the
command line use nothing else of a task.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from elmokit.data import is_empty, read_records, row_of
from elmokit.fs import atomic_path, create_bytes, suffixes_of
from elmokit.tasks.config import TASKS, FitConfig
from elmokit.tasks.fitting.words import WordBatch, WordEncoder, Words

Example = TypeVar("Example")  # an input, with the correct answer if it is known
Prediction = TypeVar("Prediction")
BatchOfWords = Callable[[Sequence[Words]], WordBatch]  # `Sentences.batch`

ERRORS_SHOWN = 10

# --- Scores of predictions ------------------------------------------------------------------------

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
    """Count pairs of labels: correct labels in alphabetical order, for each the predicted ones,
    most frequent first.
    """
    counts: dict[str, Counter[str]] = {}
    for correct_label, predicted_label in zip(gold, predicted, strict=True):
        counts.setdefault(correct_label, Counter())[predicted_label] += 1
    return {label: dict(row.most_common()) for label, row in sorted(counts.items())}


def score_by_label(confusion: Confusion) -> dict[str, F1Score]:
    """Precision, recall and F1 of each label that is correct or predicted somewhere, in
    alphabetical order.
    """
    gold = {label: sum(row.values()) for label, row in confusion.items()}
    predicted: Counter[str] = Counter()
    for row in confusion.values():
        predicted.update(row)
    correct = {
        label: confusion.get(label, {}).get(label, 0) for label in gold.keys() | predicted.keys()
    }
    return {
        label: F1Score.from_counts(correct[label], predicted[label], gold.get(label, 0))
        for label in sorted(correct)
    }


@dataclass(frozen=True)
class TaskScores:
    """Scores of a set of examples.

    Attributes:
        values: Scores by name, as `Task.score` returns them.
        by_label: Precision, recall and F1 of each label or type of span; None if answers are not
            labels.
        confusion: Counts by correct label (outer key) and predicted label; None if answers are not
            labels.
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
                precision, recall, f1 = 100 * score.precision, 100 * score.recall, 100 * score.f1
                percents = f"{precision:>11.2f}{recall:>8.2f}{f1:>8.2f}"
                lines.append(f"{label:{width}}{percents}{score.support:>8}")
        rows = (self.confusion or {}).items()
        errors = [
            (-count, gold, label)
            for gold, row in rows
            for label, count in row.items()
            if gold != label
        ]
        if errors:
            lines.append("\nmost frequent errors")
            lines += [
                f"{-count:>8}  {gold} as {label}"
                for count, gold, label in sorted(errors)[:ERRORS_SHOWN]
            ]
        return "\n".join(lines)


# --- The interface --------------------------------------------------------------------------------


class TaskNetwork(nn.Module, ABC):
    """The network of a task, which reads the batches that `Task.collate` makes."""

    words: WordEncoder

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """The mean loss of a batch with answers, a scalar; the penalty on mix weights is added by
        the training loop.
        """

    @abstractmethod
    def decode(self, batch: Any, with_probabilities: bool = True) -> list[Any]:
        """Decode the answer to each example of a batch, called without gradients.

        Args:
            batch: The batch.
            with_probabilities: Whether probabilities are needed; `Task.score` needs none, so a
                network that computes them at some cost may leave them out.

        Returns:
            A result for each example, in any form that `Task.predictions` reads.
        """


class Task(ABC, Generic[Example, Prediction]):
    """One downstream task.

    Attributes:
        name: The task's name on the command line.
        metric: The name of the score, among those of `score`, on which training stops early.
        Config: A frozen dataclass: the settings of the network and of the files.
        fit_config: Default settings of the training.
        tables: Suffixes of files whose rows are examples, of which `columns` are read.
        prediction_batch_size: Examples per batch when predicting; predictions do not depend on it.
        reads_text: Whether `from_text` takes a string, so that a line of raw text is an input
            (`predict --text`).
        max_words: Maximum number of words of a sentence; None: no limit.
        config: The settings.
        labels: What `learn` returned for the training set (labels, tags, ...), as JSON values.
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    Config: ClassVar[type]
    fit_config: ClassVar[FitConfig] = FitConfig()
    tables: ClassVar[Sequence[str]] = ()
    prediction_batch_size: ClassVar[int] = 64
    reads_text: ClassVar[bool] = True
    max_words: int | None = None

    def __init__(self, config: Any = None, labels: Mapping[str, Any] | None = None) -> None:
        self.config = self.Config() if config is None else config
        self.labels = dict(labels or {})

    # --- Examples ---------------------------------------------------------------------------------

    @abstractmethod
    def read(self, path: Path, with_answers: bool = True) -> Iterator[Example]:
        """Stream the examples of a file. ValueError names the line that is not in the task's
        format.
        """

    def read_training(self, path: Path) -> Iterator[Example]:
        """Stream the examples of a training set: by default those of `read`, which are also those
        that are scored.
        """
        return self.read(path)

    @abstractmethod
    def from_text(self, text: Any, tokenize: Callable[[str], list[str]]) -> Example:
        """Convert an input of `predict`, which each task documents, to an example without an
        answer.
        """

    @property
    def columns(self) -> Sequence[Sequence[str]]:
        """The columns of examples in tables and tuples, that of the answer last, each with the
        names it may have.
        """
        return ()

    def from_values(self, values: Sequence[Any], tokenize: Callable[[str], list[str]]) -> Example:
        """Convert the values of `columns` to an example: inputs as of `from_text`, and the answer,
        None without one.
        """
        raise ValueError(f"{self.name} reads no tables: give a file of its own format")

    @abstractmethod
    def sentences(self, example: Example) -> Iterable[Words]:
        """The tokenized sentences that the network reads for an example."""

    def counted_sentences(self, examples: Iterable[Example]) -> Iterator[Words]:
        """The sentences of a training set whose words are counted, to find the rare ones: by
        default all.
        """
        return (words for example in examples for words in self.sentences(example))

    def length(self, example: Example) -> int:
        """The length by which examples are batched: by default the number of words of the longest
        sentence.
        """
        return max(map(len, self.sentences(example)), default=0)

    @abstractmethod
    def check(self, example: Example) -> None:
        """ValueError if an example to train on, or to score, is inconsistent or has no answer."""

    def check_sentences(self, example: Example) -> None:
        """ValueError if a sentence is a string in place of words, whose characters would be read,
        or is too long.
        """
        for words in self.sentences(example):
            if isinstance(words, str) or not all(isinstance(word, str) for word in words):
                raise ValueError(
                    f"{words!r:.60} is not a sequence of words, which are strings: tokenize it"
                )
            if self.max_words is not None and len(words) > self.max_words:
                raise ValueError(
                    f"{self.name} reads at most {self.max_words:,} words, not {len(words):,}: "
                    f"split them"
                )

    def checked(self, examples: Iterable[Example], name: str = "") -> Iterator[Example]:
        """Yield examples with answers. ValueError, with its number and the set's name, for one that
        is refused.
        """
        for number, example in enumerate(examples, start=1):
            try:
                self.check_sentences(example)
                self.check(example)
            except ValueError as error:
                raise ValueError(
                    f"example {number}{name and f' of the {name} set'}: {error}"
                ) from error
            yield example

    @abstractmethod
    def learn(self, examples: Sequence[Example]) -> dict[str, Any]:
        """What the network must know of a training set, such as its labels, as JSON values."""

    # --- The network ------------------------------------------------------------------------------

    @abstractmethod
    def network(self, words: WordEncoder) -> TaskNetwork:
        """An untrained network for the labels."""

    @abstractmethod
    def collate(self, examples: Sequence[Example], words: BatchOfWords) -> Any:
        """Examples -> a NamedTuple of tensors and word batches; -1 stands for an answer that the
        training set lacks.
        """

    # --- Answers ----------------------------------------------------------------------------------

    @abstractmethod
    def predictions(self, examples: Sequence[Example], decoded: Sequence[Any]) -> list[Prediction]:
        """Convert the results of `TaskNetwork.decode`, one for each example, to predictions.

        The result of an example of length 0 is None.
        """

    @abstractmethod
    def score(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Scores by name, `metric` among them: from 0 to 1, for correlations from -1 to 1; all must
        be finite.
        """

    def confusion(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> Confusion | None:
        """Counts by correct label (outer key) and predicted label; None if answers are not
        labels.
        """
        return None

    def score_by_label(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> dict[str, F1Score] | None:
        """Precision, recall and F1 of each label, by default from `confusion`; None if answers are
        not labels.
        """
        confusion = self.confusion(examples, predictions)
        return None if confusion is None else score_by_label(confusion)

    def all_scores(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> TaskScores:
        """`score`, `score_by_label` and `confusion` of predictions."""
        of = examples, predictions
        return TaskScores(self.score(*of), self.score_by_label(*of), self.confusion(*of))

    @abstractmethod
    def to_json(self, prediction: Prediction) -> dict[str, Any]:
        """A prediction as a line of JSON."""

    def write(
        self,
        predictions: Iterable[Prediction],
        output: Path,
        file: Path | None,
        overwrite: bool = False,
    ) -> None:
        """Write predictions to a file, whole or not at all.

        Args:
            predictions: One for each example.
            output: JSON lines, unless the task has a format of its own.
            file: The file of the examples, in the task's format; None if they were raw text.
            overwrite: Replace an output that exists.
        """
        lines = (json.dumps(self.to_json(each), ensure_ascii=False) + "\n" for each in predictions)
        write_lines(lines, output, overwrite)


def write_lines(lines: Iterable[str], output: Path, overwrite: bool = False) -> None:
    """Write lines, each with its line break, to a file, whole or not at all."""
    with atomic_path(output, overwrite) as partial, create_bytes(partial) as stream:
        for line in lines:
            stream.write(line.encode())


def _value(row: Mapping[str, Any], names: Sequence[str], is_filled: bool) -> Any:
    """The value in the column that has one of the names; "" where it is empty, unless it must be
    filled.
    """
    name = next((name for name in names if name in row), None)
    if name is None:
        listed = ", ".join(map(repr, row))
        raise ValueError(
            f"there is no column {names[0]!r} among {listed}: choose others by --column, "
            f"--label-column"
        )
    if is_filled and is_empty(row[name]):
        raise ValueError(f"the column {name!r} is empty: fill it in, or remove the row")
    return "" if is_empty(row[name]) else row[name]


def _from_rows(
    task: Task,
    rows: Iterable[tuple[int, Any]],
    path: str | Path | None,
    tokenize: Callable[[str], list[str]],
    with_answers: bool = True,
    column: str | None = None,
) -> Iterator[Any]:
    """The examples of numbered rows, which are dictionaries, tuples, or examples already."""
    columns = ([column], *task.columns[1:]) if column else task.columns
    for number, row in rows:
        values = row
        try:
            if columns and isinstance(row, Mapping):
                values = [
                    _value(row, names, with_answers)
                    for names in columns[: None if with_answers else -1]
                ]
                values += [] if with_answers else [None]
            yield task.from_values(values, tokenize) if columns and not is_dataclass(row) else row
        except (ValueError, TypeError) as error:
            where = f"example {number}" if path is None else row_of(path, number)
            raise ValueError(f"{where}: {error}, in {values!r:.80}") from error


def read_table(
    task: Task,
    path: str | Path,
    tokenize: Callable[[str], list[str]],
    with_answers: bool = True,
    column: str | None = None,
) -> Iterator[Any]:
    """Stream the examples of a task in a table.

    Args:
        task: The task.
        path: A table, as in `read_records`.
        tokenize: Splits the texts.
        with_answers: Whether answers are read. If not, an empty input is one without words.
        column: The column of the input; None: that of the task.

    Yields:
        The examples.

    Raises:
        ValueError: A column or a value is missing, or a row does not fit the task; the message
            names it.
        FileNotFoundError: The file does not exist.
    """
    rows = read_records(
        path, [column or task.columns[0][0], *(names[0] for names in task.columns[1:])]
    )
    return _from_rows(task, rows, path, tokenize, with_answers, column)


def read_examples(
    task: Task,
    source: str | Path | Iterable[Any],
    tokenize: Callable[[str], list[str]],
    read: Callable[[Path], Iterator[Any]] | None = None,
) -> Iterator[Any]:
    """Stream examples with answers, wherever they come from.

    Args:
        task: The task.
        source: A file of the task's format, or a table; a DataFrame of pandas, or rows as
            dictionaries; tuples of values in the order of `Task.columns`; or examples.
        tokenize: Splits the texts of tables, rows and tuples.
        read: Reads a file of the task's format; None: `Task.read`.

    Yields:
        The examples.

    Raises:
        ValueError, FileNotFoundError: As `read_table` and `Task.read`.
    """
    if isinstance(source, str | Path):
        is_table = suffixes_of(source).kind in task.tables
        return read_table(task, source, tokenize) if is_table else (read or task.read)(Path(source))
    rows: Any = source
    if hasattr(rows, "notna"):  # a DataFrame
        rows = rows.astype(object).where(rows.notna(), None).to_dict("records")
    return _from_rows(task, enumerate(rows, start=1), None, tokenize)


def words_of(text: str | Words, tokenize: Callable[[str], Words]) -> tuple[str, ...]:
    """The words of a text, which is split if it is a string."""
    return tuple(tokenize(text) if isinstance(text, str) else text)


def label_of(value: Any) -> str | None:
    """A label from the value of a column, which may be a number."""
    return None if is_empty(value) else str(value)


def check_label(label: object) -> None:
    """ValueError if a label is missing, empty or no string."""
    if not isinstance(label, str) or not label:
        raise ValueError(f"its label must be a string, not {label!r}")


def most_probable(
    labels: Sequence[str], decoded: Iterable[Sequence[float] | None]
) -> Iterator[tuple[str, dict[str, float]]]:
    """For each example its best label, and the probability of each; equal ones for an example
    without words.
    """
    for probabilities in decoded:
        by_label = dict(zip(labels, probabilities or [1 / len(labels)] * len(labels), strict=True))
        yield max(by_label, key=by_label.__getitem__), by_label


def label_numbers(labels: Iterable[str | None], known: Sequence[str]) -> Tensor:
    """The index of each label among the known ones, (B,) int64; -1 for others."""
    numbers = {label: number for number, label in enumerate(known)}
    return torch.tensor([numbers.get(label or "", -1) for label in labels])


def tag_numbers(tags: Iterable[Sequence[str]], known: Sequence[str], mask: Tensor) -> Tensor:
    """The indices of the tags of sentences among the known ones, (B, T) int64; -1 for others, 0
    without tags.
    """
    numbers = {tag: number for number, tag in enumerate(known)}
    found = torch.zeros(mask.shape, dtype=torch.int64)
    for row, of_sentence in zip(found, tags, strict=True):
        row[: len(of_sentence)] = torch.tensor([numbers.get(tag, -1) for tag in of_sentence])
    return found


def find_task(name: str) -> type[Task]:
    """The class of a task.

    Args:
        name: One of elmokit's tasks, or FILE.py:CLASS for one of your own.

    Returns:
        The class; the same one each time.

    Raises:
        ValueError: There is no such task.
        FileNotFoundError: There is no such file.
        AttributeError: The file has no such class.
    """
    if name in TASKS:
        return getattr(importlib.import_module(f"elmokit.tasks.{name}"), TASKS[name])
    file, _, class_name = name.rpartition(":")
    if not file.endswith(".py"):
        raise ValueError(
            f"there is no task {name!r}: choose {', '.join(TASKS)}, or FILE.py:CLASS for your own"
        )
    return getattr(_module_of(Path(file).resolve()), class_name)


@cache
def _module_of(file: Path) -> ModuleType:
    """The module of a file, executed once."""
    spec = importlib.util.spec_from_file_location(f"elmokit_task_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where the types of its dataclasses' fields are looked up
    spec.loader.exec_module(module)
    return module
