"""TensorFlow checkpoints: of bilm-tf's training, or the module google/elmo of TensorFlow Hub, read
without TensorFlow.

PREFIX.index                 a sorted table of LevelDB: variable -> place of its values (a protobuf)
PREFIX.data-NNNNN-of-NNNNN   the values, little-endian, end to end

Variables are mapped by the ends of their names to the datasets of the HDF5 format, whose table does
the rest. Sources: tensorflow/core/util/tensor_bundle, tensorflow/core/protobuf/tensor_bundle.proto,
LevelDB's table_format.md; bilm-tf `bilm/training.py` (names and `dump_weights`); the module's names
as its users printed them.
"""

import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmokit.checkpoints.bilm_hdf5 import (
    fill_state_dict,
    find_options,
    find_vocabulary,
    read_options,
    read_vocabulary,
    table_of,
    without_spare_row,
)
from elmokit.checkpoints.native import module_from, read_card
from elmokit.checkpoints.pretrained import (
    MixWeights,
    Pretrained,
    Shape,
    check_shapes,
    errors_naming,
    numbered,
)
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.nn import BiLM, FullSoftmax

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FOOTER_SIZE, BLOCK_TRAILER_SIZE = 48, 5
# The index of an ELMo has a few kB. These bounds limit the time and memory that a damaged one can
# cost.
MAX_INDEX_SIZE, MAX_NAME_SIZE = 1 << 20, 1 << 9
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}

# After any scope: "lm/" in a checkpoint of bilm-tf, "bilm/" or "module/bilm/" in the module.
PLAIN = re.compile(
    r"(?:.*/)?(char_embed|embedding|CNN/[Wb]_cnn_\d+|CNN_high_\d+/[Wb]_(?:carry|transform)|CNN_proj/[Wb]_proj"
    r"|softmax/[Wb]|aggregation/(?:weights|scaling))"
)
# The mix in modules of DeepPavlov, which bilm-tf's `weight_layers` made.
OF_MIX = {"W": "aggregation/weights", "gamma": "aggregation/scaling"}
MIX = re.compile(r"(?:.*/)?[^/]+_ELMo_(W|gamma)")
# TensorFlow before 1.2 called the weights W_0, B and W_P_0.
LSTM = re.compile(
    r"(?:.*/)?(RNN_[01])/(.*/)?(?:lstm_cell|LSTMCell)/(kernel|bias|projection/kernel|W_0|B|W_P_0)"
)
# Absent where there is one layer, which is not wrapped in a MultiRNNCell.
LAYER = re.compile(r"(?:^|/)(?:cell_|Cell)(\d+)/")
LSTM_WEIGHTS = {"kernel": "W_0", "bias": "B", "projection/kernel": "W_P_0"}
# of training, and the states that bilm-tf's models carry, which have no name of their own
NOT_WEIGHTS = re.compile(
    r"(?:.+/(?:Adagrad|Adam|Adam_1|Momentum|RMSProp|RMSProp_1)"
    r"|(?:.*/)?(?:global_step|train_perplexity|beta[12]_power|Variable))(?:_\d+)?"
)


# --- CRC-32C (Castagnoli) -------------------------------------------------------------------------

POLYNOMIAL = 0x82F63B78
# After these four bytes a CRC that began with zero is all ones.
START = np.array([0x641F6454], "<u4")
BITS = np.arange(32, dtype=np.uint32)


def _table() -> np.ndarray:
    """(2, 65536): the CRCs of 32-bit words whose upper half, and whose lower half, is zero."""
    entry = np.arange(65536, dtype=np.uint32)
    for _ in range(16):
        entry = (entry >> 1) ^ np.where(entry & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    # Another 16 bits pass after the lower half.
    return np.stack([(entry >> 16) ^ entry[entry & 0xFFFF], entry])


TABLE = _table()


def _pass_words(crc: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Advance each crc (N,) by its column of words (T, N)."""
    for row in words:
        crc = crc ^ row
        crc = TABLE[0][crc & 0xFFFF] ^ TABLE[1][crc >> 16]
    return crc


def crc32c(data: bytes | np.ndarray) -> int:
    """The CRC-32C of bytes, or of those of a contiguous array.

    A CRC is linear, so chunks of equal length are computed side by side and combined one after the
    other: crc(a + b) is crc(b) xor crc(a) advanced by the length of b, as long as both start from
    zero. Then zeros before the data change nothing.
    """
    content = np.concatenate([START.view(np.uint8), np.frombuffer(data, np.uint8)])
    num_chunks = 1 + math.isqrt(len(content)) // 8  # about the fastest for any length
    padding = np.zeros(-len(content) % (4 * num_chunks), np.uint8)
    words = np.concatenate([padding, content]).view("<u4").reshape(num_chunks, -1)
    crcs = _pass_words(np.zeros(num_chunks, np.uint32), words.T)
    # How each bit of a CRC advances by the length of a chunk.
    images = _pass_words(np.uint32(1) << BITS, np.zeros((words.shape[1], 1), np.uint32))
    total = np.uint32(0)
    for crc in crcs:
        total = crc ^ np.bitwise_xor.reduce(images[(total >> BITS) & 1 == 1])
    return int(total) ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | np.ndarray) -> int:
    """The CRC-32C as it is stored: rotated and offset, so that data may contain CRCs."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# --- The index: protocol buffers in a sorted table ------------------------------------------------


@dataclass(frozen=True)
class StoredTensor:
    """The location of a variable in a data file; `dtype` is None for non-numbers."""

    dtype: str | None
    shape: Shape
    path: Path
    offset: int
    size: int
    checksum: int | None


def _varints(data: bytes, number: int, at: int = 0) -> list[int]:
    """The `number` varints from `at` on, seven bits per byte, and the position after them."""
    # 300 is 0b10_0101100: the bytes 0b1_0101100 and 0b0_0000010, the lowest seven bits first.
    values = []
    for _ in range(number):
        value = 0
        for shift in range(0, 64, 7):
            byte, at = data[at], at + 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # the last one of a varint lacks the highest bit
                break
        values.append(value)
    return [*values, at]


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message by number: integers, or bytes for strings and nested messages."""
    # A key is number << 3 | kind. Kinds: 0 a varint; 2 its size as a varint, then bytes; 1 and 5
    # integers of 8 and 4 bytes.
    at = 0
    while at < len(message):
        key, at = _varints(message, 1, at)
        number, kind = key >> 3, key & 7
        size = {1: 8, 5: 4}.get(kind, 0)
        if kind in (0, 2):
            size, at = _varints(message, 1, at)
        if kind == 0:
            yield number, size
            continue
        value, at = message[at : at + size], at + size
        yield number, value if kind == 2 else int.from_bytes(value, "little")


def _block(table: bytes, offset: int, size: int) -> bytes:
    """A block of the table, without the trailing type of compression (0: none) and checksum."""
    content, checksum = table[offset : offset + size + 1], table[offset + size + 1 :][:4]
    if struct.unpack("<I", checksum) != (masked_crc32c(content),) or content[-1] != 0:
        raise ValueError("a checksum is wrong")
    return content[:-1]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values; a key is stored as the number of bytes of the last one, and the rest."""
    #   0 11 5 lm/RNN_0/ab 12345    shared 0: the key is lm/RNN_0/ab
    #   8  2 5 1c          67890    shared 8: the key is lm/RNN_0 and 1c
    #   the places where `shared` is 0, four bytes each, and their number
    num_restarts = struct.unpack("<I", block[-4:])[0]
    end, at, key = len(block) - 4 * (num_restarts + 1), 0, b""
    while at < end:
        shared, rest, size, at = _varints(block, 3, at)
        key = key[:shared] + block[at : at + rest]
        at += rest
        value = block[at : at + size]
        at += size
        if len(key) > MAX_NAME_SIZE:
            raise ValueError("it has an invalid name")
        yield key, value


def _table_entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every key and value of the file."""
    #   block 0 | block 1 | ... | metaindex | index | footer
    #
    # A value of the index is the offset and the size of a block, and so are the first numbers of
    # the footer, of the metaindex and then of the index.
    footer = table[-FOOTER_SIZE:]
    # The first two are of the metaindex block, which is always empty.
    _, _, offset, size, _ = _varints(footer, 4)
    read_to = 0
    for _, value in _entries(_block(table, offset, size)):
        offset, size, _ = _varints(value, 2)
        if offset < read_to or table[-8:] != MAGIC:
            raise ValueError("its blocks overlap, or it lacks its end")
        read_to = offset + size
        yield from _entries(_block(table, offset, size))


def _stored_tensor(prefix: Path, num_shards: int, message: bytes) -> StoredTensor:
    """BundleEntryProto: 1 dtype, 2 shape (field 2 of it a dimension, 1 of that its size), 3 shard,
    4 offset, 5 size, 6 crc32c. Zeros are omitted.
    """
    fields = dict(_fields(message))
    shape = tuple(
        dict(_fields(dim)).get(1, 0) for number, dim in _fields(fields.get(2, b"")) if number == 2
    )
    dtype = DTYPES.get(fields.get(1, 0))
    path = prefix.with_name(f"{prefix.name}.data-{fields.get(3, 0):05d}-of-{num_shards:05d}")
    return StoredTensor(dtype, shape, path, fields.get(4, 0), fields.get(5, 0), fields.get(6))


def read_index(prefix: Path) -> dict[str, StoredTensor]:
    """The locations of the variables of a checkpoint, by name.

    Raises:
        FileNotFoundError: There is no PREFIX.index, or a data file is missing.
        CheckpointError: The files are damaged or do not belong together.
    """
    index = prefix.with_name(f"{prefix.name}.index")
    if not index.is_file():
        raise FileNotFoundError(f"{index} is missing, or not a regular file")
    with errors_naming(index):
        if index.stat().st_size > MAX_INDEX_SIZE:
            raise ValueError(f"it has more than {MAX_INDEX_SIZE} bytes")
        entries = dict(_table_entries(index.read_bytes()))
        num_shards = dict(_fields(entries.pop(b"", b""))).get(1, 0)  # BundleHeaderProto
        tensors = {
            key.decode(): _stored_tensor(prefix, num_shards, value)
            for key, value in entries.items()
        }
        if sum(tensor.size for tensor in tensors.values()) > sum(
            path.stat().st_size for path in {tensor.path for tensor in tensors.values()}
        ):
            raise ValueError("its tensors have more bytes than its files")
        return tensors


def read_tensor(tensor: StoredTensor) -> np.ndarray:
    """Read a variable in float32. ValueError if its checksum is wrong."""
    data = np.fromfile(tensor.path, np.uint8, count=tensor.size, offset=tensor.offset)
    if len(data) != tensor.size or tensor.checksum not in (None, masked_crc32c(data)):
        raise ValueError(f"{tensor.path} is damaged at byte {tensor.offset}: fetch it again")
    return data.view(np.dtype(tensor.dtype)).reshape(tensor.shape).astype(np.float32, copy=False)


# --- Files and names ------------------------------------------------------------------------------


def find_prefix(path: str | Path) -> Path | None:
    """Find the prefix of a TensorFlow checkpoint, the common beginning of the paths of its files.

    Args:
        path: The prefix itself, its index, a SavedModel, or a directory of checkpoints or the file
            `checkpoint` in it, of which the latest is taken.

    Returns:
        The prefix; None if there is no checkpoint.
    """
    path = Path(path)
    if path.suffix == ".index" and path.is_file():
        return path.with_suffix("")
    for prefix in (path, path / "variables" / "variables"):
        if Path(f"{prefix}.index").is_file():
            return prefix
    record = path if path.name == "checkpoint" else path / "checkpoint"
    if record.is_file():
        path = record.parent
        # The record may name the directory where training ran, so only the last part of its path is
        # used.
        with record.open("rb") as file:
            beginning = file.read(4096)  # other programs give this name to files of any size
        latest = re.match(rb'model_checkpoint_path: "(?:[^"\n]*[/\\])?([^"\n]+)"', beginning)
        if latest and (path / f"{latest[1].decode(errors='replace')}.index").is_file():
            return path / latest[1].decode()

    def step_and_name(index: Path) -> tuple[int, str]:
        step = re.search(r"-(\d+)$", index.stem)
        return int(step[1]) if step else -1, index.name

    last = max(path.glob("[!.]*.index"), key=step_and_name, default=None)
    return last and last.with_suffix("")


def dataset_name(variable: str) -> str | None:
    """The name of a variable in the HDF5 format; None for non-weights."""
    if match := PLAIN.fullmatch(variable):
        return match[1]
    if match := MIX.fullmatch(variable):
        return OF_MIX[match[1]]
    if match := LSTM.fullmatch(variable):
        direction, path, weight = match.groups()
        layer = LAYER.search(path or "")
        cell = f"{direction}/RNN/MultiRNNCell/Cell{layer[1] if layer else 0}/LSTMCell"
        return f"{cell}/{LSTM_WEIGHTS.get(weight, weight)}"
    return None


def _by_dataset(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The weights by their names in the HDF5 format; by their own if unknown or there twice."""
    named: dict[str, StoredTensor] = {}
    for variable, tensor in tensors.items():
        if not NOT_WEIGHTS.fullmatch(variable):
            dataset = dataset_name(variable)
            named[variable if dataset is None or dataset in named else dataset] = tensor
    return named


# --- Loading --------------------------------------------------------------------------------------


def config_from_shapes(shapes: Mapping[str, Any]) -> BiLMConfig:
    """The configuration of a module without options.json: sizes from its weights, the rest as
    published.

    Raises:
        ValueError, LookupError, TypeError: The weights are not those of an ELMo.
    """
    cell = "RNN_0/RNN/MultiRNNCell/Cell{}/LSTMCell/"
    kernels, biases = numbered(shapes, cell + "W_0"), numbered(shapes, cell + "B")
    filters = numbered(shapes, "CNN/W_cnn_{}")
    # The kernel has input and state in its rows, four gates in its columns. Clips, skips and relu
    # are those of the published model (options.json), whose weights the module has.
    return BiLMConfig(
        LSTMConfig(
            num_layers=len(kernels), cell_dim=biases[0][0] // 4, projection_dim=kernels[0][0] // 2
        ),
        CharCNNConfig(
            embedding_dim=shapes["char_embed"][1],
            filters=tuple((width, number) for _, width, _, number in filters),
            num_highway=len(numbered(shapes, "CNN_high_{}/W_carry")),
        ),
    )


def load_tf_checkpoint(prefix: Path, softmax: bool = True) -> Pretrained:
    """Load a model from PREFIX.index and its data, with options.json and vocabulary next to them or
    in the parent.

    Raises:
        FileNotFoundError: There are no options. (The module of TensorFlow Hub needs none.)
        CheckpointError: The files are damaged; every variable that is missing, unknown or of
            another shape is named.
    """
    tensors = _by_dataset(read_index(prefix))
    shapes = {
        name: without_spare_row(name, tensor.shape) if "f" in (tensor.dtype or "") else None
        for name, tensor in tensors.items()
    }
    folders = prefix.parent, prefix.parent.parent
    options = find_options(prefix, folders[1])
    has_mix, output_bias = "aggregation/weights" in shapes, shapes.get("softmax/b")
    if not options.is_file() and not has_mix:
        raise FileNotFoundError(
            f"{prefix} has no options.json in its directory or the parent: put it there"
        )
    with errors_naming(prefix):
        num_words = (shapes.get("embedding") or (0,))[0]
        if options.is_file():
            config = read_options(options, num_words)
        else:
            config = config_from_shapes(shapes)
    encoder = {entry.dataset: entry.shape for entry in table_of(config)}
    expected = dict(encoder)
    # A biLM of word ids may share its table with the softmax.
    weight = "embedding" if "embedding" in shapes and "softmax/W" not in shapes else "softmax/W"
    if output_bias:
        expected[weight] = (output_bias[0], config.sequence_encoder.projection_dim)
        expected["softmax/b"] = output_bias[:1]
    if has_mix:  # the scale is () in Google's module, and (1,) in those of DeepPavlov
        scale = shapes.get("aggregation/scaling")
        expected["aggregation/weights"] = (config.num_representations,)
        expected["aggregation/scaling"] = (1,) if scale == (1,) else ()
    check_shapes(prefix, expected, shapes)

    def read(name: str) -> np.ndarray:
        return read_tensor(tensors[name])

    parts = {}
    if softmax and output_bias:
        weights = {"weight": read(weight), "bias": read("softmax/b")}
        weights = {name: torch.from_numpy(array) for name, array in weights.items()}
        parts["softmax"] = module_from(lambda: FullSoftmax(*expected[weight]), weights)
    if has_mix:  # stored as they are before the softmax
        mix = read("aggregation/weights").tolist()
        parts["mix"] = MixWeights(tuple(mix), read("aggregation/scaling").item())
    state = fill_state_dict(config, {name: read(name) for name in encoder})
    rows = output_bias[0] if output_bias else config.num_words
    vocab, config = read_vocabulary(find_vocabulary(folders, rows), config)
    bilm = module_from(lambda: BiLM(config), state)
    return Pretrained(bilm, vocab=vocab, card=read_card(prefix.parent), **parts)
