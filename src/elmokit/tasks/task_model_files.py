"""The files of a task model's directory, which is self-contained.

config.json           format_version, the task and its settings, labels, the settings of words
weights.safetensors   the network's weights, without the biLM's
words.txt             the words of the training set, one per line
vectors.txt           words with pretrained vectors, one per line, and
vectors.safetensors   `vectors` (V, D), if the network reads any
bilm/                 the biLM in elmokit's format, if the network reads ELMo
encoder/              another encoder in Hugging Face's format, if the network reads one
report.json           the report of the training
report.png            its plot, if one was asked for
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from torch import Tensor

from elmokit.checkpoints.errors import CheckpointError
from elmokit.checkpoints.overwriting import Layout
from elmokit.fs.json_files import from_json, read_json
from elmokit.tasks.config import TASKS, WordsConfig
from elmokit.tasks.report import PICTURE, REPORT
from elmokit.tasks.task import Task, find_task
from elmokit.tasks.word_vectors import WordVectors

T = TypeVar("T")

FORMAT_VERSION = 3
CONFIG, WEIGHTS, WORDS = "config.json", "weights.safetensors", "words.txt"
BILM, ENCODER, VECTORS = "bilm", "encoder", "vectors"
LAYOUT = Layout(
    CONFIG,
    frozenset({"format_version", "task"}),
    frozenset({WEIGHTS, WORDS, f"{VECTORS}.txt", f"{VECTORS}.safetensors", BILM, ENCODER, REPORT, PICTURE}),
)
BILM_PREFIX = "words.elmo.bilm."  # of the names of the biLM's weights in the network


@dataclass(frozen=True)
class Description:
    """The content of config.json; `task_config` are the settings of the task."""

    format_version: int
    task: str
    task_config: dict[str, Any]
    labels: dict[str, Any]
    words_config: WordsConfig
    num_frequent: int
    tokenizer: str


def read_config(path: Path, task: type[Task] | None) -> tuple[Task, Description]:
    """Read config.json: the task with its settings and labels, and all of it. CheckpointError if it is damaged."""
    try:
        content = read_json(path)
        version = content.get("format_version") if isinstance(content, dict) else None
        if version != FORMAT_VERSION:
            raise ValueError(f"its format_version is {version}, but this elmokit reads {FORMAT_VERSION}: upgrade")
        described = from_json(Description, content)
        lists = {name: value for name, value in described.labels.items() if isinstance(value, list)}
        if mixed := [name for name, value in lists.items() if len(set(map(type, value))) > 1]:
            raise ValueError(f"the labels {', '.join(mixed)} are of several types")
        if task is None and described.task not in TASKS:  # a model's files cannot name code to run
            raise ValueError(f"its task {described.task!r} is not one of elmokit's: give the task")
        task_class = find_task(described.task) if task is None else task
        if task_class.name != described.task:
            raise ValueError(f"it is of the task {described.task}, not {task_class.name}")
        config = from_json(task_class.Config, described.task_config, "task_config")
        return task_class(config, described.labels), described
    except ValueError as error:
        raise CheckpointError(f"{path} is not the configuration of a task model: {error}") from error


def write_words(words: Iterable[str], path: Path) -> None:
    """Write words, one per line."""
    path.write_bytes("".join(f"{word}\n" for word in words).encode("utf-8", "surrogatepass"))


def read_words(path: Path) -> tuple[str, ...]:
    r"""Read what `write_words` wrote; unlike `read_lines`, keep a "\r" or a byte order mark, which a word may have."""
    try:
        *words, rest = path.read_bytes().decode("utf-8", "surrogatepass").split("\n")
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is missing or damaged ({error}): copy the whole directory") from error
    return (*words, rest) if rest else tuple(words)


def read_tensors(path: Path, load: Callable[[Path], dict[str, T]]) -> dict[str, T]:
    """The tensors of a safetensors file. CheckpointError if it is missing or damaged."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: copy the whole directory, or fit the model again")
    try:
        return load(path)
    except SafetensorError as error:
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file ({error}): fit the model again"
        ) from error


def write_vectors(vectors: WordVectors, directory: Path) -> None:
    """Write pretrained vectors and their words into a task model's directory."""
    write_words(vectors.words, directory / f"{VECTORS}.txt")
    save_arrays({VECTORS: vectors.vectors}, directory / f"{VECTORS}.safetensors")


def read_vectors(directory: Path) -> WordVectors:
    """Read what `write_vectors` wrote. CheckpointError if a file is missing or damaged, or the two do not match."""
    words, path = read_words(directory / f"{VECTORS}.txt"), directory / f"{VECTORS}.safetensors"
    arrays = read_tensors(path, load_arrays)
    if (vectors := arrays.get(VECTORS)) is None or vectors.ndim != 2 or len(vectors) != len(words):
        raise CheckpointError(f"{path} has no vector for each word of {VECTORS}.txt: fit the model again")
    return WordVectors(words, vectors.astype(np.float32))


def own_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A network's tensors by name, without those of the biLM, which has a directory of its own."""
    return {name: value for name, value in tensors.items() if not name.startswith(BILM_PREFIX)}
