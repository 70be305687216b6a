"""A trained task model: it predicts, scores, and is saved as a directory that needs no other file.

config.json           format_version, the task and its settings, labels, the settings of words
weights.safetensors   the network's weights, without the biLM's
words.json            the words of the training set, and those with pretrained vectors
vectors.safetensors   `vectors` (V, D), if the network reads pretrained vectors
bilm/                 the biLM in elmokit's format, if the network reads ELMo
encoder/              another encoder in Hugging Face's format, if the network reads one
report.json           the report of the training
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmokit.checkpoints import (
    CheckpointError,
    Layout,
    Pretrained,
    check_overwritable,
    check_shapes,
    load,
    save,
)
from elmokit.config import CharCNNConfig
from elmokit.data import chunks, read_texts
from elmokit.embed import Embedder
from elmokit.fs import atomic_directory, check_output, read_json, suffixes_of
from elmokit.nn import Elmo, shapes_only
from elmokit.progress import ProgressBar
from elmokit.runtime import check_list, pick_device
from elmokit.settings import conform
from elmokit.tasks.config import TASKS, WordsConfig
from elmokit.tasks.fitting.frozen import BiLMLayers, TransformerEncoder, VectorCache
from elmokit.tasks.fitting.task import (
    Task,
    TaskNetwork,
    TaskScores,
    find_task,
    read_examples,
    read_table,
)
from elmokit.tasks.fitting.words import (
    CHARACTERS,
    Sentences,
    WordEncoder,
    WordTable,
    WordVectors,
    mix_weights,
)
from elmokit.text import get_tokenizer

WORDS_AT_ONCE = 16_384  # of examples that are held in memory to be predicted
PADDED_WORDS = (
    16_384  # of a batch of several examples: a long one does not pad the others to its length
)

CONFIG, WEIGHTS, WORDS = "config.json", "weights.safetensors", "words.json"
BILM, ENCODER, VECTORS, REPORT = "bilm", "encoder", "vectors.safetensors", "report.json"
LAYOUT = Layout(
    CONFIG,
    frozenset({"format_version", "task"}),
    frozenset({WEIGHTS, WORDS, VECTORS, BILM, ENCODER, REPORT}),
)


@dataclass(frozen=True)
class Description:
    """The content of config.json; `task_config` are the settings of the task."""

    format_version: Literal[4]
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
        self.lengths = np.array(
            [self.task.length(example) for example in self.examples], dtype=np.int64
        )

    def batch(self, chosen: np.ndarray, device: torch.device) -> Any:
        """The batch of the examples with the given indices."""
        examples = [self.examples[index] for index in chosen]
        return to_device(self.task.collate(examples, self.sentences.batch), device)


def to_device(batch: Any, device: torch.device) -> Any:
    """Move a batch to a device: a NamedTuple whose fields are tensors, NamedTuples, or anything
    else, which stays.
    """
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(field, device) for field in batch))
    return batch


def split_by_length(
    order: np.ndarray, lengths: np.ndarray, batch_size: int
) -> Iterator[np.ndarray]:
    """Indices of examples, the shortest first, in batches of `batch_size`, or fewer if they are
    long.
    """
    begin = 0
    for end in range(1, len(order) + 1):
        if (
            end == len(order)
            or end - begin == batch_size
            or (end + 1 - begin) * lengths[order[end]] > PADDED_WORDS
        ):
            yield order[begin:end]
            begin = end


@torch.no_grad()
def predict(
    network: TaskNetwork, examples: ExampleSet, with_probabilities: bool = True
) -> list[Any]:
    """Predict for all examples.

    Args:
        network: The network, which is switched to evaluation mode.
        examples: Examples with or without answers.
        with_probabilities: As in `TaskNetwork.decode`.

    Returns:
        The predictions, in the order of the examples.
    """
    task, lengths, device = examples.task, examples.lengths, next(network.parameters()).device
    decoded: list[Any] = [None] * len(examples.examples)  # None for an example without words
    network.eval()
    order = np.argsort(lengths, kind="stable")
    for chosen in split_by_length(order[lengths[order] > 0], lengths, task.prediction_batch_size):
        answers = network.decode(examples.batch(chosen, device), with_probabilities)
        for index, answer in zip(chosen, answers, strict=True):
            decoded[index] = answer
    return task.predictions(examples.examples, decoded)


# --- The model ------------------------------------------------------------------------------------


def make_network(
    task: Task,
    config: WordsConfig,
    table: WordTable,
    model: Pretrained | None,
    encoder: TransformerEncoder | None = None,
) -> TaskNetwork:
    """An untrained network for the labels of a task.

    Args:
        task: The task with its labels.
        config: Which vectors the network reads for each word.
        table: The words of the training set.
        model: The biLM, which the network holds, and freezes if it is not fine-tuned; None with
            elmo "none".
        encoder: Another encoder whose vectors the network reads; None: none.

    Returns:
        The network, on the device of the biLM or else PyTorch's default.
    """
    elmo = start = None
    if model is not None:
        num_mixes = 2 if config.elmo == "both" else 1
        fixed = mix_weights(config.mix, model.config.num_representations)
        elmo = Elmo(
            model.bilm,
            num_mixes,
            config.elmo_dropout,
            freeze=not config.finetune,
            fixed_weights=fixed,
        )
        start = model.start(model.single_sentence_state)
    return task.network(
        WordEncoder(config, table, elmo, start, None if encoder is None else encoder.shape)
    )


def _split(tokenizer: str, text: str) -> list[str]:
    return get_tokenizer(tokenizer).split(text)  # whose library is needed only now


def text_tokenizer(model: Pretrained | None) -> Callable[[str], list[str]]:
    """Splits strings as the training text of the biLM was, or by english-1 if there is none, or it
    records none.
    """
    return partial(_split, (model and model.tokenizer) or "english-1")


class TaskModel:
    """A task's trained network, with its vocabulary and the encoders whose vectors it reads.

    `load_task_model` reads one from its directory.

    Attributes:
        task: The task, with its settings and labels.
        network: The network, in evaluation mode.
        table: The words of the training set.
        model: The biLM; None if the network does not read ELMo.
        encoder: Another pretrained encoder; None if the network reads none.
        config: Which vectors the network reads.
        tokenize: Splits strings, see `text_tokenizer`.
    """

    def __init__(
        self,
        task: Task,
        network: TaskNetwork,
        table: WordTable,
        model: Pretrained | None,
        encoder: TransformerEncoder | None = None,
    ) -> None:
        self.task, self.network, self.table = task, network.eval(), table
        self.model, self.encoder = model, encoder
        self.config = config = network.words.config
        self.tokenize = text_tokenizer(model)
        self._cnns: list[CharCNNConfig] = (
            [CHARACTERS] if config.character_dim else []
        )  # the first truncates words
        self._layers = None
        if model is not None and config.finetune:
            if model.config.char_cnn is None:
                raise ValueError(
                    "only a biLM that reads characters can be fine-tuned with a task: leave "
                    "finetune off"
                )
            self._cnns.insert(0, model.config.char_cnn)
        elif model is not None:
            self._layers = BiLMLayers(Embedder(model, str(next(network.parameters()).device)))

    def __repr__(self) -> str:
        trained = sum(
            parameter.numel() for parameter in self.network.parameters() if parameter.requires_grad
        )
        return (
            f"TaskModel({self.task.name}, {trained:,} trained parameters, "
            f"elmo={self.config.elmo!r})"
        )

    def open_caches(self, directory: str | Path | None = None) -> list[VectorCache | None]:
        """Caches of the biLM's layers and of the other encoder's states, None for one that the
        network does not read.

        Args:
            directory: Directory of the caches; None: in memory.
        """
        dtype = self.config.storage_dtype
        encoders = (self._layers, self.encoder)
        return [
            None if encoder is None else VectorCache(encoder, directory, dtype)
            for encoder in encoders
        ]

    def example_set(
        self, examples: Sequence[Any], caches: Sequence[VectorCache | None] | None = None
    ) -> ExampleSet:
        """Encode examples for the network, and compute the frozen vectors that the caches lack.

        Args:
            examples: Examples of the task.
            caches: The caches, from `open_caches`; None: new ones in memory.

        Returns:
            The examples with their encoded sentences.
        """
        sentences = [words for example in examples for words in self.task.sentences(example)]
        layers, states = self.open_caches() if caches is None else caches
        for cache in (layers, states):
            if cache is not None:
                cache.add(sentences)
        encoded = Sentences(
            sentences, self.table, character_cnns=self._cnns, layers=layers, states=states
        )
        return ExampleSet(self.task, examples, encoded)

    def predict(self, inputs: Iterable[Any]) -> list[Any]:
        """Predict for inputs of the task (see its `from_text`), in order.

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

    def example(self, text: Any) -> Any:
        """Convert an input of `predict` to an example. ValueError if it is not an input of the
        task, or too long.
        """
        if isinstance(text, Mapping) or (isinstance(text, str) and not self.task.reads_text):
            raise ValueError(f"{text!r:.60} is not an input of {self.task.name}: see its from_text")
        try:
            example = self.task.from_text(text, self.tokenize)
            self.task.check_sentences(example)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"{text!r:.60} is not an input of {self.task.name} ({error})"
            ) from error
        return example

    def predict_examples(
        self, examples: Iterable[Any], with_probabilities: bool = True
    ) -> Iterator[Any]:
        """Predict for a stream of examples, with about `WORDS_AT_ONCE` words in memory at a time.

        Args:
            examples: Examples of the task, with or without answers.
            with_probabilities: Whether to compute probabilities, which takes time and scores do not
                need.

        Yields:
            A prediction for each example, in order.

        Raises:
            ValueError: An example is too long, or has a string in place of a list of words.
        """

        def words(example: Any) -> int:
            self.task.check_sentences(example)
            return sum(map(len, self.task.sentences(example)))

        for chunk in chunks(examples, words, WORDS_AT_ONCE):
            yield from predict(self.network, self.example_set(chunk), with_probabilities)

    def score(self, examples: Iterable[Any]) -> TaskScores:
        """Predict for examples with answers, and compare.

        Args:
            examples: Examples of the task.

        Returns:
            The scores of the task.

        Raises:
            ValueError: There is no example, or one is inconsistent, has no answer, or is too long;
                the message gives its number.
        """
        examples = list(self.task.checked(examples))
        if not examples:
            raise ValueError("there are no examples to score")
        return self.task.all_scores(
            examples, list(self.predict_examples(examples, with_probabilities=False))
        )

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
        check_overwritable(directory, LAYOUT)
        config, labels = asdict(self.task.config), self.task.labels
        described = Description(
            4, self.task.name, config, labels, self.config, self.table.num_frequent
        )
        vectors = self.table.vectors
        words = {
            "words": self.table.words,
            "with vectors": () if vectors is None else vectors.words,
        }
        with atomic_directory(directory, overwrite=overwrite) as partial:
            if self.model is not None:
                # A biLM that was trained further no longer fits its softmax.
                save(replace(self.model, softmax=None), partial / BILM)
            if self.encoder is not None:
                self.encoder.save(partial / ENCODER)
            if vectors is not None:
                save_arrays({"vectors": vectors.vectors}, partial / VECTORS)
            # Copies, since safetensors refuses tensors that share memory, as tied weights do.
            save_file(
                {name: weight.clone() for name, weight in own_weights(self.network).items()},
                partial / WEIGHTS,
            )
            (partial / WORDS).write_text(json.dumps(words, indent=0) + "\n", encoding="utf-8")
            (partial / CONFIG).write_text(
                json.dumps(asdict(described), indent=2) + "\n", encoding="utf-8"
            )
            if report:
                (partial / REPORT).write_text(report, encoding="utf-8")


def own_weights(network: TaskNetwork) -> dict[str, Tensor]:
    """A network's tensors by name, without those of the biLM, which has a directory of its own."""
    tensors = network.state_dict().items()
    return {
        name: value.contiguous()
        for name, value in tensors
        if not name.startswith("words.elmo.bilm.")
    }


def load_task_model(
    directory: str | Path, device: str | None = None, task: type[Task] | None = None
) -> TaskModel:
    """Read a task model that `fit` or `TaskModel.save` wrote.

    Args:
        directory: The model's directory.
        device: "cpu", "cuda" or "cuda:N"; None: a GPU if there is one.
        task: Class of the task if it is not one of elmokit's, because a model's files cannot name
            code to run.

    Returns:
        The model, which predicts as it did when it was written.

    Raises:
        FileNotFoundError: The directory is not a task model, or a file is missing.
        CheckpointError: A file is damaged.
        ValueError: The library of its tokenizer, or of another encoder, is not installed; or there
            is no such device.
    """
    directory = Path(directory).expanduser()
    if not (directory / CONFIG).is_file():
        raise FileNotFoundError(f"{directory} is not a task model: it holds no {CONFIG}")
    if (directory / "model.safetensors").is_file():
        raise CheckpointError(
            f"{directory} is a language model, not a task model: `elmokit fit` trains one from it"
        )
    picked = pick_device(device)
    try:
        described: Description = conform(Description, read_json(directory / CONFIG))
        task_class = find_task(described.task) if task is None and described.task in TASKS else task
        if task_class is None or task_class.name != described.task:
            raise ValueError(
                f"it is of the task {described.task!r}: give its class if it is not one of "
                f"elmokit's"
            )
        configured = task_class(conform(task_class.Config, described.task_config), described.labels)
        config = described.words_config
        words = conform(dict[str, tuple[str, ...]], read_json(directory / WORDS))
        vectors = model = encoder = None
        if config.vectors is not None:
            vectors = WordVectors(
                words["with vectors"], load_arrays(directory / VECTORS)["vectors"]
            )
        if config.elmo != "none":
            model = load(directory / BILM, softmax=False)
        if config.encoder is not None:
            encoder = TransformerEncoder.load(
                directory / ENCODER, config.encoder_pooling, str(picked)
            )
        parts = (
            configured,
            config,
            WordTable(words["words"], described.num_frequent, vectors),
            model,
            encoder,
        )
        weights = load_file(directory / WEIGHTS)
        with shapes_only():  # memory is allocated when the shapes are known to be those of the file
            expected = own_weights(make_network(*parts))
        shapes = (
            {name: tuple(value.shape) for name, value in each.items()}
            for each in (expected, weights)
        )
        check_shapes(directory / WEIGHTS, *shapes)
        network = make_network(*parts)
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
    network.load_state_dict(weights, strict=False)  # the weights of the biLM are already loaded
    return TaskModel(configured, network.to(picked), parts[2], model, encoder)


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
            f"{self.examples} examples\n\nagainst the answers in the file, in "
            f"percent\n{self.scores}"
        )


def _loaded(model: TaskModel | str | Path, device: str | None, task: str | None) -> TaskModel:
    if isinstance(model, TaskModel):
        return model
    return load_task_model(model, device, find_task(task) if task else None)


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
        output: JSON lines, one for each example; with a tagger and a suffix other than .jsonl, a
            copy of the file with the predicted tags: in the tag column of CoNLL-U, in a new last
            column of other files. For raw text and tables, each line has a word and its tag.
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
    check_output(output, [file], overwrite=overwrite)
    model = _loaded(model, device, task)
    is_table = column is not None or suffixes_of(file).kind in model.task.tables
    if text:
        examples = map(model.example, read_texts(file, column))
    elif is_table:
        examples = read_table(model.task, file, model.tokenize, False, column)
    else:
        examples = model.task.read(file, with_answers=False)
    gold, kept, count = [], [], 0
    if not text:
        with suppress(ValueError):  # it has no answers
            read = (
                read_table(model.task, file, model.tokenize, True, column)
                if is_table
                else model.task.read(file)
            )
            gold = list(model.task.checked(read))

    def predictions() -> Iterator[Any]:
        nonlocal count
        for prediction in model.predict_examples(bar):
            count += 1
            if gold:
                kept.append(prediction)
            yield prediction

    with ProgressBar(examples, desc="predict", unit=" examples", unit_scale=True) as bar:
        model.task.write(predictions(), output, None if text or is_table else file, overwrite)
    return PredictedFile(
        count, model.task.all_scores(gold, kept) if gold and len(gold) == count else None
    )


def score_file(
    model: TaskModel | str | Path,
    file: str | Path,
    *,
    device: str | None = None,
    task: str | None = None,
) -> TaskScores:
    """Score a task model on a file of examples with answers.

    Args:
        model: The task model, or its directory.
        file: A file in the task's format, or a table as for `fit`.
        device: Device of a model that is loaded here.
        task: FILE.py:CLASS of a task of your own, for a model that is loaded here.

    Returns:
        The scores, in the order of the task's own `score`.

    Raises:
        FileNotFoundError: The model or the file is missing.
        ValueError: The file is not in the task's format, or an example has no answer.
    """
    model = _loaded(model, device, task)
    return model.score(read_examples(model.task, file, model.tokenize))
