"""The pair options.json + weights.hdf5 of bilm-tf and AllenNLP: a table of names, and what makes a state_dict of it.

Nothing is computed, only cut, transposed and laid side by side, so that the way back can be exact.
Sources: bilm-tf `bilm/model.py` and `bilm/training.py`; AllenNLP `modules/elmo.py` and `modules/elmo_lstm.py`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from elmokit.config import NUM_CHARACTERS, BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.io.strict import CheckpointError, Shape, check_shapes
from elmokit.nn.bilm import BiLM

REQUIRED_OPTIONS = ("lstm.dim", "lstm.projection_dim", "lstm.n_layers")
REQUIRED_CHAR_CNN_OPTIONS = ("char_cnn.activation", "char_cnn.embedding.dim", "char_cnn.filters")


# --- options.json ------------------------------------------------------------------------------------------------


def _has(options: Any, path: list[str]) -> bool:
    return not path or (isinstance(options, dict) and path[0] in options and _has(options[path[0]], path[1:]))


def _require(options: dict[str, Any], paths: tuple[str, ...]) -> None:
    missing = [path for path in paths if not _has(options, path.split("."))]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")


def _char_cnn_config(char_cnn: dict[str, Any]) -> CharCNNConfig:
    # 261 while training, 262 at inference: the same 261 vectors, and one more row for the mask.
    if char_cnn.get("n_characters", NUM_CHARACTERS) not in (NUM_CHARACTERS, NUM_CHARACTERS + 1):
        raise ValueError(f"char_cnn.n_characters is {char_cnn['n_characters']}, neither 261 nor 262")
    return CharCNNConfig(
        embedding_dim=int(char_cnn["embedding"]["dim"]),
        filters=tuple((int(width), int(number)) for width, number in char_cnn["filters"]),
        # Left out where there is none.
        num_highway=int(char_cnn.get("n_highway") or 0),
        activation=char_cnn["activation"],
        max_characters=int(char_cnn.get("max_characters_per_token", 50)),
    )


def config_from_options(options: dict[str, Any], num_words: int | None = None) -> BiLMConfig:
    """The configuration that options.json describes; `num_words` is the height of the word table, for word-id models.

    ValueError naming every option that is missing, or the one that makes no sense.
    """
    if not isinstance(options, dict):
        raise ValueError("it holds no settings")
    # A model without char_cnn reads word ids.
    reads_words = options.get("char_cnn") is None
    _require(options, REQUIRED_OPTIONS + (() if reads_words else REQUIRED_CHAR_CNN_OPTIONS))
    lstm = options["lstm"]
    return BiLMConfig(
        lstm=LSTMConfig(
            num_layers=int(lstm["n_layers"]),
            cell_dim=int(lstm["dim"]),
            projection_dim=int(lstm["projection_dim"]),
            # AllenNLP takes a clip of 0 as "off", as it does a missing one; TensorFlow would clip everything to 0.
            cell_clip=lstm.get("cell_clip") or None,
            proj_clip=lstm.get("proj_clip") or None,
            use_skip_connections=bool(lstm.get("use_skip_connections", False)),
            # TensorFlow adds it at run time, so it is in no file.
            forget_bias=1.0,
        ),
        char_cnn=None if reads_words else _char_cnn_config(options["char_cnn"]),
        num_words=num_words if reads_words else None,
    )


# --- weights.hdf5 ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """`state_dict[parameter][part]` is `file[dataset][rows]`, with its axes reversed unless it is a table of rows."""

    dataset: str
    shape: Shape
    parameter: str
    part: int | slice | EllipsisType = ...
    rows: int | slice | EllipsisType = ...
    # TensorFlow multiplies from the right and keeps convolutions as (1, width, in, out).
    reverse_axes: bool = True


def _char_cnn_pieces(config: CharCNNConfig, output_dim: int) -> Iterator[Piece]:
    dim, filters = config.embedding_dim, config.num_filters
    yield Piece("char_embed", (config.num_characters, dim), "char_cnn.char_embedding", reverse_axes=False)
    for i, (width, number) in enumerate(config.filters):
        yield Piece(f"CNN/W_cnn_{i}", (1, width, dim, number), f"char_cnn.convolutions.{i}.weight", rows=0)
        yield Piece(f"CNN/b_cnn_{i}", (number,), f"char_cnn.convolutions.{i}.bias")
    for k in range(config.num_highway):
        weight, bias = f"char_cnn.highways.{k}.gates.weight", f"char_cnn.highways.{k}.gates.bias"
        for gate, part in (("transform", slice(0, filters)), ("carry", slice(filters, 2 * filters))):
            yield Piece(f"CNN_high_{k}/W_{gate}", (filters, filters), weight, part)
            yield Piece(f"CNN_high_{k}/b_{gate}", (filters,), bias, part)
    # There is none where it would change nothing in size.
    if filters != output_dim:
        yield Piece("CNN_proj/W_proj", (filters, output_dim), "char_cnn.projection.weight")
        yield Piece("CNN_proj/b_proj", (output_dim,), "char_cnn.projection.bias")


def _lstm_pieces(config: LSTMConfig, direction: int, layer: int) -> Iterator[Piece]:
    cell, dim, hidden = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell", config.projection_dim, config.cell_dim
    # Upper rows of the kernel meet the input, lower ones the state. Its columns are gates i, j, f, o: our order too.
    kernel = (2 * dim, 4 * hidden)
    yield Piece(f"{cell}/W_0", kernel, f"layers.{layer}.input_weight", direction, slice(0, dim))
    yield Piece(f"{cell}/W_0", kernel, f"layers.{layer}.recurrent_weight", direction, slice(dim, 2 * dim))
    yield Piece(f"{cell}/B", (4 * hidden,), f"layers.{layer}.bias", direction)
    # There is none where it would change nothing in size.
    if config.has_projection:
        yield Piece(f"{cell}/W_P_0", (hidden, dim), f"layers.{layer}.projection_weight", direction)


def pieces_of(config: BiLMConfig) -> Iterator[Piece]:
    """The table: every dataset of the file, its shape, and which part of which parameter it fills."""
    if config.char_cnn is None:
        words = (config.num_words or 0, config.lstm.projection_dim)
        yield Piece("embedding", words, "word_embedding", reverse_axes=False)
    else:
        yield from _char_cnn_pieces(config.char_cnn, config.lstm.projection_dim)
    for direction in range(2):
        for layer in range(config.lstm.num_layers):
            yield from _lstm_pieces(config.lstm, direction, layer)


# --- Both together -----------------------------------------------------------------------------------------------


def _read_config(path: Path, num_words: int) -> BiLMConfig:
    try:
        return config_from_options(json.loads(path.read_text(encoding="utf-8")), num_words)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is not the options.json of a biLM: {error}") from error


def _datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """Every dataset of the file by its full name; CheckpointError where some are no numbers."""
    found: dict[str, h5py.Dataset] = {}

    def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item

    file.visititems(visit)
    foreign = [f"{name} ({dataset.dtype})" for name, dataset in found.items() if dataset.dtype.kind != "f"]
    if foreign:
        raise CheckpointError(f"{file.filename} holds what are no weights: {', '.join(foreign)}")
    return found


def _weights_shape(name: str, shape: Shape) -> Shape:
    """Some files carry a 262nd character, the mask's, which has no vector of its own."""
    has_spare_row = name == "char_embed" and shape[:1] == (NUM_CHARACTERS + 1,)
    return (NUM_CHARACTERS, *shape[1:]) if has_spare_row else shape


def _read_rows(piece: Piece, dataset: h5py.Dataset) -> np.ndarray:
    if dataset.shape == piece.shape:
        return dataset[piece.rows]
    # AllenNLP puts a row of zeros first; bilm-tf, told of 262 characters too early, trains with an unused last one.
    return dataset[1:] if not dataset[0].any() else dataset[:-1]


def _state_dict(config: BiLMConfig, pieces: list[Piece], datasets: dict[str, h5py.Dataset]) -> dict[str, Tensor]:
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in BiLM(config).state_dict().items()}
    state = {name: torch.empty(shape) for name, shape in shapes.items()}
    for piece in pieces:
        array = _read_rows(piece, datasets[piece.dataset]).astype(np.float32, copy=False)
        state[piece.parameter][piece.part] = torch.from_numpy(array.transpose() if piece.reverse_axes else array)
    return state


def read_bilm_hdf5(options_path: str | Path, weights_path: str | Path) -> tuple[BiLMConfig, dict[str, Tensor]]:
    """Read a biLM: its configuration, and the float32 state_dict of `BiLM(configuration)`.

    CheckpointError, naming every offending key, where the two files do not make one model.
    """
    for path in (options_path, weights_path):
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path} is not a file: options.json and the weights in HDF5 are read together")
    try:
        with h5py.File(weights_path) as file:
            datasets = _datasets(file)
            num_words = datasets["embedding"].shape[0] if "embedding" in datasets else 0
            config = _read_config(Path(options_path), num_words)
            pieces = list(pieces_of(config))
            shapes = {name: _weights_shape(name, dataset.shape) for name, dataset in datasets.items()}
            check_shapes(weights_path, {piece.dataset: piece.shape for piece in pieces}, shapes)
            return config, _state_dict(config, pieces, datasets)
    except CheckpointError:
        raise
    # What h5py says of a file that is cut short, no HDF5 at all, or damaged inside: one of these, by where it stumbles.
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{weights_path} cannot be read as HDF5 ({error}): fetch it again") from error
