"""A trained task model: it predicts, and is kept as a directory that needs nothing else.

config.json           format_version, the task and its settings, labels, the settings of words
weights.safetensors   the network's weights, without the biLM's
words.txt             the words of the training set, one a line
bilm/                 the biLM whose layers the network reads, as a native model, where it reads ELMo
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
from elmokit.tasks.task import Task, TaskNetwork, find_task
from elmokit.tasks.training import ExampleSet, predict
from elmokit.tasks.word_batches import Sentences, WordTable
from elmokit.tasks.word_encoder import CHARACTERS, WordEncoder, mix_weights
from elmokit.text.tokenizers import get_tokenizer

FORMAT_VERSION = 2
BILM = "bilm"
OF_BILM = "words.elmo.bilm."  # with which the names of its weights begin
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
    """The character CNNs that read a batch: the biLM's where it runs with the network, and the network's own."""
    found = [CHARACTERS] if config.character_dim else []
    if config.finetune:
        if model is None or model.config.char_cnn is None:
            raise ValueError("only a biLM that reads characters can be fine-tuned with a task: leave finetune off")
        found.insert(0, model.config.char_cnn)
    return found


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
        """What computes the layers of its frozen biLM."""
        if self._layers is None:
            assert self.model is not None
            device = next(self.network.parameters()).device
            self._layers = BiLMLayers(Embedder(self.model, str(device)))
        return self._layers

    def example_set(self, examples: Sequence[Any], cache: LayerCache | None = None) -> ExampleSet:
        """Examples ready for the network; layers that `cache` lacks are computed here."""
        sentences = [words for example in examples for words in self.task.sentences(example)]
        if self.reads_layers:
            cache = LayerCache(self.encoder()) if cache is None else cache
            cache.add(sentences, progress=cache.directory is not None)
        cnns = character_cnns(self.config, self.model)
        layers = cache if self.reads_layers else None
        return ExampleSet(self.task, examples, Sentences(sentences, self.table, character_cnns=cnns, layers=layers))

    def predict(self, inputs: Iterable[Any]) -> list[Any]:
        """Predictions for what the task takes (see the task's `from_text`), in order.

        Args:
            inputs: For most tasks strings, which are tokenized as the training text was, or lists of words.
        """
        if isinstance(inputs, str):
            raise ValueError("predict takes a list: write predict([text])")
        return list(self.predict_examples(map(self.example, inputs)))

    def example(self, text: Any) -> Any:
        """The task's example for one of the inputs that `predict` takes."""
        return self.task.from_text(text, self._tokenize)

    def predict_examples(self, examples: Iterable[Any]) -> Iterator[Any]:
        """Predictions for a stream of the task's examples, some thousand words of them in memory at a time."""
        block: list[Any] = []
        words = 0
        for example in examples:
            block.append(example)
            words += sum(map(len, self.task.sentences(example)))
            if words >= WORDS_AT_ONCE:
                yield from predict(self.network, self.example_set(block))
                block, words = [], 0
        if block:
            yield from predict(self.network, self.example_set(block))

    def score(self, examples: Iterable[Any]) -> dict[str, float]:
        """Scores in 0..1 on examples with answers."""
        found = list(examples)
        return self.task.score(found, list(self.predict_examples(found)))

    def save(self, directory: str | Path, overwrite: bool = False, more_files: Mapping[str, str] | None = None) -> None:
        """Write the model's directory, whole or not at all.

        Args:
            more_files: Texts to put beside it, by name.

        Raises:
            FileExistsError: The directory exists, and `overwrite` does not say to replace it.
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
                "words_config": _described(self.config),
                "num_frequent": self.table.num_frequent,
                "tokenizer": self.tokenizer,
            }
            texts = {"config.json": json.dumps(described, indent=2, ensure_ascii=False) + "\n", **(more_files or {})}
            for name, text in texts.items():
                (partial / name).write_text(text, encoding="utf-8")


def _described(config: WordsConfig) -> dict[str, Any]:
    """The settings as JSON has them; the file of word vectors is no longer needed."""
    return {**asdict(config), "word_vectors": None}


def _own_weights(network: TaskNetwork) -> dict[str, Tensor]:
    weights = network.state_dict()
    return {name: value.contiguous() for name, value in weights.items() if not name.startswith(OF_BILM)}


def _known(cls: type, settings: Mapping[str, Any]) -> Any:
    """A dataclass of settings from JSON. ValueError where settings are missing or unknown."""
    names = {field.name for field in fields(cls)}
    if wrong := sorted(names ^ set(settings)):
        raise ValueError(f"missing or unknown settings {', '.join(wrong)}")
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()})


def _read_config(path: Path, task: type[Task] | None) -> tuple[Task, WordsConfig, dict[str, Any]]:
    """The task, the settings of words, and all that config.json says."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format_version"] != FORMAT_VERSION:
            raise ValueError(f"its format_version is {values['format_version']}, known is {FORMAT_VERSION}: upgrade")
        if wrong := sorted(KEYS ^ set(values)):
            raise ValueError(f"missing or unknown settings {', '.join(wrong)}")
        found = find_task(values["task"]) if task is None else task
        if found.name != values["task"]:
            raise ValueError(f"it is of the task {values['task']}, not {found.name}")
        made = found(_known(found.Config, values["task_config"]), values["labels"])
        return made, _known(WordsConfig, values["words_config"]), values
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{path} is not the configuration of a task model: {reason}") from error


def load_task_model(directory: str | Path, device: str | None = None, task: type[Task] | None = None) -> TaskModel:
    """Read a task model that `fit` or `TaskModel.save` wrote.

    Args:
        directory: The model's directory.
        device: "cpu", "cuda" or "cuda:N"; the best there is when not given.
        task: The class of its task, where that is not one of elmokit's: no model file names code to be run.

    Raises:
        FileNotFoundError: There is no task model.
        CheckpointError: A file of it is damaged or missing.
    """
    directory = Path(directory)
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"{directory} is not a task model: it holds no config.json")
    made, config, values = _read_config(directory / "config.json", task)
    model = loading.load(directory / BILM, softmax=False) if config.elmo != "none" else None
    table = WordTable(tuple(read_lines(directory / "words.txt")), values["num_frequent"])
    network = make_network(made, config, table, model)
    _load_weights(network, directory / "weights.safetensors")
    return TaskModel(made, network.to(pick_device(device)), table, model, values["tokenizer"])


def _load_weights(network: TaskNetwork, path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: copy the whole directory, or fit the model again")
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is cut short or no safetensors file ({error}): fit the model again") from error
    expected = {name: value for name, value in network.state_dict().items() if not name.startswith(OF_BILM)}
    check_shapes(path, *({name: tuple(value.shape) for name, value in found.items()} for found in (expected, weights)))
    network.load_state_dict(weights, strict=False)  # the biLM's weights are there already
