"""The pair options.json + weights.hdf5 of bilm-tf and AllenNLP: a table of datasets and the parameters they fill.

Tensors are sliced, transposed and concatenated, without arithmetic, so that writing is the exact inverse of reading.
Sources: bilm-tf `bilm/model.py` and `bilm/training.py`; AllenNLP `modules/elmo.py` and `modules/elmo_lstm.py`.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
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
from elmokit.fs.hdf5 import atomic_hdf5
from elmokit.nn.bilm import BiLM, shapes_only

# Weights hardly compress, so a small file that claims to hold large ones is damaged or malicious.
MAX_EXPANSION, ALWAYS_ALLOWED = 64, 1 << 26
BATCH_WORDS = 8192
# bilm-tf's `dump_weights` does not number the cell of a model that has one layer.
ONLY_CELL, FIRST_CELL = "/RNN/LSTMCell/", "/RNN/MultiRNNCell/Cell0/LSTMCell/"


# --- The table ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """`state_dict[parameter][part]` is `file[dataset][rows]`, with its axes reversed if `reverse_axes`."""

    dataset: str
    shape: Shape  # of the dataset
    parameter: str
    part: slice | EllipsisType = ...
    rows: int | slice | EllipsisType = ...
    # TensorFlow multiplies from the right and keeps convolutions as (1, width, in, out).
    reverse_axes: bool = True


def _char_cnn_entries(config: CharCNNConfig, output_dim: int) -> Iterator[Entry]:
    dim, filters = config.embedding_dim, config.num_filters
    yield Entry("char_embed", (config.num_characters, dim), "token_encoder.char_embedding", reverse_axes=False)
    for i, (width, number) in enumerate(config.filters):
        yield Entry(f"CNN/W_cnn_{i}", (1, width, dim, number), f"token_encoder.convolutions.{i}.weight", rows=0)
        yield Entry(f"CNN/b_cnn_{i}", (number,), f"token_encoder.convolutions.{i}.bias")
    for k in range(config.num_highway):
        weight, bias = f"token_encoder.highways.{k}.gates.weight", f"token_encoder.highways.{k}.gates.bias"
        for gate, part in (("transform", slice(0, filters)), ("carry", slice(filters, 2 * filters))):
            yield Entry(f"CNN_high_{k}/W_{gate}", (filters, filters), weight, part)
            yield Entry(f"CNN_high_{k}/b_{gate}", (filters,), bias, part)
    # Both systems omit the projection where it would not change the size.
    if filters != output_dim:
        yield Entry("CNN_proj/W_proj", (filters, output_dim), "token_encoder.projection.weight")
        yield Entry("CNN_proj/b_proj", (output_dim,), "token_encoder.projection.bias")


def _lstm_entries(config: LSTMConfig, direction: int, layer: int) -> Iterator[Entry]:
    cell, dim, hidden = (
        f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell",
        config.projection_dim,
        config.cell_dim,
    )
    ours = f"sequence_encoder.stacks.{direction}.layers.{layer}"
    # The upper rows of the kernel multiply the input, the lower ones the state. Columns: gates i, j, f, o, as here.
    kernel = (2 * dim, 4 * hidden)
    yield Entry(f"{cell}/W_0", kernel, f"{ours}.input_weight", rows=slice(0, dim))
    yield Entry(f"{cell}/W_0", kernel, f"{ours}.recurrent_weight", rows=slice(dim, 2 * dim))
    yield Entry(f"{cell}/B", (4 * hidden,), f"{ours}.bias")
    # bilm-tf omits the projection where it would not change the size.
    if config.has_projection:
        yield Entry(f"{cell}/W_P_0", (hidden, dim), f"{ours}.projection_weight")


def table_of(config: BiLMConfig) -> Iterator[Entry]:
    """The table: every dataset of the file, its shape, and which part of which parameter it fills."""
    lstm = config.lstm_for("AllenNLP's and bilm-tf's files are")
    if config.char_cnn is None:
        words = (config.num_words or 0, lstm.projection_dim)
        yield Entry("embedding", words, "token_encoder.weight", reverse_axes=False)
    else:
        yield from _char_cnn_entries(config.char_cnn, lstm.projection_dim)
    for direction in range(2):
        for layer in range(lstm.num_layers):
            yield from _lstm_entries(lstm, direction, layer)


# --- Reading -----------------------------------------------------------------------------------------------------


def _check_storage(file: h5py.File, datasets: dict[str, h5py.Dataset]) -> None:
    """CheckpointError if a dataset is not an array of floats in this file, or the claimed sizes are impossible."""
    foreign = [
        f"{name} ({dataset.dtype})"
        for name, dataset in datasets.items()
        # HDF5's null datasets have no shape.
        if dataset.dtype.kind != "f" or dataset.shape is None or dataset.is_virtual or dataset.external
    ]
    if foreign:
        raise CheckpointError(f"{file.filename} holds datasets that are not weights: {', '.join(foreign)}")
    allowed = ALWAYS_ALLOWED + MAX_EXPANSION * Path(file.filename).stat().st_size
    # HDF5 reads whole chunks, and a chunk may be larger than its dataset.
    claimed = sum(
        dataset.dtype.itemsize * (math.prod(dataset.shape) + math.prod(dataset.chunks or ()))
        for dataset in datasets.values()
    )
    if claimed > allowed:
        raise CheckpointError(f"{file.filename} claims to hold {claimed} bytes of weights, which is impossible")


def _datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """All datasets of the file by their names in the table. CheckpointError if some are not weights."""
    datasets: dict[str, h5py.Dataset] = {}

    def visit(name: str | bytes, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            # h5py gives a damaged name as bytes.
            datasets[str(name).replace(ONLY_CELL, FIRST_CELL)] = item

    file.visititems(visit)
    _check_storage(file, datasets)
    return datasets


def weights_shape(name: str, shape: Shape) -> Shape:
    """The shape of a dataset without the 262nd row of characters that some files have, which no character uses."""
    has_spare_row = name == "char_embed" and shape[:1] == (NUM_CHARACTERS + 1,)
    return (NUM_CHARACTERS, *shape[1:]) if has_spare_row else shape


def _read_rows(entry: Entry, dataset: h5py.Dataset | np.ndarray) -> np.ndarray:
    if dataset.shape == entry.shape:
        return dataset[entry.rows]
    # A table of 262 rows: AllenNLP's begins with zeros; bilm-tf's, if trained with 262, ends with an unused row.
    return dataset[1:] if not dataset[0].any() else dataset[:-1]


def fill_state_dict(config: BiLMConfig, datasets: Mapping[str, h5py.Dataset | np.ndarray]) -> dict[str, Tensor]:
    """The state_dict of `BiLM(config)`, in float32, from datasets that have the names and shapes of its table."""
    with shapes_only():
        shapes = {name: parameter.shape for name, parameter in BiLM(config).state_dict().items()}
    state = {name: torch.empty(shape, dtype=torch.float32, device="cpu") for name, shape in shapes.items()}
    for entry in table_of(config):
        array = _read_rows(entry, datasets[entry.dataset]).astype(np.float32, copy=False)
        state[entry.parameter][entry.part] = torch.from_numpy(array.transpose() if entry.reverse_axes else array)
    return state


def read_bilm_hdf5(options_path: str | Path, weights_path: str | Path) -> tuple[BiLMConfig, dict[str, Tensor]]:
    """Read a biLM from its two files.

    Returns:
        Its configuration, and the state_dict of `BiLM(configuration)` in float32.

    Raises:
        FileNotFoundError: One of the files is missing.
        CheckpointError: They are damaged or do not make one model; every offending key is named.
    """
    for path in (options_path, weights_path):
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path} is not a file: options.json and the weights in HDF5 are read together")
    try:
        with h5py.File(weights_path) as file:
            datasets = _datasets(file)
            # A number in its place has no rows: it is named with all other shapes that are wrong.
            num_words = datasets["embedding"].shape[0] if "embedding" in datasets and datasets["embedding"].ndim else 0
            config = read_options(Path(options_path), num_words)
            shapes = {name: weights_shape(name, dataset.shape) for name, dataset in datasets.items()}
            check_shapes(weights_path, {entry.dataset: entry.shape for entry in table_of(config)}, shapes)
            return config, fill_state_dict(config, datasets)
    except CheckpointError:
        raise
    # h5py raises any of these for a file that is truncated, damaged, or not HDF5.
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{weights_path} cannot be read as HDF5 ({error}): fetch it again") from error


def load_bilm_hdf5(weights: Path, softmax: bool = True) -> Pretrained:
    """Load a model from its HDF5 file, with the options, vocabulary and card next to it; it never has a softmax.

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
        raise CheckpointError(f"{weights} does not match the files next to it: {error}") from error


# --- Writing -----------------------------------------------------------------------------------------------------


def arrays_of(bilm: BiLM) -> dict[str, np.ndarray]:
    """The datasets of a biLM in float32; `fill_state_dict` is the inverse."""
    state, table = bilm.state_dict(), list(table_of(bilm.config))
    arrays = {entry.dataset: np.empty(entry.shape, np.float32) for entry in table}
    for entry in table:
        part = state[entry.parameter][entry.part].float().cpu().numpy()
        arrays[entry.dataset][entry.rows] = part.transpose() if entry.reverse_axes else part
    return arrays


def write_bilm_hdf5(bilm: BiLM, directory: str | Path) -> None:
    """Write options.json and weights.hdf5, which bilm-tf and AllenNLP read, into an existing directory.

    Raises:
        ValueError: The format cannot express the model's configuration.
    """
    directory = Path(directory)
    options = json.dumps(options_from_config(bilm.config), indent=2) + "\n"
    (directory / "options.json").write_text(options, encoding="utf-8")
    with atomic_hdf5(directory / "weights.hdf5") as file:
        for name, array in arrays_of(bilm).items():
            file.create_dataset(name, data=array)


@torch.inference_mode()
def write_token_embeddings(bilm: BiLM, words: Sequence[str], path: str | Path, overwrite: bool = True) -> None:
    """Write bilm-tf's file of token vectors, with which it and AllenNLP read word ids in place of characters.

    Args:
        bilm: A biLM over characters.
        words: V words.
        path: The file, written atomically, with a dataset `embedding` (V, D) float32 of the token encoder's vectors.
        overwrite: Replace a file with other content.

    Raises:
        FileExistsError: The file exists with other content, and `overwrite` is not set.
        ValueError: The biLM reads word ids.
    """
    if bilm.token_encoder.input != "characters":
        raise ValueError("the model reads words, not characters: its token vectors are `embedding` in weights.hdf5")
    with atomic_hdf5(path, overwrite) as file:
        shape = (len(words), bilm.config.sequence_encoder.projection_dim)
        embedding = file.create_dataset("embedding", shape, dtype="float32")
        for begin in range(0, len(words), BATCH_WORDS):
            batch = words[begin : begin + BATCH_WORDS]
            vectors = bilm.word_vectors(batch)[: len(batch)]
            embedding[begin : begin + len(batch)] = vectors.float().cpu().numpy()
