"""The interface of a downstream task: everything in which tasks differ.

A task is one file: its examples and how files of them are read, the network on top of the word
vectors, and how its answers are decoded, scored and written. Training, saving, prediction and the
command line use nothing else of a task.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from elmokit.data import read_rows, show_reading, write_table
from elmokit.fs import TABLES
from elmokit.tasks import DEFAULT_FIT, TASKS, FitConfig
from elmokit.tasks.fitting.words import WordBatch, WordEncoder, Words
from elmokit.text import get_tokenizer

Example = TypeVar("Example")  # an input, with the correct answer if it is known
Prediction = TypeVar("Prediction")
BatchOfWords = Callable[[Sequence[Words]], WordBatch]  # `Sentences.batch`
Use = Literal["train", "score", "predict"]  # use of a file of examples

ERRORS_SHOWN = 10

# --- Scores of predictions ------------------------------------------------------------------------


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


@dataclass(frozen=True)
class TaskScores:
    """Scores of a set of examples.

    Attributes:
        values: Scores by name, from 0 to 1 (correlations: from -1 to 1). The first one decides
            when to stop training.
        by_label: Precision, recall and F1 of each label or type of span, in alphabetical order;
            None if answers are not labels.
        confusion: Counts by correct label (outer key) and predicted label, the most frequent first;
            None if answers are not labels.
    """

    values: dict[str, float]
    by_label: dict[str, F1Score] | None = None
    confusion: dict[str, dict[str, int]] | None = None

    @classmethod
    def of_labels(
        cls,
        values: dict[str, float],
        gold: Sequence[str],
        predicted: Sequence[str],
        known: Collection[str],
    ) -> TaskScores:
        """Add the scores of each label, and the confusion of labels.

        Args:
            values: Scores by name.
            gold: The correct label of each example.
            predicted: The predicted ones.
            known: The labels of the training set; no other one can be predicted.

        Raises:
            ValueError: No gold label is known.

        Warns:
            UserWarning: Some are not.
        """
        golds, predictions = Counter(gold), Counter(predicted)
        if unknown := [label for label in golds if label not in known]:
            number = sum(golds[label] for label in unknown)
            message = (
                f"{number:,} of {len(gold):,} labels are not among those of the training set, such "
                f"as {unknown[0]!r}"
            )
            if number == len(gold):
                raise ValueError(f"{message}: it has {', '.join(sorted(known))}"[:500])
            warnings.warn(message, stacklevel=2)
        pairs = Counter(zip(gold, predicted, strict=True))
        confusion: dict[str, dict[str, int]] = {label: {} for label in sorted(golds)}
        for (correct, label), count in pairs.most_common():
            confusion[correct][label] = count
        by_label = {
            label: F1Score.from_counts(pairs[label, label], predictions[label], golds[label])
            for label in sorted(golds | predictions)
        }
        return cls(values, by_label, confusion)

    def __str__(self) -> str:
        lines = ["  ".join(f"{name} {100 * value:.2f}" for name, value in self.values.items())]
        if self.by_label:
            width = max(map(len, self.by_label))
            lines.append(f"\n{'':{width}}  precision  recall      f1   count")
            for label, score in self.by_label.items():
                precision, recall, f1 = 100 * score.precision, 100 * score.recall, 100 * score.f1
                percents = f"{precision:>11.2f}{recall:>8.2f}{f1:>8.2f}"
                lines.append(f"{label:{width}}{percents}{score.support:>8}")
        errors = [
            (-count, gold, label)
            for gold, row in (self.confusion or {}).items()
            for label, count in row.items()
            if gold != label
        ]
        if errors:
            lines.append("\nmost frequent errors")
            for count, gold, label in sorted(errors)[:ERRORS_SHOWN]:
                lines.append(f"{-count:>8}  {gold} as {label}")
        return "\n".join(lines)


def accuracy(gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    """Fraction of the predicted answers that are correct, from 0 to 1; 0 if there are none."""
    correct = [left == right for left, right in zip(gold, predicted, strict=True)]
    return sum(correct) / max(len(correct), 1)


# --- The interface --------------------------------------------------------------------------------


class TaskNetwork(nn.Module, ABC):
    """The network of a task, which reads the batches that `Task.collate` makes.

    Args:
        words: Encodes the words of a batch.
    """

    def __init__(self, words: WordEncoder) -> None:
        super().__init__()
        self.words = words

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """The mean loss of a batch with answers, a scalar."""

    @abstractmethod
    def decode(self, batch: Any) -> Sequence[Any]:
        """The answer to each example of a batch, in any form that `Task.predictions` reads."""


@dataclass(frozen=True)
class NoSettings:
    """A task without settings of its own."""


class Task(ABC, Generic[Example, Prediction]):
    """One downstream task.

    A task has a name, and defines `network`, `collate`, `score`, and `read` unless it reads only
    tables. All else has a default.

    Args:
        config: The settings; None: the defaults of `Config`.
        labels: What `learn` returned for the training set.
        tokenizer: Name of the tokenizer of the biLM.

    Attributes:
        name: The task's name on the command line.
        Config: A frozen dataclass: the settings of the network and of the files.
        fit_config: Default settings of the training; predictions are made in batches of its
            `batch_size`.
        max_words: Maximum number of words of a sentence; None: no limit.
        config: The settings.
        labels: What `learn` returned for the training set (labels, tags, ...), as JSON values.
        tokenizer: Name of the tokenizer of strings: "tokenizer" of the labels, or that of the biLM.
    """

    name: ClassVar[str]
    Config: ClassVar[type] = NoSettings
    fit_config: ClassVar[FitConfig] = DEFAULT_FIT
    formats: ClassVar[Sequence[str]] = TABLES  # suffixes of the files of predictions
    max_words: int | None = None

    def __init__(
        self,
        config: Any = None,
        labels: Mapping[str, Any] | None = None,
        tokenizer: str = "english-1",
    ) -> None:
        self.config = self.Config() if config is None else config
        self.labels = dict(labels or {})
        self.tokenizer = self.labels.get("tokenizer", tokenizer)

    # --- Examples ---------------------------------------------------------------------------------

    def read(self, path: Path, use: Use = "score") -> Iterator[Example]:
        """Stream the examples of a file other than a table. ValueError if it is in another format.

        Args:
            path: The file.
            use: What for: "predict" needs no answers, and "train" may read other examples than
                those that are scored.
        """
        raise ValueError(f"{path}: {self.name} reads tables alone")

    def columns(self, path: Path | None) -> Sequence[Sequence[str]]:
        """Column aliases, answer column last, of a table or of tuples.

        Args:
            path: The file of the examples; None: they are in memory.

        Returns:
            The columns; none if `read` reads the file.
        """
        return ()

    def make_example(self, inputs: Any, answer: Any = None) -> Example | None:
        """Convert an input of `predict`, which each task documents, to an example.

        Args:
            inputs: The value of the first column, or of all but the last one, if they are several.
            answer: The value of the last column; None if there is none.

        Returns:
            The example; None for a row of a table to be left out.
        """
        raise ValueError(f"{self.name} reads files alone")

    def sentences(self, example: Any) -> Iterable[Words]:
        """The tokenized sentences that the network reads for an example."""
        return (example.words,)

    def length(self, example: Example) -> int:
        """Number of words by which examples are batched: those of the longest sentence."""
        return max(map(len, self.sentences(example)), default=0)

    def check(self, example: Example) -> None:
        """ValueError if an example to train on, or to score, is inconsistent or has no answer."""
        return

    def is_counted(self, example: Example) -> bool:
        """Whether the word table counts the words of a training example."""
        return True

    def learn(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Facts of a training set that the network needs, such as its labels, as JSON values."""
        return {}

    # --- The network ------------------------------------------------------------------------------

    @abstractmethod
    def network(self, words: WordEncoder) -> TaskNetwork:
        """An untrained network for the labels."""

    @abstractmethod
    def collate(self, examples: Sequence[Example], words: BatchOfWords) -> Any:
        """Examples -> a NamedTuple of tensors and of the `WordBatch`es that `words` makes."""

    # --- Answers ----------------------------------------------------------------------------------

    def predictions(self, examples: Sequence[Example], decoded: Sequence[Any]) -> list[Prediction]:
        """Convert the results of `TaskNetwork.decode`, None for an example of length 0."""
        return list(decoded)

    @abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> TaskScores:
        """Compare predictions with the answers of the examples; all scores must be finite."""

    def to_json(self, prediction: Prediction) -> dict[str, Any]:
        """A prediction as a line of JSON."""
        return asdict(cast(Any, prediction)) if is_dataclass(prediction) else {"answer": prediction}

    def write(
        self,
        predictions: Iterable[Prediction],
        output: Path,
        file: Path | None,
        overwrite: bool = False,
        inputs: Iterable[Mapping[str, Any]] | None = None,
    ) -> None:
        """Write predictions to a file, whole or not at all.

        Args:
            predictions: One for each example.
            output: A table of one of the `formats`, or a file of another one of them.
            file: The file of the examples, in the task's format; None if they were raw text, or in
                a table.
            overwrite: Replace an output that exists.
            inputs: The rows of the table of the examples, which are written too; None: there are
                none.
        """
        rows: Iterable[dict[str, Any]] = map(self.to_json, predictions)
        if inputs is not None:
            pairs = zip(inputs, rows, strict=True)
            rows = ({**columns, "predicted": predicted} for columns, predicted in pairs)
        write_table(output, rows, overwrite)


# --- Reading examples -----------------------------------------------------------------------------


def _value(row: Mapping[str, Any], names: Sequence[str], is_filled: bool) -> Any:
    """The value in the column of one of the names; "" if an optional cell is empty."""
    name = next((name for name in names if name in row), None)
    if name is None:
        listed = ", ".join(map(repr, row))
        raise ValueError(
            f"there is no column {names[0]!r} among {listed}: choose others by --column, "
            f"--label-column"
        )
    if is_filled and isinstance(row[name], str) and not row[name].strip():
        raise ValueError(f"the column {name!r} is empty: fill it in, or remove the row")
    return row[name]


def read_examples(
    task: Task,
    source: str | Path | Iterable[Any],
    use: Use = "score",
    column: str | None = None,
) -> Iterator[Any]:
    """Stream examples, wherever they come from.

    Args:
        task: The task.
        source: A file of the task's format, or a table; a DataFrame of pandas, or rows as
            dictionaries; tuples of values in the order of `Task.columns`; or examples.
        use: As in `Task.read`.
        column: The column of the input in a table; None: that of the task.

    Yields:
        The examples.

    Raises:
        ValueError: A column or a value is missing, or a row does not fit the task; the message
            names it.
        FileNotFoundError: The file does not exist.
    """
    path = Path(source) if isinstance(source, str | Path) else None
    columns = task.columns(None if column else path)
    if column:
        columns = ([column], *columns[1:])
    if path is not None and not columns:
        yield from task.read(path, use)
        return
    has_answers = use != "predict"
    needed = columns if has_answers else columns[:-1]
    is_shown = False
    for row_name, row in read_rows(source, [names[0] for names in columns]):
        values = row
        try:
            if isinstance(row, Mapping) and columns:
                values = [_value(row, names, has_answers) for names in needed]
            if is_dataclass(row) or not columns:
                yield row
                continue
            *inputs, answer = values if has_answers else [*values, None]
            if len(inputs) != len(columns) - 1:
                raise ValueError(f"give {len(columns)} values")
            example = task.make_example(inputs[0] if len(inputs) == 1 else inputs, answer)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{row_name}: {error}, in {values!r:.80}") from error
        if example is None:
            continue
        if path is not None and not is_shown:
            is_shown = True
            words = next(iter(task.sentences(example)), ())
            show_reading(path, words, {"column": columns[0][0], columns[-1][0]: answer})
        yield example


def check_words(task: Task[Example, Any], example: Example) -> Example:
    """The example. ValueError if a sentence is too long, or a string, whose characters are read."""
    for words in task.sentences(example):
        if isinstance(words, str) or not all(isinstance(word, str) for word in words):
            raise ValueError(
                f"{words!r:.60} is not a sequence of words, which are strings: tokenize it"
            )
        if task.max_words is not None and len(words) > task.max_words:
            raise ValueError(
                f"{task.name} reads at most {task.max_words:,} words, not {len(words):,}: split "
                f"them"
            )
    return example


def checked(
    task: Task[Example, Any], examples: Iterable[Example], name: str = ""
) -> Iterator[Example]:
    """Yield examples with answers. ValueError, with its number and set, for one that is refused."""
    for number, example in enumerate(examples, start=1):
        try:
            task.check(check_words(task, example))
        except ValueError as error:
            raise ValueError(
                f"example {number}{name and f' of the {name} set'}: {error}"
            ) from error
        yield example


# --- Parts that several tasks share ---------------------------------------------------------------


def words_of(text: str | Words, tokenizer: str) -> tuple[str, ...]:
    """The words of a text, which is split if it is a string."""
    return tuple(get_tokenizer(tokenizer).tokenize(text) if isinstance(text, str) else text)


def parts_of(inputs: Any) -> Any:
    """An input with several parts. ValueError for a string, whose parts would be characters."""
    if isinstance(inputs, str):
        raise ValueError("it is a single string")
    return inputs


def label_of(value: Any) -> str | None:
    """A label from the value of a column: 1.0, as which pandas reads 1 beside empty cells, is 1."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_missing = value is None or value != value or not str(value).strip()
    return None if is_missing else str(value)


def check_label(label: object) -> None:
    """ValueError if a label is missing, empty or no string."""
    if not isinstance(label, str) or not label:
        raise ValueError(f"its label must be a string, not {label!r}")


def most_probable(
    labels: Sequence[str], decoded: Iterable[Sequence[float] | None]
) -> Iterator[tuple[str, dict[str, float]]]:
    """The best label of each example, and the probability of all; equal ones without words."""
    for probabilities in decoded:
        by_label = dict(zip(labels, probabilities or [1 / len(labels)] * len(labels), strict=True))
        yield max(by_label, key=by_label.__getitem__), by_label


def label_ids(labels: Iterable[str | None], known: Sequence[str]) -> Tensor:
    """The index of each label among the known ones, (B,) int64; -1 for others."""
    ids = {label: number for number, label in enumerate(known)}
    return torch.tensor([ids.get(label or "", -1) for label in labels], dtype=torch.int64)


def tag_ids(tags: Iterable[Sequence[str]], known: Sequence[str], mask: Tensor) -> Tensor:
    """`label_ids` of the tags of sentences, (B, T); 0 at padding, and without tags."""
    ids = torch.zeros(mask.shape, dtype=torch.int64)
    for row, of_sentence in zip(ids, tags, strict=True):
        row[: len(of_sentence)] = label_ids(of_sentence, known)
    return ids


# --- Tasks by name --------------------------------------------------------------------------------


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
