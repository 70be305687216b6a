"""The pair options.json + weights.hdf5 of bilm-tf and AllenNLP: settings, and a table of datasets
and parameters.

Tensors are sliced, transposed and concatenated, without arithmetic, so that writing is the exact
inverse of reading. Sources: bilm-tf `bilm/model.py` and `bilm/training.py`; AllenNLP
`modules/elmo.py` and `modules/elmo_lstm.py`.
"""

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import EllipsisType

import h5py
import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints.native import module_from, read_card, weight_shapes
from elmokit.checkpoints.pretrained import (
    CheckpointError,
    Pretrained,
    Shape,
    check_shapes,
    errors_naming,
)
from elmokit.config import NUM_CHARACTERS, BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.fs import atomic_path, read_json
from elmokit.nn import BiLM
from elmokit.text import Vocab

# Weights hardly compress, so a small file that claims to hold large ones is damaged or malicious.
MAX_EXPANSION, ALWAYS_ALLOWED = 64, 1 << 26
# bilm-tf's `dump_weights` does not number the cell of a model that has one layer.
ONLY_CELL, FIRST_CELL = "/RNN/LSTMCell/", "/RNN/MultiRNNCell/Cell0/LSTMCell/"
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
# bio_embeddings and others name files after their arguments
OPTIONS = ("options.json", "options_file", "options")
VOCABULARIES = ("vocab.txt", "vocab.txt.gz")


# --- Files ----------------------------------------------------------------------------------------


def _is_hdf5(path: Path) -> bool:
    """Whether a file is HDF5, by its suffix or, if it has none, by its first bytes."""
    if path.suffix or not path.is_file():
        return path.suffix in (".hdf5", ".h5") and path.is_file()
    with path.open("rb") as file:
        return file.read(len(HDF5_SIGNATURE)) == HDF5_SIGNATURE


def find_hdf5(path: Path) -> Path | None:
    """The weights: the path itself, or the only such file in it. CheckpointError for several."""
    if not path.is_dir():
        return path if _is_hdf5(path) else None
    # [!.] leaves out files such as ._model.hdf5, in which macOS keeps the attributes of model.hdf5.
    weights = sorted(path.glob("[!.]*.hdf5")) or sorted(filter(_is_hdf5, path.glob("[!.]*")))
    if len(weights) > 1:
        listed = ", ".join(map(str, weights))
        raise CheckpointError(
            f"{path} holds several HDF5 files: give the path of the one with the weights ({listed})"
        )
    return weights[0] if weights else None


def find_beside(
    folders: Sequence[Path],
    names: Sequence[str],
    pattern: str,
    fits: Callable[[Path], bool] = Path.is_file,
) -> Path | None:
    """The file of a model in some folders: the first of these names, or in the first folder that
    has a single one, the one of a pattern that fits.
    """
    named = (folder / name for folder in folders for name in names)
    if path := next(filter(Path.is_file, named), None):
        return path
    fitting = (list(filter(fits, folder.glob(pattern))) for folder in folders)
    return next((paths[0] for paths in fitting if len(paths) == 1), None)


def find_options(weights: Path, *others: Path) -> Path:
    """The path of the options for weights, next to them or in other folders; it need not exist.

    They have the weights' name with "options" for "weights", or are called options.json, or
    options_file or options without a suffix, or are the only *options*.json in the directory.
    """
    same_name = weights.name.removesuffix("weights.hdf5") + "options.json"
    folders = weights.parent, *others
    path = find_beside(folders, (same_name, *OPTIONS), "[!.]*options*.json")
    return path or weights.with_name("options.json")


def find_vocabulary(folders: Sequence[Path], rows: int | None) -> Path | None:
    """The vocabulary in the first of the folders that has one; None if there is none.

    It is called vocab.txt or vocab.txt.gz; or, as vocab-2016-09-10.txt of the published checkpoint,
    it is the only *vocab*.txt with a word for each of the rows of the softmax or of the word table.
    """

    def fits(path: Path) -> bool:
        with suppress(ValueError):  # no text
            return rows is not None and len(Vocab.read_words(path)) == rows
        return False

    return find_beside(folders, VOCABULARIES, "*vocab*.txt", fits)


def read_options(path: Path, num_words: int) -> BiLMConfig:
    """Read the configuration that options.json describes. CheckpointError if it is invalid."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, or not a regular file")
    with errors_naming(path):
        return BiLMConfig.from_options(read_json(path), num_words)


def read_vocabulary(words: Path | None, config: BiLMConfig) -> tuple[Vocab | None, BiLMConfig]:
    """The vocabulary of a model, if it has one, and the configuration with its rows of <S> and
    </S>.

    A model that reads characters needs it for its softmax only, so that a damaged one is ignored
    with a warning.
    """
    try:
        vocab = None if words is None else Vocab.read(words)
    except ValueError as error:
        if config.char_cnn is None:
            raise
        reason = "the model is loaded without its vocabulary, which only its softmax needs"
        warnings.warn(f"{error}; {reason}", stacklevel=4)
        vocab = None
    if vocab is not None and config.char_cnn is None:
        config = replace(config, boundary_words=(vocab.bos, vocab.eos))
    return vocab, config


# --- The table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """`state_dict[parameter][part]` is `file[dataset][rows]`, perhaps with reversed axes."""

    dataset: str
    shape: Shape  # shape of the dataset
    parameter: str
    part: slice | EllipsisType = ...
    rows: int | slice | EllipsisType = ...
    # TensorFlow multiplies from the right and keeps convolutions as (1, width, in, out).
    reverse_axes: bool = True


def _char_cnn_entries(config: CharCNNConfig, output_dim: int) -> Iterator[Entry]:
    dim, filters = config.embedding_dim, config.num_filters
    yield Entry(
        "char_embed",
        (config.num_characters, dim),
        "token_encoder.char_embedding",
        reverse_axes=False,
    )
    for i, (width, number) in enumerate(config.filters):
        yield Entry(
            f"CNN/W_cnn_{i}",
            (1, width, dim, number),
            f"token_encoder.convolutions.{i}.weight",
            rows=0,
        )
        yield Entry(f"CNN/b_cnn_{i}", (number,), f"token_encoder.convolutions.{i}.bias")
    for k in range(config.num_highway):
        weight, bias = (
            f"token_encoder.highways.{k}.gates.weight",
            f"token_encoder.highways.{k}.gates.bias",
        )
        for gate, part in (
            ("transform", slice(0, filters)),
            ("carry", slice(filters, 2 * filters)),
        ):
            yield Entry(f"CNN_high_{k}/W_{gate}", (filters, filters), weight, part)
            yield Entry(f"CNN_high_{k}/b_{gate}", (filters,), bias, part)
    # Both systems omit the projection where it would not change the size.
    if filters != output_dim:
        yield Entry("CNN_proj/W_proj", (filters, output_dim), "token_encoder.projection.weight")
        yield Entry("CNN_proj/b_proj", (output_dim,), "token_encoder.projection.bias")


def _lstm_entries(config: LSTMConfig, direction: int, layer: int) -> Iterator[Entry]:
    cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
    ours = f"sequence_encoder.stacks.{direction}.layers.{layer}"
    dim, hidden = config.projection_dim, config.cell_dim
    # The upper rows of the kernel multiply the input, the lower ones the state:
    #
    #            i   j   f   o        columns, H each, in the order that we have, too
    #   input    .   .   .   .   D rows    -> input_weight (4H, D), transposed
    #   state    .   .   .   .   D rows    -> recurrent_weight (4H, D), transposed
    kernel = (2 * dim, 4 * hidden)
    yield Entry(f"{cell}/W_0", kernel, f"{ours}.input_weight", rows=slice(0, dim))
    yield Entry(f"{cell}/W_0", kernel, f"{ours}.recurrent_weight", rows=slice(dim, 2 * dim))
    yield Entry(f"{cell}/B", (4 * hidden,), f"{ours}.bias")
    # bilm-tf omits the projection where it would not change the size.
    if config.has_projection:
        yield Entry(f"{cell}/W_P_0", (hidden, dim), f"{ours}.projection_weight")


def table_of(config: BiLMConfig) -> Iterator[Entry]:
    """The table: every dataset, its shape, and the part of the parameter that it fills."""
    lstm = config.lstm_for("AllenNLP's and bilm-tf's files are")
    if config.char_cnn is None:
        words = (config.num_words or 0, lstm.projection_dim)
        yield Entry("embedding", words, "token_encoder.weight", reverse_axes=False)
    else:
        yield from _char_cnn_entries(config.char_cnn, lstm.projection_dim)
    for direction in range(2):
        for layer in range(lstm.num_layers):
            yield from _lstm_entries(lstm, direction, layer)


# --- Reading --------------------------------------------------------------------------------------


def _datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """The datasets by their names in the table. ValueError if they claim an impossible size."""
    datasets: dict[str, h5py.Dataset] = {}

    def visit(name: str | bytes, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            # h5py gives a damaged name as bytes.
            datasets[str(name).replace(ONLY_CELL, FIRST_CELL)] = item

    file.visititems(visit)
    # HDF5 reads whole chunks, and a chunk may be larger than its dataset; null datasets have no
    # shape.
    claimed = sum(
        dataset.dtype.itemsize * (math.prod(dataset.shape or ()) + math.prod(dataset.chunks or ()))
        for dataset in datasets.values()
    )
    if claimed > ALWAYS_ALLOWED + MAX_EXPANSION * Path(file.filename).stat().st_size:
        raise ValueError(f"it claims to hold {claimed} bytes of weights, which is impossible")
    return datasets


def without_spare_row(name: str, shape: Shape) -> Shape:
    """Drop the 262nd row of characters, which no character uses, from a shape."""
    has_spare_row = name == "char_embed" and shape[:1] == (NUM_CHARACTERS + 1,)
    return (NUM_CHARACTERS, *shape[1:]) if has_spare_row else shape


def _shape(name: str, dataset: h5py.Dataset) -> Shape | None:
    """The shape of a dataset; None unless it is a float array stored in this file."""
    shape = dataset.shape  # HDF5's null datasets have none
    is_weight = dataset.dtype.kind == "f" and not dataset.is_virtual and not dataset.external
    return without_spare_row(name, shape) if is_weight and shape is not None else None


def _read_rows(entry: Entry, dataset: h5py.Dataset | np.ndarray) -> np.ndarray:
    if dataset.shape == entry.shape:
        return dataset[entry.rows]
    # A table of 262 rows: AllenNLP's begins with zeros; bilm-tf's, if trained with 262, ends with
    # an unused row.
    return dataset[1:] if not dataset[0].any() else dataset[:-1]


def fill_state_dict(
    config: BiLMConfig, datasets: Mapping[str, h5py.Dataset | np.ndarray]
) -> dict[str, Tensor]:
    """The state_dict of `BiLM(config)`, in float32, from the datasets of its table."""
    shapes = weight_shapes(config)
    state = {
        name: torch.empty(shape, dtype=torch.float32, device="cpu")
        for name, shape in shapes.items()
    }
    for entry in table_of(config):
        array = _read_rows(entry, datasets[entry.dataset]).astype(np.float32, copy=False)
        state[entry.parameter][entry.part] = torch.from_numpy(
            array.transpose() if entry.reverse_axes else array
        )
    return state


def read_bilm_hdf5(
    options_path: str | Path, weights_path: str | Path
) -> tuple[BiLMConfig, dict[str, Tensor]]:
    """Read a biLM from its two files.

    Returns:
        Its configuration, and the state_dict of `BiLM(configuration)` in float32.

    Raises:
        FileNotFoundError: One of the files is missing.
        CheckpointError: They are damaged or do not make one model; every offending key is named.
    """
    with errors_naming(weights_path), h5py.File(weights_path) as file:
        datasets = _datasets(file)
        shapes = {name: _shape(name, dataset) for name, dataset in datasets.items()}
        config = read_options(Path(options_path), (shapes.get("embedding") or (0,))[0])
        check_shapes(
            weights_path, {entry.dataset: entry.shape for entry in table_of(config)}, shapes
        )
        return config, fill_state_dict(config, datasets)


def load_bilm_hdf5(
    weights: Path, options: Path | None = None, vocab: Path | None = None
) -> Pretrained:
    """Load a model; its options and vocabulary are found beside the weights unless given."""
    config, state_dict = read_bilm_hdf5(options or find_options(weights), weights)
    vocab = vocab or find_vocabulary([weights.parent], config.num_words)
    words, config = read_vocabulary(vocab, config)
    bilm = module_from(lambda: BiLM(config), state_dict)
    return Pretrained(bilm, vocab=words, card=read_card(weights.parent))


# --- Writing --------------------------------------------------------------------------------------


def arrays_of(bilm: BiLM) -> dict[str, np.ndarray]:
    """The datasets of a biLM in float32; `fill_state_dict` is the inverse."""
    state, table = bilm.state_dict(), list(table_of(bilm.config))
    arrays = {entry.dataset: np.empty(entry.shape, np.float32) for entry in table}
    for entry in table:
        part = state[entry.parameter][entry.part].float().cpu().numpy()
        arrays[entry.dataset][entry.rows] = part.transpose() if entry.reverse_axes else part
    return arrays


def write_bilm_hdf5(bilm: BiLM, directory: str | Path) -> None:
    """Write options.json and weights.hdf5, which bilm-tf and AllenNLP read, into an existing
    directory.

    Raises:
        ValueError: The format cannot express the model's configuration.
    """
    directory = Path(directory)
    options = json.dumps(bilm.config.to_options(), indent=2) + "\n"
    (directory / "options.json").write_text(options, encoding="utf-8")
    with atomic_path(directory / "weights.hdf5") as partial, h5py.File(partial, "w") as file:
        for name, array in arrays_of(bilm).items():
            file.create_dataset(name, data=array)
