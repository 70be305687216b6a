"""The interface of a downstream task: everything in which tasks differ.

A task is one file: its examples and how files of them are read, the network on top of the word vectors, and how its
answers are decoded, scored and written. Training, batching by length, early stopping, resuming, saving, prediction and
the command line (`elmokit.tasks.training`, `task_model`, `fit`) use nothing else of a task.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar
from zlib import crc32

import torch
from torch import Tensor, nn

from elmokit.fs.atomic import atomic_path, create_bytes
from elmokit.tasks.config import TASKS, FitConfig
from elmokit.tasks.metrics import Confusion, F1Score, score_by_label
from elmokit.tasks.word_batches import WordBatch, Words
from elmokit.tasks.word_encoder import WordEncoder

Example = TypeVar("Example")  # an input, with the correct answer if it is known
Prediction = TypeVar("Prediction")
BatchOfWords = Callable[[Sequence[Words]], WordBatch]  # `Sentences.batch`


class TaskNetwork(nn.Module, ABC):
    """The network of a task, which reads the batches that `Task.collate` makes."""

    words: WordEncoder

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """The mean loss of a batch with answers, a scalar; the penalty on mix weights is added by the training loop."""

    @abstractmethod
    def decode(self, batch: Any, with_probabilities: bool = True) -> list[Any]:
        """Decode the answer to each example of a batch, called without gradients.

        Args:
            batch: The batch.
            with_probabilities: Whether probabilities are needed; `Task.score` needs none, so a network that computes
                them at some cost may leave them out.

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
        prediction_batch_size: Examples per batch when predicting; predictions do not depend on it.
        reads_text: Whether `from_text` takes a string, so that a line of raw text is an input (`predict --text`).
        max_batch_size: Maximum number of examples in a batch; None: no limit.
        max_words: Maximum `length` of an example; None: no limit.
        config: The settings.
        labels: What `learn` returned for the training set (labels, tags, ...), as JSON values.
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    Config: ClassVar[type]
    fit_config: ClassVar[FitConfig] = FitConfig()
    prediction_batch_size: ClassVar[int] = 64
    reads_text: ClassVar[bool] = True
    max_batch_size: ClassVar[int | None] = None
    max_words: ClassVar[int | None] = None

    def __init__(self, config: Any = None, labels: Mapping[str, Any] | None = None) -> None:
        self.config = self.Config() if config is None else config
        self.labels = dict(labels or {})

    # --- Examples ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, path: Path, with_answers: bool = True) -> Iterator[Example]:
        """Stream the examples of a file. ValueError names the line that is not in the task's format."""

    def read_training(self, path: Path) -> Iterator[Example]:
        """Stream the examples of a training set: by default those of `read`, which are also those that are scored."""
        return self.read(path)

    def files(self, path: Path) -> list[Path]:
        """The files that `read` reads for a path (by default the path itself), which an output must not replace."""
        return [path]

    @abstractmethod
    def from_text(self, text: Any, tokenize: Callable[[str], list[str]]) -> Example:
        """Convert an input of `predict`, which each task documents, to an example without an answer."""

    @abstractmethod
    def sentences(self, example: Example) -> Iterable[Words]:
        """The tokenized sentences that the network reads for an example."""

    def counted_sentences(self, examples: Iterable[Example]) -> Iterator[Words]:
        """The sentences of a training set whose words are counted, to find the rare ones: by default all."""
        return (words for example in examples for words in self.sentences(example))

    def length(self, example: Example) -> int:
        """The length by which examples are batched: by default the number of words of the longest sentence."""
        return max(map(len, self.sentences(example)), default=0)

    def check_length(self, example: Example) -> None:
        """ValueError if an example is longer than the network reads."""
        if self.max_words is not None and (length := self.length(example)) > self.max_words:
            raise ValueError(f"it has {length:,} words, but {self.name} reads at most {self.max_words:,}: split it")

    @abstractmethod
    def check(self, example: Example) -> None:
        """ValueError if an example to train on, or to score, is inconsistent or has no answer."""

    def checked(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yield examples to score. ValueError, with its number from 1, for the first one that `check` refuses."""
        for number, example in enumerate(examples, start=1):
            try:
                self.check(example)
            except ValueError as error:
                raise ValueError(f"example {number}: {error}") from error
            yield example

    def check_training(self, example: Example) -> None:
        """ValueError if the network cannot be trained on an example; by default the same as `check`."""
        self.check(example)

    @abstractmethod
    def learn(self, examples: Sequence[Example]) -> dict[str, Any]:
        """What the network must know of a training set, such as its labels, as JSON values."""

    def answer_types(self, labels: Mapping[str, Any]) -> set[str]:
        """The classes, or the types of spans, among labels that `learn` returned; empty if answers are neither."""
        return set(labels.get("labels", ()))

    # --- The network ------------------------------------------------------------------------------------------------

    @abstractmethod
    def network(self, words: WordEncoder) -> TaskNetwork:
        """An untrained network for the labels."""

    @abstractmethod
    def collate(self, examples: Sequence[Example], words: BatchOfWords) -> Any:
        """Examples -> a NamedTuple of tensors and word batches; -1 stands for an answer that the training set lacks."""

    # --- Answers ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def predictions(self, examples: Sequence[Example], decoded: Sequence[Any]) -> list[Prediction]:
        """Convert the results of `TaskNetwork.decode`, one for each example, to predictions.

        The result of an example of length 0 is None.
        """

    @abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Scores by name, `metric` among them: from 0 to 1, for correlations from -1 to 1; all must be finite."""

    def check_libraries(self) -> None:
        """ValueError if a library that `score` needs is not installed; called before any work. By default none is."""
        return None

    def confusion(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> Confusion | None:
        """Counts by correct label (outer key) and predicted label; None if answers are not labels."""
        return None

    def score_by_label(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> dict[str, F1Score] | None:
        """Precision, recall and F1 of each label, by default from `confusion`; None if answers are not labels."""
        confusion = self.confusion(examples, predictions)
        return None if confusion is None else score_by_label(confusion)

    @abstractmethod
    def to_json(self, prediction: Prediction) -> dict[str, Any]:
        """A prediction as a line of JSON."""

    def write(
        self, predictions: Iterable[Prediction], output: Path, file: Path | None, overwrite: bool = False
    ) -> None:
        """Write predictions to a file, whole or not at all.

        Args:
            predictions: One for each example.
            output: JSON lines, unless the task has a format of its own.
            file: The file of the examples, in the task's format; None if they were raw text.
            overwrite: Replace an output that exists.
        """
        lines = (json.dumps(self.to_json(each), ensure_ascii=False) + "\n" for each in predictions)
        self.write_lines(lines, output, overwrite)

    @staticmethod
    def write_lines(lines: Iterable[str], output: Path, overwrite: bool = False) -> None:
        """Write lines, each with its line break, to a file, whole or not at all."""
        with atomic_path(output, overwrite) as partial, create_bytes(partial) as stream:
            for line in lines:
                stream.write(line.encode("utf-8", "surrogatepass"))


def words_of(text: str | Words, tokenize: Callable[[str], Words]) -> Words:
    """The words of a text, which is split if it is a string. ValueError for a dictionary, which would give its keys."""
    if isinstance(text, Mapping):
        raise ValueError(f"{text!r:.60} is a dictionary: give a string, or a list of words")
    return tokenize(text) if isinstance(text, str) else text


def find_task(name: str) -> type[Task]:
    """The class of a task.

    Args:
        name: One of elmokit's tasks, or FILE.py:CLASS for one of your own.

    Returns:
        The class; the same one each time, unless its file was changed.

    Raises:
        ValueError: There is no such task.
    """
    if name in TASKS:
        return getattr(importlib.import_module(f"elmokit.tasks.{name}"), TASKS[name])
    file, separator, class_name = name.rpartition(":")
    if not separator:
        raise ValueError(f"there is no task {name!r}: choose {', '.join(TASKS)}, or FILE.py:CLASS for your own")
    if not Path(file).is_file():
        raise ValueError(f"there is no file {file}, which {name!r} names")
    path = Path(file).resolve()
    task_class = getattr(_module_of(path, path.stat().st_mtime_ns), class_name, None)
    if not (isinstance(task_class, type) and issubclass(task_class, Task)):
        raise ValueError(f"{file} holds no class {class_name} derived from elmokit.tasks.task.Task")
    return task_class


@lru_cache
def _module_of(file: Path, _modified: int) -> ModuleType:
    """The module of a file, executed once for each time of modification."""
    # A name for each path: the module of a class is looked up by name, to hash its code and to resolve its annotations.
    name = f"elmokit_task_{file.stem}_{crc32(str(file).encode('utf-8', 'surrogateescape')):08x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is not a file of Python code: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def to_device(batch: Any, device: torch.device) -> Any:
    """Move a batch to a device: a NamedTuple whose fields are tensors, NamedTuples, or anything else, which stays."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(field, device) for field in batch))
    return batch
