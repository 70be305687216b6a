"""A trained task model: it predicts, scores, and is saved as a directory (see `task_model_files`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file

from elmokit.checkpoints import loading
from elmokit.checkpoints.errors import CheckpointError, check_shapes, non_finite
from elmokit.checkpoints.overwriting import check_overwritable
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import CharCNNConfig
from elmokit.embed.embedder import Embedder
from elmokit.fs.atomic import atomic_directory, check_output
from elmokit.fs.paths import expand_user
from elmokit.nn.elmo import Elmo
from elmokit.runtime import pick_device
from elmokit.tasks.config import WordsConfig
from elmokit.tasks.examples import check_words
from elmokit.tasks.layer_cache import BiLMLayers, LayerCache
from elmokit.tasks.report import TaskScores
from elmokit.tasks.task import Task, TaskNetwork
from elmokit.tasks.task_model_files import (
    BILM,
    CONFIG,
    ENCODER,
    FORMAT_VERSION,
    LAYOUT,
    WEIGHTS,
    WORDS,
    Description,
    own_weights,
    read_config,
    read_tensors,
    read_vectors,
    read_words,
    write_vectors,
    write_words,
)
from elmokit.tasks.training import ExampleSet, copied, predict, shapes_of
from elmokit.tasks.transformer_encoder import TransformerEncoder
from elmokit.tasks.word_batches import Sentences, WordTable
from elmokit.tasks.word_encoder import CHARACTERS, WordEncoder, mix_weights
from elmokit.text.tokenizer import refuse_table
from elmokit.text.tokenizers import get_tokenizer

WORDS_AT_ONCE = 16_384  # of examples that are held in memory to be predicted


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
        model: The biLM, which the network holds, and freezes if it is not fine-tuned; None with elmo "none".
        encoder: Another encoder whose vectors the network reads; None: none.

    Returns:
        The network, on the device of the biLM or else PyTorch's default.

    Raises:
        ValueError: The network reads ELMo, and there is no model.
    """
    elmo = start = None
    if config.elmo != "none":
        if model is None:
            raise ValueError('the network reads ELMo: give a pretrained model, or choose elmo "none"')
        num_mixes = 2 if config.elmo == "both" else 1
        fixed = mix_weights(config.mix, model.config.num_representations)
        elmo = Elmo(model.bilm, num_mixes, config.elmo_dropout, freeze=not config.finetune, fixed_weights=fixed)
        start = model.start(model.single_sentence_state)
    return task.network(WordEncoder(config, table, elmo, start, None if encoder is None else encoder.shape))


def character_cnns(config: WordsConfig, model: Pretrained | None) -> list[CharCNNConfig]:
    """The character CNNs that read a batch: the biLM's if it is fine-tuned, and the network's own."""
    configs = [CHARACTERS] if config.character_dim else []
    if config.finetune:
        if model is None or model.config.char_cnn is None:
            raise ValueError("only a biLM that reads characters can be fine-tuned with a task: leave finetune off")
        configs.insert(0, model.config.char_cnn)
    return configs


class FrozenVectors(NamedTuple):
    """The caches of vectors of frozen encoders; None for an encoder that the network does not read."""

    layers: LayerCache | None  # layers of the biLM
    states: LayerCache | None  # hidden states of another encoder


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
        tokenizer: Name of the tokenizer that splits strings.
    """

    def __init__(
        self,
        task: Task,
        network: TaskNetwork,
        table: WordTable,
        model: Pretrained | None,
        tokenizer: str = "whitespace-1",
        encoder: TransformerEncoder | None = None,
    ) -> None:
        self.task, self.network, self.table = task, network.eval(), table
        self.model, self.encoder = model, encoder
        self.config = network.words.config
        self.tokenizer = tokenizer
        self._tokenize = get_tokenizer(tokenizer).tokenize
        self._layers: BiLMLayers | None = None

    def __repr__(self) -> str:
        trained = sum(parameter.numel() for parameter in self.network.parameters() if parameter.requires_grad)
        return f"TaskModel({self.task.name}, {trained:,} trained parameters, elmo={self.config.elmo!r})"

    @property
    def reads_layers(self) -> bool:
        """Whether the network reads the layers of a frozen biLM, which are computed beforehand."""
        return self.config.elmo != "none" and not self.config.finetune

    def open_caches(self, directory: str | Path | None = None) -> FrozenVectors:
        """Caches of frozen vectors in a directory; None: in memory."""
        dtype = self.config.storage_dtype
        return FrozenVectors(
            layers=LayerCache(self._bilm_layers(), directory, dtype) if self.reads_layers else None,
            states=LayerCache(self.encoder, directory, dtype) if self.encoder is not None else None,
        )

    def _bilm_layers(self) -> BiLMLayers:
        if self._layers is None:
            assert self.model is not None
            device = next(self.network.parameters()).device
            self._layers = BiLMLayers(Embedder(self.model, str(device)))
        return self._layers

    def example_set(self, examples: Sequence[Any], caches: FrozenVectors | None = None) -> ExampleSet:
        """Encode examples for the network, and compute the frozen vectors that the caches lack.

        Args:
            examples: Examples of the task.
            caches: The caches, from `open_caches`; None: new ones in memory.

        Returns:
            The examples with their encoded sentences.
        """
        sentences = [words for example in examples for words in self.task.sentences(example)]
        caches = self.open_caches() if caches is None else caches
        if self.reads_layers:
            self._bilm_layers().warn_of_truncated(sentences)
        for cache in caches:
            if cache is not None:
                cache.add(sentences, progress=cache.directory is not None)
        cnns = character_cnns(self.config, self.model)
        encoded = Sentences(sentences, self.table, character_cnns=cnns, layers=caches.layers, states=caches.states)
        return ExampleSet(self.task, examples, encoded)

    def predict(self, inputs: Iterable[Any]) -> list[Any]:
        """Predict for inputs of the task (see its `from_text`), in order.

        Args:
            inputs: For most tasks lists of words, or strings, which are split by the tokenizer of the biLM, or by
                english-1 if that records none.

        Returns:
            A prediction of the task for each input.

        Raises:
            ValueError: The inputs are a single string, or one is not an input of the task, or too long.
        """
        if isinstance(inputs, str):
            raise ValueError("predict takes a list: write predict([text])")
        refuse_table(inputs)
        return list(self.predict_examples(map(self.example, inputs)))

    def example(self, text: Any) -> Any:
        """Convert an input of `predict` to an example. ValueError if it is not an input of the task."""
        try:
            example = self.task.from_text(text, self._tokenize)
            check_words(self.task, example)
        except (AttributeError, TypeError) as error:
            raise ValueError(
                f"{text!r:.60} is not an input of {self.task.name} ({error}): see its from_text"
            ) from error
        return example

    def predict_examples(self, examples: Iterable[Any], with_probabilities: bool = True) -> Iterator[Any]:
        """Predict for a stream of examples, with about `WORDS_AT_ONCE` words in memory at a time.

        Args:
            examples: Examples of the task, with or without answers.
            with_probabilities: Whether to compute probabilities, which takes time and scores do not need.

        Yields:
            A prediction for each example, in order.

        Raises:
            ValueError: An example is too long, or has a string in place of a list of words; the message gives its
                number.
        """
        batch: list[Any] = []
        words = 0
        for number, example in enumerate(examples, start=1):
            try:
                check_words(self.task, example)
                self.task.check_length(example)
            except ValueError as error:
                raise ValueError(f"example {number}: {error}") from error
            batch.append(example)
            words += sum(map(len, self.task.sentences(example)))
            if words >= WORDS_AT_ONCE:
                yield from predict(self.network, self.example_set(batch), with_probabilities)
                batch, words = [], 0
        if batch:
            yield from predict(self.network, self.example_set(batch), with_probabilities)

    def score(self, examples: Iterable[Any]) -> TaskScores:
        """Predict for examples with answers, and compare.

        Args:
            examples: Examples of the task.

        Returns:
            The scores of the task.

        Raises:
            ValueError: There is no example, or one is inconsistent, has no answer, or is too long; the message gives
                its number. Or a library that the score needs is not installed.
        """
        self.task.check_libraries()
        examples = list(self.task.checked(examples))
        if not examples:
            raise ValueError("there are no examples to score")
        predictions = list(self.predict_examples(examples, with_probabilities=False))
        return TaskScores.of(self.task, examples, predictions)

    def save(self, directory: str | Path, overwrite: bool = False, more_files: Mapping[str, str] | None = None) -> None:
        """Write the model's directory, atomically.

        Args:
            directory: Directory to write.
            overwrite: Replace an earlier task model there.
            more_files: Contents of further files, by name.

        Raises:
            FileExistsError: The directory exists, and is not a task model or `overwrite` is not set.
        """
        check_output(directory, overwrite=overwrite, directory_of=CONFIG)
        check_overwritable(directory, LAYOUT)
        with atomic_directory(directory, overwrite=overwrite) as partial:
            if self.model is not None:
                # A biLM that was trained further no longer fits its softmax.
                loading.save(replace(self.model, softmax=None), partial / BILM)
            if self.encoder is not None:
                self.encoder.save(partial / ENCODER)
            if self.table.vectors is not None:
                write_vectors(self.table.vectors, partial)
            weights = own_weights(self.network.state_dict())
            save_file({name: copied(weight) for name, weight in weights.items()}, partial / WEIGHTS)
            write_words(self.table.words, partial / WORDS)
            described = Description(
                format_version=FORMAT_VERSION,
                task=self.task.name,
                task_config=asdict(self.task.config),
                labels=self.task.labels,
                words_config=self.config,
                num_frequent=self.table.num_frequent,
                tokenizer=self.tokenizer,
            )
            config = json.dumps(asdict(described), indent=2, ensure_ascii=False) + "\n"
            texts = {CONFIG: config, **(more_files or {})}
            for name, text in texts.items():
                # As everywhere, a word, and so a label, may have a lone surrogate.
                (partial / name).write_bytes(text.encode("utf-8", "surrogatepass"))


def load_task_model(directory: str | Path, device: str | None = None, task: type[Task] | None = None) -> TaskModel:
    """Read a task model that `fit` or `TaskModel.save` wrote.

    Args:
        directory: The model's directory.
        device: "cpu", "cuda" or "cuda:N"; None: a GPU if there is one.
        task: Class of the task if it is not one of elmokit's, because a model's files cannot name code to run.

    Returns:
        The model, which predicts as it did when it was written.

    Raises:
        FileNotFoundError: The directory is not a task model.
        CheckpointError: A file is damaged or missing.
        ValueError: The library of its tokenizer, or of another encoder, is not installed; or there is no such device.
    """
    directory = expand_user(directory)
    if not (directory / CONFIG).is_file():
        raise FileNotFoundError(f"{directory} is not a task model: it holds no {CONFIG}")
    configured_task, described = read_config(directory / CONFIG, task)
    config = described.words_config
    model = loading.load(directory / BILM, softmax=False) if config.elmo != "none" else None
    vectors = read_vectors(directory) if config.vectors is not None else None
    table = WordTable(read_words(directory / WORDS), described.num_frequent, vectors)
    picked, encoder = pick_device(device), None
    if config.encoder is not None:
        encoder = TransformerEncoder.load(directory / ENCODER, config.encoder_pooling, str(picked))
    network = _with_weights(directory / WEIGHTS, lambda: make_network(configured_task, config, table, model, encoder))
    return TaskModel(configured_task, network.to(picked), table, model, described.tokenizer, encoder)


def _with_weights(path: Path, make: Callable[[], TaskNetwork]) -> TaskNetwork:
    """The network that `make` returns, with its own weights from a file. CheckpointError if they do not fit."""
    weights = read_tensors(path, load_file)
    if wrong := non_finite(weights):
        raise CheckpointError(f"{path} has weights that are not finite: {', '.join(wrong)}; fit the model again")
    try:
        with torch.device("meta"):  # shapes only: memory is allocated when they are known to be those of the file
            expected = make().state_dict()
        check_shapes(path, shapes_of(own_weights(expected)), shapes_of(weights))
        network = make()
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"{path.parent}: its settings and labels make no network ({error!r})") from error
    network.load_state_dict(weights, strict=False)  # the weights of the biLM are already loaded
    return network
