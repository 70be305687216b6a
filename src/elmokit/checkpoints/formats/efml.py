"""Directories of ELMoForManyLangs: two files of weights as PyTorch saved them, beside settings and dictionaries.

Weights are pickles, of which PyTorch reads tensors and nothing else.
Sources: ELMoForManyLangs, `modules/token_embedder.py`, `modules/elmo.py`, `modules/lstm.py`.
"""

import pickle
import struct
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from elmokit.checkpoints.detect import EFML_WEIGHTS
from elmokit.checkpoints.errors import CheckpointError, Shape, check_shapes
from elmokit.checkpoints.formats.efml_settings import read_config
from elmokit.checkpoints.native import filled, read_card
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, EfmlEncoderConfig, LSTMConfig
from elmokit.nn.bilm import BiLM
from elmokit.nn.shapes_only import shapes_only

TOKEN_ENCODER, ENCODER = EFML_WEIGHTS

# --- The tables --------------------------------------------------------------------------------------------------


def _gates(tensor: Tensor) -> Tensor:
    """Rows of the gates i, f, g, o -> i, g, f, o."""
    i, f, g, o = tensor.chunk(4)
    return torch.cat([i, g, f, o])


def _carry(tensor: Tensor) -> Tensor:
    """Its gate says how much of the input passes, ours how much does not: sigmoid(-x) = 1 - sigmoid(x)."""
    transform, gate = tensor.chunk(2)
    return torch.cat([transform, -gate])


@dataclass(frozen=True)
class Piece:
    """`change(file[name])` is added to `state_dict[parameter][part]`."""

    name: str
    shape: Shape
    parameter: str
    part: int | EllipsisType = ...
    change: Callable[[Tensor], Tensor] = Tensor.float


def _token_encoder_pieces(config: EfmlEncoderConfig, output_dim: int) -> Iterator[Piece]:
    ours, cnn = "words_and_characters", config.char_cnn
    if config.words:
        words = (len(config.words), config.word_dim)
        yield Piece("word_emb_layer.embedding.weight", words, f"{ours}.word_embedding")
    if cnn is not None:
        characters, filters = (cnn.num_characters, cnn.embedding_dim), cnn.num_filters
        yield Piece("char_emb_layer.embedding.weight", characters, f"{ours}.char_cnn.char_embedding")
        for i, (width, number) in enumerate(cnn.filters):
            conv = f"{ours}.char_cnn.convolutions.{i}"
            yield Piece(f"convolutions.{i}.weight", (number, cnn.embedding_dim, width), f"{conv}.weight")
            yield Piece(f"convolutions.{i}.bias", (number,), f"{conv}.bias")
        for k in range(cnn.num_highway):
            gates = f"{ours}.char_cnn.highways.{k}.gates"
            yield Piece(f"highways._layers.{k}.weight", (2 * filters, filters), f"{gates}.weight", change=_carry)
            yield Piece(f"highways._layers.{k}.bias", (2 * filters,), f"{gates}.bias", change=_carry)
    yield Piece("projection.weight", (output_dim, config.num_features), f"{ours}.projection.weight")
    yield Piece("projection.bias", (output_dim,), f"{ours}.projection.bias")


def _elmo_pieces(config: LSTMConfig) -> Iterator[Piece]:
    dim, hidden = config.projection_dim, config.cell_dim
    for layer in range(config.num_layers):
        ours = f"layers.{layer}"
        for d, direction in enumerate(("forward", "backward")):
            cell = f"{direction}_layer_{layer}"
            for name, weight in (("input", "input_weight"), ("state", "recurrent_weight")):
                yield Piece(f"{cell}.{name}_linearity.weight", (4 * hidden, dim), f"{ours}.{weight}", d, _gates)
            yield Piece(f"{cell}.state_linearity.bias", (4 * hidden,), f"{ours}.bias", d, _gates)
            yield Piece(f"{cell}.state_projection.weight", (dim, hidden), f"{ours}.projection_weight", d)


def _lstm_pieces(config: LSTMConfig) -> Iterator[Piece]:
    """torch.nn.LSTM's names. It has two biases a gate, which are added."""
    dim, hidden = config.projection_dim, config.cell_dim
    for layer in range(config.num_layers):
        input_dim, ours = 2 * hidden if layer else dim, f"layers.{layer}"
        for d, suffix in enumerate((f"l{layer}", f"l{layer}_reverse")):
            weights = (("ih", input_dim, "input_weight"), ("hh", hidden, "recurrent_weight"))
            for name, width, weight in weights:
                yield Piece(f"encoder.weight_{name}_{suffix}", (4 * hidden, width), f"{ours}.{weight}", d, _gates)
                yield Piece(f"encoder.bias_{name}_{suffix}", (4 * hidden,), f"{ours}.bias", d, _gates)
    yield Piece("projection.weight", (dim, hidden), "top_projection.weight")
    yield Piece("projection.bias", (dim,), "top_projection.bias")


def pieces_of(config: BiLMConfig) -> dict[str, list[Piece]]:
    """The tables of both files: every tensor, its shape, and which part of which parameter it fills."""
    encoder, lstm = config.efml, config.lstm
    assert encoder is not None
    return {
        TOKEN_ENCODER: list(_token_encoder_pieces(encoder, lstm.projection_dim)),
        ENCODER: list((_lstm_pieces if lstm.interleaved else _elmo_pieces)(lstm)),
    }


# --- Weights -----------------------------------------------------------------------------------------------------


# What PyTorch says of a file that is damaged, hostile or of another kind, by where it stumbles.
DAMAGED = (
    RuntimeError, EOFError, OSError, ValueError, TypeError, LookupError, AttributeError, AssertionError,
    ArithmeticError, ImportError, struct.error,
)  # fmt: skip


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that PyTorch saved; CheckpointError where it holds more. Nothing of it is run."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, about the age of the file
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path} is damaged, or holds other things than weights: fetch it again") from error
    except MemoryError as error:
        raise CheckpointError(f"{path} asks for more memory than there is: it is damaged, fetch it again") from error
    except DAMAGED as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise CheckpointError(f"{path} cannot be read as weights ({reason[0]}): fetch it again") from error
    _check_tensors(path, found)
    return found


def _check_tensors(path: Path, found: Any) -> None:
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a {type(found).__name__}, no weights by name")
    size = path.stat().st_size
    for name, tensor in found.items():
        is_plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not is_plain or not tensor.is_floating_point():
            raise CheckpointError(f"{path} holds what are no weights: {name!r}")
        # A tensor may claim to be larger than what is stored of it, by repeating it.
        if tensor.numel() * tensor.element_size() > size:
            raise CheckpointError(f"{path} claims a size that cannot be: {name} {tuple(tensor.shape)} in {size} bytes")


def read_efml(directory: Path) -> tuple[BiLMConfig, dict[str, Tensor]]:
    """Read a model: its configuration, and the float32 state_dict of `BiLM(configuration)`.

    CheckpointError, naming every offending key, where the files do not make one model.
    """
    config = read_config(directory)
    tables = pieces_of(config)
    files = {name: _read_tensors(directory / name) for name in tables}
    for name, pieces in tables.items():
        shapes = {key: tuple(tensor.shape) for key, tensor in files[name].items()}
        check_shapes(directory / name, {piece.name: piece.shape for piece in pieces}, shapes)
    # Only now is it certain that the sizes in the settings are those of the files.
    with shapes_only():
        shapes = {name: parameter.shape for name, parameter in BiLM(config).stored_tensors().items()}
    state = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for name, pieces in tables.items():
        for piece in pieces:
            state[piece.parameter][piece.part] += piece.change(files[name][piece.name].float())
    return config, state


def load_efml(directory: Path, softmax: bool = True) -> Pretrained:
    """Load the model in a directory; it never has a softmax. Errors are those of `read_efml`."""
    config, state_dict = read_efml(directory)
    return Pretrained(filled(lambda: BiLM(config), state_dict), card=read_card(directory))
