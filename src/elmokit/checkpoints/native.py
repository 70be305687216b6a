"""elmokit's own format of a model, a directory (docs/formats.md):

config.json            format_version, the BiLMConfig, tokenizer, state policy, mix weights and gamma
model.safetensors      the weights of the biLM
dictionaries.json      the dictionaries of an ELMoForManyLangs token encoder
vocab.txt              optional: the words of the softmax, or of the word table
softmax.safetensors    optional: the softmax over them
state.safetensors      optional: the warm state
README.md              optional: the card
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from elmokit.checkpoints.errors import CheckpointError, Shape, check_shapes
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.config import BiLMConfig
from elmokit.fs.json_files import from_json, read_json
from elmokit.nn.bidirectional import state_shapes
from elmokit.nn.bilm import BiLM, BiLMState, shapes_only
from elmokit.nn.softmax import FullSoftmax
from elmokit.settings import StatePolicy
from elmokit.text.vocab import Vocab

FORMAT_VERSION = 1
DICTIONARIES = ("words", "characters")  # of the ELMoForManyLangs token encoder, in a file of their own
ALIGNMENT = 64  # of PyTorch's CPU memory, in bytes
NO_SHARE = 1e4  # so far below the others, before the softmax, is a layer that has no share in the mix

Module = TypeVar("Module", bound=nn.Module)


# --- Writing -----------------------------------------------------------------------------------------------------


def _mix_to_json(mix: MixWeights) -> dict[str, Any]:
    """The mix; a weight of minus infinity, which JSON lacks, becomes one that is also 0 after the softmax."""
    none = max(mix.weights) - NO_SHARE
    weights = [weight if math.isfinite(weight) else none for weight in mix.weights]
    return {"weights": weights, "gamma": mix.gamma}


def _write_config(model: Pretrained, path: Path) -> None:
    settings = model.config.to_dict()
    if encoder := settings.get("efml"):
        dictionaries = {name: encoder.pop(name) for name in DICTIONARIES}
        text = json.dumps(dictionaries, indent=0, ensure_ascii=False).encode("utf-8", "surrogatepass")
        path.with_name("dictionaries.json").write_bytes(text + b"\n")
    config = {
        "format_version": FORMAT_VERSION,
        "model": settings,
        "tokenizer": model.tokenizer,
        "state": model.state_policy,
        "mix": None if model.mix is None else _mix_to_json(model.mix),
    }
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _write_tensors(tensors: Mapping[str, Tensor], path: Path, storage_dtype: str) -> None:
    dtype = getattr(torch, storage_dtype)
    stored = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in tensors.items()}
    if overflown := [name for name, tensor in stored.items() if not tensor.isfinite().all()]:
        raise ValueError(f"these weights are not finite as {storage_dtype}: {', '.join(overflown)}")
    save_file(stored, path)


def write_card(card: str, directory: Path) -> None:
    """Write README.md; lone surrogates, which UTF-8 cannot encode, are escaped."""
    (directory / "README.md").write_bytes(card.encode("utf-8", "backslashreplace"))


def _shapes_of(config: BiLMConfig) -> dict[str, Shape]:
    with shapes_only():
        return {name: tuple(tensor.shape) for name, tensor in BiLM(config).state_dict().items()}


def write_native(model: Pretrained, directory: Path, storage_dtype: str = "float32") -> None:
    """Write the files of a model into an empty directory.

    Raises:
        ValueError: Weights are not finite in `storage_dtype`, the softmax has no vocabulary or one of another size, or
            the biLM is prepacked.
    """
    softmax = model.softmax
    if softmax is not None and (model.vocab is None or len(model.vocab) != len(softmax.weight)):
        raise ValueError(f"a softmax over {len(softmax.weight)} words needs their vocabulary, not {model.vocab}")
    weights = model.bilm.state_dict()  # a pruned or parametrized model has other names, which could not be read
    check_shapes("the biLM", _shapes_of(model.config), {name: tuple(each.shape) for name, each in weights.items()})
    _write_config(model, directory / "config.json")
    _write_tensors(weights, directory / "model.safetensors", storage_dtype)
    if softmax is not None:
        _write_tensors(softmax.state_dict(), directory / "softmax.safetensors", storage_dtype)
    if model.warm_state is not None:
        state = {"h": model.warm_state.h, "c": model.warm_state.c}
        _write_tensors(state, directory / "state.safetensors", storage_dtype)
    if model.vocab is not None:
        model.vocab.write(directory / "vocab.txt")
    if model.card:
        write_card(model.card, directory)


# --- Reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Mix:
    weights: tuple[float, ...]
    gamma: float


@dataclass(frozen=True)
class _Config:
    """The contents of config.json."""

    format_version: int
    model: dict[str, Any]
    tokenizer: str | None
    state: StatePolicy
    mix: _Mix | None


@dataclass(frozen=True)
class _Dictionaries:
    """The contents of dictionaries.json."""

    words: list[str]
    characters: list[str]


def _read_dictionaries(path: Path) -> dict[str, list[str]]:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        return vars(from_json(_Dictionaries, read_json(path)))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged ({error}): fetch it again") from error


def _read_config(path: Path) -> tuple[BiLMConfig, dict[str, Any]]:
    """The configuration of the biLM, and the other settings as keyword arguments of `Pretrained`."""
    try:
        content = from_json(dict[str, Any], read_json(path))
        if "task_config" in content:
            raise ValueError("it is that of a task model: use elmokit predict, or elmokit.load_task_model in Python")
        version = content.get("format_version")
        if version is None:
            raise ValueError("it has no format_version, so it is the config.json of another program")
        if version != FORMAT_VERSION:
            advice = "upgrade elmokit" if isinstance(version, int) and version > FORMAT_VERSION else "fetch it again"
            raise ValueError(f"its format_version is {version}, not {FORMAT_VERSION}: {advice}")
        values: _Config = from_json(_Config, content)
        if encoder := values.model.get("efml"):
            encoder |= _read_dictionaries(path.with_name("dictionaries.json"))
        mix = None if values.mix is None else MixWeights(**vars(values.mix))
        others = {"tokenizer": values.tokenizer, "state_policy": values.state, "mix": mix}
        return BiLMConfig.from_dict(values.model), others
    except CheckpointError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{path} is not the configuration of an elmokit model: {reason}") from error


def _read_tensors(path: Path, expected: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Read a file in float32. CheckpointError if it is damaged, or its names or shapes are not the expected ones."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is truncated or not a safetensors file ({error}): fetch it again") from error
    if others := [f"{name} ({tensor.dtype})" for name, tensor in tensors.items() if not tensor.is_floating_point()]:
        raise CheckpointError(f"{path} holds tensors that are not weights: {', '.join(others)}")
    tensors = _renamed(tensors)
    check_shapes(path, expected, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    return {name: tensor.float() for name, tensor in tensors.items()}


def _renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The bundled weights by the module's names; theirs are older, with both directions of a layer in one tensor."""
    renamed = {}
    for name, tensor in tensors.items():
        if name.startswith("layers."):
            renamed |= {f"sequence_encoder.stacks.{d}.{name}": part.clone() for d, part in enumerate(tensor)}
        else:
            renamed[name.replace("char_cnn.", "token_encoder.", 1) if name.startswith("char_cnn.") else name] = tensor
    return renamed


def filled(make: Callable[[], Module], tensors: Mapping[str, Tensor]) -> Module:
    """Construct a module with given weights, without drawing initial ones.

    Args:
        make: The constructor.
        tensors: The weights by the names of the module's state_dict. Aligned ones are used without a copy.
    """
    with shapes_only():
        module = make()
    module.load_state_dict({name: _aligned(tensor) for name, tensor in tensors.items()}, assign=True)
    return module


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it is not aligned like PyTorch's own: the last digits of products depend on alignment.

    The alignment of a file's tensors depends on the length of its header, and so on its metadata.
    """
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def _read_softmax(path: Path, config: BiLMConfig, vocab: Vocab | None) -> FullSoftmax | None:
    if not path.is_file():
        return None
    if vocab is None:
        raise CheckpointError(f"{path} has no vocab.txt next to it, so its words are unknown")
    num_words, dim = len(vocab), config.sequence_encoder.projection_dim
    tensors = _read_tensors(path, {"weight": (num_words, dim), "bias": (num_words,)})
    return filled(lambda: FullSoftmax(num_words, dim), tensors)


def _read_warm_state(path: Path, config: BiLMConfig) -> BiLMState | None:
    if not path.is_file():
        return None
    return BiLMState(**_read_tensors(path, dict(zip("hc", state_shapes(config.sequence_encoder, rows=1), strict=True))))


def read_vocab(directory: Path) -> Vocab | None:
    """The vocabulary in vocab.txt; None without one. CheckpointError if it is damaged."""
    path = directory / "vocab.txt"
    try:
        return Vocab.read(path) if path.is_file() else None
    except ValueError as error:
        raise CheckpointError(str(error)) from error


def read_card(directory: Path) -> str:
    """The text of README.md, with � for bytes that are not UTF-8; empty without one."""
    path = directory / "README.md"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def load_native(directory: Path, softmax: bool = True) -> Pretrained:
    """Load the model in a directory, with or without its softmax.

    Raises:
        CheckpointError: Files are damaged or do not fit each other; every missing, unexpected or wrong-shaped key is
            named.
    """
    config, settings = _read_config(directory / "config.json")
    tensors = _read_tensors(directory / "model.safetensors", _shapes_of(config))
    warm_state = _read_warm_state(directory / "state.safetensors", config)
    vocab = read_vocab(directory)
    output_layer = _read_softmax(directory / "softmax.safetensors", config, vocab) if softmax else None
    try:
        return Pretrained(
            filled(lambda: BiLM(config), tensors),
            softmax=output_layer,
            vocab=vocab,
            card=read_card(directory),
            warm_state=warm_state,
            **settings,
        )
    except ValueError as error:
        raise CheckpointError(f"{directory} contradicts itself: {error}") from error
