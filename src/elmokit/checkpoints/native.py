"""elmokit's own format of a model, a directory (docs/formats.md):

config.json            format_version, BiLMConfig, tokenizer, language, state, mix weights, gamma
model.safetensors      the weights of the biLM
dictionaries.json      the dictionaries of an ELMoForManyLangs token encoder
vocab.txt              optional: the words of the softmax, or of the word table
softmax.safetensors    optional: the softmax over them
state.safetensors      optional: the warm state
text.safetensors       optional: the map to vectors of texts
README.md              optional: the card
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from elmokit.checkpoints.pretrained import (
    MixWeights,
    Pretrained,
    Shape,
    check_shapes,
    errors_naming,
    shapes_in,
)
from elmokit.config import BiLMConfig
from elmokit.fs import read_json
from elmokit.nn import BiLM, BiLMState, FullSoftmax, TextMap
from elmokit.runtime import init_on_meta
from elmokit.settings import StatePolicy, conform
from elmokit.text import Vocab

WEIGHTS, SOFTMAX, STATE = "model.safetensors", "softmax.safetensors", "state.safetensors"
TEXT_MAP = "text.safetensors"
FILES = (WEIGHTS, "dictionaries.json", "vocab.txt", SOFTMAX, STATE, TEXT_MAP)
# By which `check_output` knows a model that may be replaced. The last file is of elmokit's module
# for sentence-transformers.
LAYOUT: dict[str, Any] = {
    "directory_of": "config.json",
    "keys": {"format_version", "model"},
    "own_files": re.compile("|".join(map(re.escape, (*FILES, "README.md", "elmo_module.json")))),
}
# Of the ELMoForManyLangs token encoder, in a file of their own.
DICTIONARIES = ("words", "characters")
ALIGNMENT = 64  # bytes, as in PyTorch's CPU memory
NO_SHARE = 1e4  # so far below the others, before the softmax, is a layer without share in the mix

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class _Config:
    """The contents of config.json."""

    format_version: Literal[1]
    model: dict[str, Any]
    tokenizer: str | None
    state: StatePolicy
    mix: MixWeights | None
    language: str | None = None


# --- Writing --------------------------------------------------------------------------------------


def _write_tensors(tensors: Mapping[str, Tensor], path: Path, storage_dtype: str) -> None:
    dtype = getattr(torch, storage_dtype)
    stored = {
        name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in tensors.items()
    }
    if overflown := [name for name, tensor in stored.items() if not tensor.isfinite().all()]:
        raise ValueError(f"these weights are not finite as {storage_dtype}: {', '.join(overflown)}")
    save_file(stored, path)


def write_card(card: str, directory: Path) -> None:
    """Write README.md; lone surrogates, which UTF-8 cannot encode, are escaped."""
    (directory / "README.md").write_bytes(card.encode("utf-8", "backslashreplace"))


def weight_shapes(config: BiLMConfig) -> dict[str, Shape]:
    """The shapes of the state_dict of `BiLM(config)`, without allocating it."""
    with init_on_meta():
        return {name: tuple(tensor.shape) for name, tensor in BiLM(config).state_dict().items()}


def write_native(model: Pretrained, directory: Path, storage_dtype: str = "float32") -> None:
    """Write the files of a model into an empty directory.

    Raises:
        ValueError: Weights are not finite in `storage_dtype`, the softmax has no vocabulary, or the
            biLM is prepacked.
    """
    softmax, mix, settings = model.softmax, None, model.config.to_dict()
    if softmax is not None and model.vocab is None:
        raise ValueError(
            "a softmax is saved with the vocabulary of its words, which this model lacks"
        )
    # A pruned or parametrized biLM has other names, which could not be read.
    weights = model.bilm.state_dict()
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    check_shapes("the biLM", weight_shapes(model.config), shapes)
    if encoder := settings.get("efml"):
        dictionaries = {name: encoder.pop(name) for name in DICTIONARIES}
        text = json.dumps(dictionaries, indent=0, ensure_ascii=False) + "\n"
        (directory / "dictionaries.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    if model.mix is not None:
        # JSON lacks minus infinity; so small a weight is 0 after the softmax, too.
        lowest = max(model.mix.weights) - NO_SHARE
        layers = [max(weight, lowest) for weight in model.mix.weights]
        mix = {"weights": layers, "gamma": model.mix.gamma}
    config = {
        "format_version": 1,
        "model": settings,
        "tokenizer": model.tokenizer,
        "language": model.language,
        "state": model.state_policy,
        "mix": mix,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _write_tensors(weights, directory / WEIGHTS, storage_dtype)
    if softmax is not None:
        _write_tensors(softmax.state_dict(), directory / SOFTMAX, storage_dtype)
    if model.warm_state is not None:
        state = {"h": model.warm_state.h, "c": model.warm_state.c}
        _write_tensors(state, directory / STATE, storage_dtype)
    if model.text_map is not None:
        _write_tensors(model.text_map.state_dict(), directory / TEXT_MAP, storage_dtype)
    if model.vocab is not None:
        model.vocab.write(directory / "vocab.txt")
    if model.card:
        write_card(model.card, directory)


# --- Reading --------------------------------------------------------------------------------------


def _read_config(path: Path) -> tuple[BiLMConfig, dict[str, Any]]:
    """The configuration of the biLM, and the other arguments of `Pretrained`."""
    with errors_naming(path):
        values: _Config = conform(_Config, read_json(path))
        if encoder := values.model.get("efml"):
            encoder |= read_json(path.with_name("dictionaries.json"))
        settings = {"tokenizer": values.tokenizer, "language": values.language}
        settings |= {"state_policy": values.state, "mix": values.mix}
        return BiLMConfig.from_dict(values.model), settings


def _read_tensors(path: Path, expected: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Read tensors in float32. CheckpointError unless they have the expected names and shapes."""
    with errors_naming(path):
        tensors = load_file(path)
    check_shapes(path, expected, shapes_in(tensors))
    return {name: tensor.float() for name, tensor in tensors.items()}


def module_from(make: Callable[[], Module], tensors: Mapping[str, Tensor]) -> Module:
    """Construct a module with given weights, without drawing initial ones.

    Args:
        make: The constructor.
        tensors: The weights by the names of the module's state_dict. Aligned ones are used without
            a copy.
    """
    with init_on_meta():
        module = make()
    module.load_state_dict(
        {name: _aligned(tensor) for name, tensor in tensors.items()}, assign=True
    )
    return module


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it is not aligned like PyTorch's own: the last digits of products
    depend on alignment.

    The alignment of a file's tensors depends on the length of its header, and so on its metadata.
    """
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def read_card(directory: Path) -> str:
    """The text of README.md, with � for bytes that are not UTF-8; empty if it is missing."""
    path = directory / "README.md"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def load_native(directory: Path, softmax: bool = True) -> Pretrained:
    """Load a model, with or without its softmax; errors are those of `elmokit.load`."""
    if (directory / "weights.safetensors").is_file():  # the name that tasks give to theirs
        raise ValueError(
            "it is a task model: use it with elmokit predict, or elmokit.load_task_model in Python"
        )
    config, settings = _read_config(directory / "config.json")
    tensors = _read_tensors(directory / WEIGHTS, weight_shapes(config))
    if (words := directory / "vocab.txt").is_file():
        settings["vocab"] = vocab = Vocab.read(words)
        if softmax and (file := directory / SOFTMAX).is_file():
            size = (len(vocab), config.sequence_encoder.projection_dim)
            weights = _read_tensors(file, {"weight": size, "bias": size[:1]})
            settings["softmax"] = module_from(lambda: FullSoftmax(*size), weights)
    if (file := directory / STATE).is_file():
        shapes = BiLMState.shapes(config.sequence_encoder, rows=1)
        settings["warm_state"] = BiLMState(**_read_tensors(file, shapes))
    if (file := directory / TEXT_MAP).is_file():
        with errors_naming(file):
            dim = len(load_file(file)["bias"])
        size = (dim, config.num_representations, config.output_dim)
        weights = _read_tensors(file, {"weight": size, "bias": size[:1]})
        settings["text_map"] = module_from(lambda: TextMap(*size), weights)
    bilm = module_from(lambda: BiLM(config), tensors)
    return Pretrained(bilm, card=read_card(directory), **settings)
