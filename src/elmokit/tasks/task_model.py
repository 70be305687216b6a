"""A trained task model, and its directory, which is self-contained.

config.json           format_version, the task and its settings, labels, the settings of words
weights.safetensors   the network's weights, without the biLM's
words.txt             the words of the training set, one per line
bilm/                 the biLM in elmokit's format, if the network reads ELMo
report.json           the report of the training
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmokit.checkpoints import loading
from elmokit.checkpoints.errors import CheckpointError, check_shapes
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import CharCNNConfig
from elmokit.embed.embedder import Embedder
from elmokit.fs.atomic import atomic_directory
from elmokit.fs.reading import read_lines
from elmokit.nn.elmo import Elmo
from elmokit.runtime import pick_device
from elmokit.tasks.config import WordsConfig
from elmokit.tasks.layer_cache import BiLMLayers, LayerCache
from elmokit.tasks.task import TASKS, Task, TaskNetwork, find_task
from elmokit.tasks.training import ExampleSet, predict
from elmokit.tasks.word_batches import Sentences, WordTable
from elmokit.tasks.word_encoder import CHARACTERS, WordEncoder, mix_weights
from elmokit.text.tokenizers import get_tokenizer

FORMAT_VERSION = 2
BILM = "bilm"
BILM_PREFIX = "words.elmo.bilm."  # of the names of its weights
KEYS = {"format_version", "task", "task_config", "labels", "words_config", "num_frequent", "tokenizer"}
WORDS_AT_ONCE = 16_384  # of the examples that are predicted together


def make_network(task: Task, config: WordsConfig, table: WordTable, model: Pretrained | None) -> TaskNetwork:
    """An untrained network for the labels of a task."""
    elmo = None
    if config.elmo != "none":
        if model is None:
            raise ValueError('the network reads ELMo: give a pretrained model, or choose elmo "none"')
        num_mixes = 2 if config.elmo == "both" else 1
        fixed = mix_weights(config.mix, model.config.num_representations)
        elmo = Elmo(model.bilm, num_mixes, config.elmo_dropout, freeze=not config.finetune, fixed_weights=fixed)
    return task.network(WordEncoder(config, table, elmo))


def character_cnns(config: WordsConfig, model: Pretrained | None) -> list[CharCNNConfig]:
    """The character CNNs that read a batch: the biLM's if it is fine-tuned, and the network's own."""
    configs = [CHARACTERS] if config.character_dim else []
    if config.finetune:
        if model is None or model.config.char_cnn is None:
            raise ValueError("only a biLM that reads characters can be fine-tuned with a task: leave finetune off")
        configs.insert(0, model.config.char_cnn)
    return configs


class TaskModel:
    """A task's trained network, with the words that it knows and the biLM whose layers it reads.

    `load_task_model` reads one from its directory.
    """

    def __init__(
        self,
        task: Task,
        network: TaskNetwork,
        table: WordTable,
        model: Pretrained | None,
        tokenizer: str = "whitespace-1",
    ) -> None:
        self.task, self.network, self.table, self.model = task, network.eval(), table, model
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

    def encoder(self) -> BiLMLayers:
        """The encoder that computes the layers of the frozen biLM."""
        if self._layers is None:
            assert self.model is not None
            device = next(self.network.parameters()).device
            self._layers = BiLMLayers(Embedder(self.model, str(device)))
        return self._layers

    def example_set(self, examples: Sequence[Any], cache: LayerCache | None = None) -> ExampleSet:
        """Encode examples for the network, and compute the layers that `cache` lacks."""
        sentences = [words for example in examples for words in self.task.sentences(example)]
        if self.reads_layers:
            cache = LayerCache(self.encoder()) if cache is None else cache
            cache.add(sentences, progress=cache.directory is not None)
        cnns = character_cnns(self.config, self.model)
        layers = cache if self.reads_layers else None
        return ExampleSet(self.task, examples, Sentences(sentences, self.table, character_cnns=cnns, layers=layers))

    def predict(self, inputs: Iterable[Any]) -> list[Any]:
        """Predict for inputs of the task (see its `from_text`), in order.

        Args:
            inputs: For most tasks strings, which are tokenized as the training text was, or lists of words.
        """
        if isinstance(inputs, str):
            raise ValueError("predict takes a list: write predict([text])")
        return list(self.predict_examples(map(self.example, inputs)))

    def example(self, text: Any) -> Any:
        """Convert an input of `predict` to an example."""
        return self.task.from_text(text, self._tokenize)

    def predict_examples(self, examples: Iterable[Any]) -> Iterator[Any]:
        """Predict for a stream of examples, with about `WORDS_AT_ONCE` words in memory at a time."""
        batch: list[Any] = []
        words = 0
        for example in examples:
            batch.append(example)
            words += sum(map(len, self.task.sentences(example)))
            if words >= WORDS_AT_ONCE:
                yield from predict(self.network, self.example_set(batch))
                batch, words = [], 0
        if batch:
            yield from predict(self.network, self.example_set(batch))

    def score(self, examples: Iterable[Any]) -> dict[str, float]:
        """Scores from 0 to 1 on examples with answers."""
        example_list = list(examples)
        return self.task.score(example_list, list(self.predict_examples(example_list)))

    def save(self, directory: str | Path, overwrite: bool = False, more_files: Mapping[str, str] | None = None) -> None:
        """Write the model's directory, atomically.

        Args:
            directory: Directory to write.
            overwrite: Replace an existing directory.
            more_files: Texts of further files, by name.

        Raises:
            FileExistsError: The directory exists, and `overwrite` is not set.
        """
        with atomic_directory(directory, overwrite=overwrite) as partial:
            if self.model is not None:
                # A biLM that was trained further no longer fits its softmax.
                loading.save(replace(self.model, softmax=None), partial / BILM)
            save_file(_own_weights(self.network), partial / "weights.safetensors")
            (partial / "words.txt").write_text("".join(f"{word}\n" for word in self.table.words), encoding="utf-8")
            described = {
                "format_version": FORMAT_VERSION,
                "task": self.task.name,
                "task_config": asdict(self.task.config),
                "labels": self.task.labels,
                "words_config": asdict(self.config),
                "num_frequent": self.table.num_frequent,
                "tokenizer": self.tokenizer,
            }
            texts = {"config.json": json.dumps(described, indent=2, ensure_ascii=False) + "\n", **(more_files or {})}
            for name, text in texts.items():
                (partial / name).write_text(text, encoding="utf-8")


def _own_weights(network: TaskNetwork) -> dict[str, Tensor]:
    weights = network.state_dict()
    return {name: value.contiguous() for name, value in weights.items() if not name.startswith(BILM_PREFIX)}


def _parse_config(cls: type, settings: Mapping[str, Any]) -> Any:
    """A config from its JSON values. ValueError if settings are missing or unknown."""
    names = {field.name for field in fields(cls)}
    if wrong := sorted(names ^ set(settings)):
        raise ValueError(f"missing or unknown settings {', '.join(wrong)}")
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()})


def _read_config(path: Path, task: type[Task] | None) -> tuple[Task, WordsConfig, dict[str, Any]]:
    """The task, the settings of words, and all values of config.json."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format_version"] != FORMAT_VERSION:
            raise ValueError(
                f"its format_version is {values['format_version']}, but this elmokit reads {FORMAT_VERSION}: upgrade"
            )
        if wrong := sorted(KEYS ^ set(values)):
            raise ValueError(f"missing or unknown settings {', '.join(wrong)}")
        if task is None and values["task"] not in TASKS:  # a model's files cannot name code to run
            raise ValueError(f"its task {values['task']!r} is not one of elmokit's: give the task")
        task_class = find_task(values["task"]) if task is None else task
        if task_class.name != values["task"]:
            raise ValueError(f"it is of the task {values['task']}, not {task_class.name}")
        configured_task = task_class(_parse_config(task_class.Config, values["task_config"]), values["labels"])
        return configured_task, _parse_config(WordsConfig, values["words_config"]), values
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{path} is not the configuration of a task model: {reason}") from error


def load_task_model(directory: str | Path, device: str | None = None, task: type[Task] | None = None) -> TaskModel:
    """Read a task model that `fit` or `TaskModel.save` wrote.

    Args:
        directory: The model's directory.
        device: "cpu", "cuda" or "cuda:N"; None: a GPU if there is one.
        task: Class of the task if it is not one of elmokit's, because a model's files cannot name code to run.

    Raises:
        FileNotFoundError: The directory is not a task model.
        CheckpointError: A file is damaged or missing.
    """
    directory = Path(directory)
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"{directory} is not a task model: it holds no config.json")
    configured_task, config, values = _read_config(directory / "config.json", task)
    model = loading.load(directory / BILM, softmax=False) if config.elmo != "none" else None
    table = WordTable(tuple(read_lines(directory / "words.txt")), values["num_frequent"])
    network = make_network(configured_task, config, table, model)
    _load_weights(network, directory / "weights.safetensors")
    return TaskModel(configured_task, network.to(pick_device(device)), table, model, values["tokenizer"])


def _load_weights(network: TaskNetwork, path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: copy the whole directory, or fit the model again")
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file ({error}): fit the model again"
        ) from error
    expected = {name: value for name, value in network.state_dict().items() if not name.startswith(BILM_PREFIX)}
    check_shapes(
        path, *({name: tuple(value.shape) for name, value in tensors.items()} for tensors in (expected, weights))
    )
    network.load_state_dict(weights, strict=False)  # the weights of the biLM are already loaded
