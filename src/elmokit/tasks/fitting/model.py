"""A trained task model: it predicts, scores, and is saved as a directory that needs no other file.

config.json           format_version, the task and its settings, labels, the settings of words
weights.safetensors   the network's weights
words.json            the words of the training set
bilm/                 the biLM in elmokit's format, if the network reads ELMo
report.json           the report of the training
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmokit.checkpoints import CheckpointError, Pretrained, load, save
from elmokit.data import TextFile, chunks, is_table, read_rows
from elmokit.embed import Embedder
from elmokit.fs import atomic_directory, check_output, read_json
from elmokit.progress import ProgressBar
from elmokit.runtime import check_list, init_on_meta, pick_device
from elmokit.settings import conform
from elmokit.tasks import TASKS, WordsConfig
from elmokit.tasks.fitting.layers import LayerCache
from elmokit.tasks.fitting.task import (
    Task,
    TaskNetwork,
    TaskScores,
    check_words,
    checked,
    find_task,
    read_examples,
)
from elmokit.tasks.fitting.words import Sentences, WordEncoder, WordTable

WORDS_AT_ONCE = 16_384  # words of examples held in memory for prediction
PADDED_WORDS = 16_384  # padded words per batch of several examples: a long one pads all others

CONFIG, WEIGHTS, WORDS = "config.json", "weights.safetensors", "words.json"
BILM, REPORT = "bilm", "report.json"
# By which `check_output` knows a task model that may be replaced.
LAYOUT: dict[str, Any] = {
    "directory_of": CONFIG,
    "keys": {"format_version", "task"},
    "own_files": re.compile("|".join((WEIGHTS, WORDS, BILM, REPORT))),
}


@dataclass(frozen=True)
class Description:
    """The content of config.json; `task_config` are the settings of the task."""

    format_version: Literal[6]
    task: str
    task_config: dict[str, Any]
    labels: dict[str, Any]
    words_config: WordsConfig
    num_frequent: int


# --- Batches --------------------------------------------------------------------------------------


@dataclass
class ExampleSet:
    """Examples and their encoded sentences, from which batches are made."""

    task: Task
    examples: Sequence[Any]
    sentences: Sentences

    def __post_init__(self) -> None:
        lengths = [self.task.length(example) for example in self.examples]
        self.lengths = np.array(lengths, dtype=np.int64)

    def batch(self, chosen: np.ndarray, device: torch.device) -> Any:
        """The batch of the examples with the given indices."""
        examples = [self.examples[index] for index in chosen]
        return to_device(self.task.collate(examples, self.sentences.batch), device)


def to_device(batch: Any, device: torch.device) -> Any:
    """Move a batch, a NamedTuple of tensors, NamedTuples and anything else, to a device."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(field, device) for field in batch))
    return batch


def split_by_length(
    order: np.ndarray, lengths: np.ndarray, batch_size: int
) -> Iterator[np.ndarray]:
    """Batches of examples, the shortest first: `batch_size` of them, or fewer long ones."""
    begin = 0
    for end in range(1, len(order) + 1):
        is_full = end == len(order) or end - begin == batch_size
        if is_full or (end + 1 - begin) * lengths[order[end]] > PADDED_WORDS:
            yield order[begin:end]
            begin = end


@torch.no_grad()
def predict(network: TaskNetwork, examples: ExampleSet) -> list[Any]:
    """Predict for all examples, in their order; the network is switched to evaluation mode."""
    task, lengths, device = examples.task, examples.lengths, next(network.parameters()).device
    decoded: list[Any] = [None] * len(examples.examples)  # None for an example without words
    network.eval()
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    for chosen in split_by_length(order, lengths, task.fit_config.batch_size):
        answers = network.decode(examples.batch(chosen, device))
        for index, answer in zip(chosen, answers, strict=True):
            decoded[index] = answer
    return task.predictions(examples.examples, decoded)


# --- The model ------------------------------------------------------------------------------------


class TaskModel:
    """A task's trained network, with its vocabulary and the biLM whose layers it reads.

    `load_task_model` reads one from its directory.

    Attributes:
        task: The task, with its settings and labels.
        network: The network, in evaluation mode.
        table: The words of the training set.
        model: The biLM; None if the network does not read ELMo.
        config: Which vectors the network reads.
    """

    def __init__(
        self, task: Task, network: TaskNetwork, table: WordTable, model: Pretrained | None
    ) -> None:
        self.task, self.network, self.table, self.model = task, network.eval(), table, model
        self.config = network.words.config
        self._embedder: Embedder | None = None
        if model is not None:
            self._embedder = Embedder(model, str(next(network.parameters()).device))

    def __repr__(self) -> str:
        return f"TaskModel({self.task.name}, elmo={self.config.elmo!r})"

    def open_cache(self, directory: str | Path | None = None) -> LayerCache | None:
        """A cache of the frozen biLM's layers, if the network reads them.

        Args:
            directory: Directory of the caches; None: in memory.
        """
        if self._embedder is None:
            return None
        return LayerCache(self._embedder, directory)

    def example_set(self, examples: Sequence[Any], cache: LayerCache | None = None) -> ExampleSet:
        """Encode examples for the network, and compute the layers that the cache lacks.

        Args:
            examples: Examples of the task.
            cache: The cache, from `open_cache`; None: a new one in memory.
        """
        sentences = [words for example in examples for words in self.task.sentences(example)]
        cache = cache or self.open_cache()
        if cache is not None:
            cache.add(sentences)
        reads_characters = self.config.character_dim > 0
        encoded = Sentences(sentences, self.table, reads_characters, cache)
        return ExampleSet(self.task, examples, encoded)

    def predict(self, inputs: Iterable[Any]) -> list[Any]:
        """Predict for inputs of the task (see its `make_example`), in order.

        Args:
            inputs: For most tasks lists of words, or strings, which are split by the tokenizer of
                the biLM, or by english-1 if that records none.

        Returns:
            A prediction of the task for each input.

        Raises:
            ValueError: The inputs are a single string or a table, or one is not an input of the
                task, or too long.
        """
        check_list(inputs)
        return list(self.predict_examples(map(self.example, inputs)))

    def example(self, inputs: Any) -> Any:
        """Convert an input of `predict` to an example."""
        try:
            if isinstance(inputs, Mapping):
                raise TypeError("it is a mapping")
            return check_words(self.task, self.task.make_example(inputs))
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"{inputs!r:.60} is not an input of {self.task.name} ({error})"
            ) from error

    def predict_examples(self, examples: Iterable[Any]) -> Iterator[Any]:
        """Predict for a stream of examples, with about `WORDS_AT_ONCE` words in memory at a time.

        Args:
            examples: Examples of the task, with or without answers.

        Yields:
            A prediction for each example, in order.

        Raises:
            ValueError: An example is too long, or has a string in place of a list of words.
        """

        def num_words(example: Any) -> int:
            return sum(map(len, self.task.sentences(check_words(self.task, example))))

        for chunk in chunks(examples, WORDS_AT_ONCE, num_words):
            yield from predict(self.network, self.example_set(chunk))

    def score(self, examples: str | Path | Iterable[Any]) -> TaskScores:
        """Predict for examples with answers, and compare.

        Args:
            examples: A file, a table or a list of examples, as for `fit`.

        Returns:
            The scores of the task.

        Raises:
            ValueError: There is no example, or one is inconsistent, has no answer, or is too long;
                the message gives its number.
        """
        examples = list(checked(self.task, read_examples(self.task, examples)))
        if not examples:
            raise ValueError("there are no examples to score")
        return self.task.score(examples, list(self.predict_examples(examples)))

    def save(self, directory: str | Path, overwrite: bool = False, report: str = "") -> None:
        """Write the model's directory, atomically.

        Args:
            directory: Directory to write.
            overwrite: Replace an earlier task model there.
            report: The report of its training, as JSON.

        Raises:
            FileExistsError: The directory exists, and is not a task model or `overwrite` is not
                set.
        """
        check_output(directory, [], overwrite=True, **LAYOUT)
        described = Description(
            format_version=6,
            task=self.task.name,
            task_config=asdict(self.task.config),
            labels=self.task.labels,
            words_config=self.config,
            num_frequent=self.table.num_frequent,
        )
        # Copies, since safetensors refuses tensors that share memory, as tied weights do.
        weights = self.network.state_dict()
        weights = {
            name: weights[name].clone(memory_format=torch.contiguous_format) for name in weights
        }
        with atomic_directory(directory, overwrite=overwrite) as partial:
            if self.model is not None:
                save(replace(self.model, softmax=None), partial / BILM)
            save_file(weights, partial / WEIGHTS)
            for name, content in (
                (WORDS, json.dumps(self.table.words, indent=0) + "\n"),
                (CONFIG, json.dumps(asdict(described), indent=2) + "\n"),
                (REPORT, report),
            ):
                if content:
                    (partial / name).write_text(content, encoding="utf-8")


def load_task_model(
    directory: str | Path, device: str | None = None, task: type[Task] | str | None = None
) -> TaskModel:
    """Read a task model that `fit` or `TaskModel.save` wrote.

    Args:
        directory: The model's directory.
        device: "cpu", "cuda" or "cuda:N"; None: a GPU if there is one.
        task: The class of a task of your own, or FILE.py:CLASS, because a model's files cannot name
            code to run.

    Returns:
        The model, which predicts as it did when it was written.

    Raises:
        FileNotFoundError: The directory is not a task model, or a file is missing.
        CheckpointError: A file is damaged.
        ValueError: The library of its tokenizer is not installed, or there is no such device.
    """
    directory = Path(directory).expanduser()
    if not (directory / CONFIG).is_file():
        raise FileNotFoundError(f"{directory} is not a task model: it holds no {CONFIG}")
    if (directory / "model.safetensors").is_file():
        raise CheckpointError(
            f"{directory} is a language model, not a task model: `elmokit fit` trains one from it"
        )
    picked = pick_device(device)
    if isinstance(task, str):
        task = find_task(task)
    try:
        described: Description = conform(Description, read_json(directory / CONFIG))
        config = described.words_config
        task_class = find_task(described.task) if task is None and described.task in TASKS else task
        if task_class is None or task_class.name != described.task:
            raise ValueError(
                f"it is of the task {described.task!r}: give its class if it is not one of "
                f"elmokit's"
            )
        words = conform(tuple[str, ...], read_json(directory / WORDS))
        model = None
        if config.elmo != "none":
            model = load(directory / BILM, softmax=False)
        table = WordTable(words, described.num_frequent)
        configured = task_class(
            conform(task_class.Config, described.task_config),
            described.labels,
            (model and model.tokenizer) or "english-1",
        )
        weights = load_file(directory / WEIGHTS)
        with init_on_meta():  # no memory is allocated before the shapes are those of the file
            shapes = configured.network(WordEncoder(config, table, model))
        shapes.load_state_dict(weights, assign=True)
        network = configured.network(WordEncoder(config, table, model))
        network.load_state_dict(weights)
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        OverflowError,
        SafetensorError,
    ) as error:
        raise CheckpointError(
            f"{directory} is not a task model, or is damaged: {error!r}"
        ) from error
    return TaskModel(configured, network.to(picked), table, model)


# --- Files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PredictedFile:
    """The number of predicted examples, and their scores if the file holds an answer to each."""

    examples: int
    scores: TaskScores | None = None

    def __str__(self) -> str:
        if self.scores is None:
            return f"{self.examples} examples, not scored"
        return (
            f"{self.examples} examples\n\nagainst the answers in the file, in percent\n"
            f"{self.scores}"
        )


def predict_file(
    model: TaskModel | str | Path,
    file: str | Path,
    output: str | Path,
    *,
    text: bool = False,
    device: str | None = None,
    task: str | None = None,
    overwrite: bool = False,
    column: str | None = None,
) -> PredictedFile:
    """Predict for a file of any size, and write the output atomically.

    If the file holds gold answers, the predictions are scored; both are held in memory for that.

    Args:
        model: The task model, or its directory.
        file: A file in the task's format, or a table as for `fit`, whose answers may be missing; or
            with `text` raw text, one input per line, or a table.
        output: A table (.csv, .tsv, .jsonl or .parquet) with a row for each example; from a table,
            its rows with the predictions. Of a tagger, .csv and .parquet have a row for each word,
            and .conllu, .conll, .iob2, .bio, .txt and .tsv are a copy of the file with the
            predicted tags: in the tag column of CoNLL-U, in a new last column of other files; for
            raw text and tables, each line has a word and its tag.
        text: The file is raw text, to be tokenized with the model's tokenizer.
        device: Device of a model that is loaded here.
        task: FILE.py:CLASS of a task of your own, for a model that is loaded here.
        overwrite: Replace an output that exists.
        column: The column of a table with the inputs; None: that of the training, or with `text`
            "text".

    Returns:
        The number of examples, and their scores if the file holds a valid answer to each.

    Raises:
        FileExistsError: The output exists, and `overwrite` is not set.
        FileNotFoundError: The model or the file is missing.
        ValueError: The output is the input or a directory, the file is not in the task's format, or
            `text` is set and an input of the task is not a line of raw text.
    """
    file, output = Path(file), Path(output)
    inputs = [file, model]
    if not isinstance(model, TaskModel):
        model = load_task_model(model, device, task)
    check_output(output, inputs, overwrite=overwrite, suffixes=model.task.formats)
    gold, predictions = [], []
    if text:
        (lines,) = TextFile.open([file], model.task.tokenizer, column=column)
        examples = map(model.example, lines.lines())
    else:
        examples = read_examples(model.task, file, "predict", column)
        with suppress(ValueError):  # it has no answers
            gold = list(checked(model.task, read_examples(model.task, file, "score", column)))
    count = 0

    def counted(predictions_of_file: Iterable[Any]) -> Iterator[Any]:
        nonlocal count
        for prediction in predictions_of_file:
            count += 1
            if gold:
                predictions.append(prediction)
            yield prediction

    is_raw = text or column is not None or bool(model.task.columns(file))
    rows = (row for _, row in read_rows(file)) if is_raw and is_table(file) else None
    with ProgressBar(examples, desc="predict", unit=" examples", unit_scale=True) as bar:
        predicted = counted(model.predict_examples(bar))
        model.task.write(predicted, output, None if is_raw else file, overwrite, rows)
    scores = None
    if gold and len(gold) == count:
        with suppress(ValueError):  # no label may be known
            scores = model.task.score(gold, predictions)
    return PredictedFile(count, scores)
