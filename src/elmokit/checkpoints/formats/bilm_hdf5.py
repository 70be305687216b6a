"""The pair options.json + weights.hdf5 of bilm-tf and AllenNLP: a table of names, and what makes a state_dict of it.

Nothing is computed, only cut, transposed and laid side by side, so that the way back can be exact.
Sources: bilm-tf `bilm/model.py` and `bilm/training.py`; AllenNLP `modules/elmo.py` and `modules/elmo_lstm.py`.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType

import h5py
import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints.detect import options_of
from elmokit.checkpoints.errors import CheckpointError, Shape, check_shapes
from elmokit.checkpoints.formats.bilm_options import options_from_config, read_options
from elmokit.checkpoints.formats.companions import (
    VOCABULARIES,
    read_card_or_metadata,
    read_vocabulary,
    with_boundary_words,
)
from elmokit.checkpoints.native import filled
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import NUM_CHARACTERS, BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.fs.atomic import atomic_path
from elmokit.nn.bilm import BiLM
from elmokit.nn.shapes_only import shapes_only
from elmokit.text.vocab import Vocab

# The weights are not compressed much by anyone, so a small file that claims to hold large ones is damaged or a trap.
MAX_EXPANSION, ALWAYS_ALLOWED = 64, 1 << 26
WORDS_AT_ONCE = 8192
# bilm-tf's `dump_weights` does not number the cell of a model that has one layer.
ONLY_CELL, FIRST_CELL = "/RNN/LSTMCell/", "/RNN/MultiRNNCell/Cell0/LSTMCell/"


# --- The table ---------------------------------------------------------------------------------------------------


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
    cell, dim, hidden = (
        f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell",
        config.projection_dim,
        config.cell_dim,
    )
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


# --- Reading -----------------------------------------------------------------------------------------------------


def _check_storage(file: h5py.File, datasets: dict[str, h5py.Dataset]) -> None:
    """CheckpointError where a dataset is no array of numbers in this very file, or they claim sizes beyond reason."""
    foreign = [
        f"{name} ({dataset.dtype})"
        for name, dataset in datasets.items()
        if dataset.dtype.kind != "f" or dataset.is_virtual or dataset.external
    ]
    if foreign:
        raise CheckpointError(f"{file.filename} holds what are no weights: {', '.join(foreign)}")
    allowed = ALWAYS_ALLOWED + MAX_EXPANSION * Path(file.filename).stat().st_size
    # HDF5 reads by chunks, and one chunk may be larger than all of its dataset.
    claimed = sum(
        dataset.dtype.itemsize * (math.prod(dataset.shape) + math.prod(dataset.chunks or ()))
        for dataset in datasets.values()
    )
    if claimed > allowed:
        raise CheckpointError(f"{file.filename} claims to hold {claimed} bytes of weights, which cannot be")


def _datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """Every dataset of the file by its name in the table; CheckpointError where some are no weights."""
    found: dict[str, h5py.Dataset] = {}

    def visit(name: str | bytes, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            # A damaged name comes as bytes.
            found[str(name).replace(ONLY_CELL, FIRST_CELL)] = item

    file.visititems(visit)
    _check_storage(file, found)
    return found


def weights_shape(name: str, shape: Shape) -> Shape:
    """Some files carry a 262nd character, the mask's, which has no vector of its own."""
    has_spare_row = name == "char_embed" and shape[:1] == (NUM_CHARACTERS + 1,)
    return (NUM_CHARACTERS, *shape[1:]) if has_spare_row else shape


def _read_rows(piece: Piece, dataset: h5py.Dataset | np.ndarray) -> np.ndarray:
    if dataset.shape == piece.shape:
        return dataset[piece.rows]
    # AllenNLP puts a row of zeros first; bilm-tf, told of 262 characters too early, trains with an unused last one.
    return dataset[1:] if not dataset[0].any() else dataset[:-1]


def fill_state_dict(config: BiLMConfig, datasets: Mapping[str, h5py.Dataset | np.ndarray]) -> dict[str, Tensor]:
    """The float32 state_dict of `BiLM(config)` from datasets that have the names and shapes of the table."""
    with shapes_only():
        shapes = {name: parameter.shape for name, parameter in BiLM(config).stored_tensors().items()}
    state = {name: torch.empty(shape) for name, shape in shapes.items()}
    for piece in pieces_of(config):
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
            config = read_options(Path(options_path), num_words)
            shapes = {name: weights_shape(name, dataset.shape) for name, dataset in datasets.items()}
            check_shapes(weights_path, {piece.dataset: piece.shape for piece in pieces_of(config)}, shapes)
            return config, fill_state_dict(config, datasets)
    except CheckpointError:
        raise
    # What h5py says of a file that is cut short, no HDF5, or damaged inside: one of these, by where it stumbles.
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{weights_path} cannot be read as HDF5 ({error}): fetch it again") from error


def load_bilm_hdf5(weights: Path, softmax: bool = True) -> Pretrained:
    """Load a model from its HDF5 file, with the options, vocabulary and card beside it; it never has a softmax.

    Raises:
        FileNotFoundError: The options are missing.
        CheckpointError: The files are damaged or do not make one model.
    """
    config, state_dict = read_bilm_hdf5(options_of(weights), weights)
    vocabularies = (weights.with_name(name) for name in VOCABULARIES)
    vocab = read_vocabulary(next(filter(Path.is_file, vocabularies), None), config)
    try:
        config = with_boundary_words(config, vocab)
        bilm = filled(lambda: BiLM(config), state_dict)
        return Pretrained(bilm, vocab=vocab, card=read_card_or_metadata(weights.parent))
    except ValueError as error:
        raise CheckpointError(f"{weights} does not fit the files beside it: {error}") from error


# --- Writing -----------------------------------------------------------------------------------------------------


def arrays_of(bilm: BiLM) -> dict[str, np.ndarray]:
    """The datasets of the format, in float32: what `fill_state_dict` makes the weights of."""
    state, pieces = bilm.stored_tensors(), list(pieces_of(bilm.config))
    arrays = {piece.dataset: np.empty(piece.shape, np.float32) for piece in pieces}
    for piece in pieces:
        part = state[piece.parameter][piece.part].float().cpu().numpy()
        arrays[piece.dataset][piece.rows] = part.transpose() if piece.reverse_axes else part
    return arrays


def write_bilm_hdf5(bilm: BiLM, directory: str | Path) -> None:
    """Write options.json and weights.hdf5, which bilm-tf and AllenNLP read, into an existing directory.

    ValueError where the format has no words for the model's configuration.
    """
    directory = Path(directory)
    options = json.dumps(options_from_config(bilm.config), indent=2) + "\n"
    (directory / "options.json").write_text(options, encoding="utf-8")
    with h5py.File(directory / "weights.hdf5", "w") as file:
        for name, array in arrays_of(bilm).items():
            file.create_dataset(name, data=array)


@torch.inference_mode()
def write_token_embeddings(bilm: BiLM, vocab: Vocab, path: str | Path) -> None:
    """Write bilm-tf's file of token vectors: a dataset `embedding` (V, D), the token encoder's vector of each word.

    With it, bilm-tf and AllenNLP read word ids in place of characters. The file appears whole or not at all.
    """
    if bilm.token_encoder.input != "characters":
        raise ValueError("the model reads words, not characters: its token vectors are `embedding` in weights.hdf5")
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        shape = (len(vocab), bilm.config.lstm.projection_dim)
        embedding = file.create_dataset("embedding", shape, dtype="float32")
        for begin in range(0, len(vocab), WORDS_AT_ONCE):
            words = vocab.words[begin : begin + WORDS_AT_ONCE]
            vectors = bilm.token_encoder(bilm.token_encoder.ids(words).to(bilm.device))
            embedding[begin : begin + len(words)] = vectors.float().cpu().numpy()
