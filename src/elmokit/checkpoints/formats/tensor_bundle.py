"""TensorFlow's checkpoints of variables ("tensor bundles"), read without TensorFlow.

PREFIX.index                 a sorted table in LevelDB's format: variable name -> location of its values (a protobuf)
PREFIX.data-NNNNN-of-NNNNN   the values, little-endian, end to end
Sources: tensorflow/core/util/tensor_bundle, tensorflow/core/protobuf/tensor_bundle.proto, LevelDB's table_format.md.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from elmokit.checkpoints.errors import CheckpointError, Shape
from elmokit.checkpoints.formats.crc32c import masked_crc32c

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FOOTER_SIZE, BLOCK_TRAILER_SIZE = 48, 5
# The index of an ELMo has a few kB. These bounds limit the time and memory that a damaged one can cost.
MAX_INDEX_SIZE, MAX_NAME_SIZE, MAX_RANK = 1 << 22, 1 << 9, 8

DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}


@dataclass(frozen=True)
class StoredTensor:
    """The location of a variable in a data file. `dtype` is None for values that are not numbers, such as strings."""

    dtype: np.dtype | None
    shape: Shape
    path: Path
    offset: int
    size: int
    checksum: int | None


# --- Protocol buffers --------------------------------------------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at `at`, seven bits per byte, and the position after it."""
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80:
            return value, at
    raise ValueError("it has an unterminated varint")


def _slice(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(data):
        raise ValueError("it is truncated")
    return data[at : at + size], at + size


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message by number: integers, or bytes for strings and nested messages."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind, value = key & 7, 0
        if kind == 0:
            value, at = _varint(message, at)
        elif kind == 2:
            size, at = _varint(message, at)
            value, at = _slice(message, at, size)
        elif kind in (1, 5):
            raw, at = _slice(message, at, 8 if kind == 1 else 4)
            value = int.from_bytes(raw, "little")
        else:
            raise ValueError(f"a protobuf field has the unknown kind {kind}")
        yield key >> 3, value


def _numbers(message: bytes) -> dict[int, int]:
    return {field: value for field, value in _fields(message) if isinstance(value, int)}


def _shape(message: bytes) -> Shape:
    """A TensorShapeProto: field 2 is a dimension, whose field 1 is its size; 0 is omitted."""
    dims = [_numbers(value).get(1, 0) for field, value in _fields(message) if field == 2 and isinstance(value, bytes)]
    if len(dims) > MAX_RANK or any(dim >= 1 << 63 for dim in dims):
        raise ValueError(f"it has a tensor of {len(dims)} dimensions or of negative size")
    return tuple(dims)


# --- The sorted table --------------------------------------------------------------------------------------------


def _block(table: bytes, offset: int, size: int) -> bytes:
    """A block of the table, without the trailing type of compression (0: none) and checksum."""
    raw, _ = _slice(table, offset, size + BLOCK_TRAILER_SIZE)
    content, checksum = raw[: size + 1], struct.unpack("<I", raw[size + 1 :])[0]
    if masked_crc32c(content) != checksum:
        raise ValueError("a checksum is wrong")
    if content[-1] != 0:
        raise ValueError("it is compressed, as TensorFlow's never are")
    return content[:-1]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values in order. A key is stored as the number of bytes shared with the previous key, and the rest."""
    num_restarts = struct.unpack("<I", block[-4:])[0]
    end, at, key = len(block) - 4 * (num_restarts + 1), 0, b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        size, at = _varint(block, at)
        if shared > len(key) or shared + own > MAX_NAME_SIZE:
            raise ValueError("it has an invalid name")
        rest, at = _slice(block, at, own)
        value, at = _slice(block, at, size)
        key = key[:shared] + rest
        yield key, value


def _handle(data: bytes, at: int) -> tuple[int, int, int]:
    """Offset and size of a block, and the position after the two varints."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return offset, size, at


def _table_entries(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every key and value of the file. ValueError, IndexError or struct.error if it is damaged."""
    if len(table) < FOOTER_SIZE or table[-8:] != MAGIC:
        raise ValueError("its footer is missing")
    footer = table[-FOOTER_SIZE:]
    _, _, at = _handle(footer, 0)  # of the metaindex block, always empty
    offset, size, _ = _handle(footer, at)
    read_to = 0
    for _, value in _entries(_block(table, offset, size)):
        offset, size, _ = _handle(value, 0)
        if offset < read_to:
            raise ValueError("its blocks overlap")
        read_to = offset + size
        yield from _entries(_block(table, offset, size))


# --- The index ---------------------------------------------------------------------------------------------------


def _num_shards(header: bytes) -> int:
    """BundleHeaderProto: 1 num_shards, 2 endianness (0 little)."""
    numbers = _numbers(header)
    if numbers.get(2, 0) != 0:
        raise ValueError("it is big-endian")
    return numbers.get(1, 0)


def _stored_tensor(prefix: Path, num_shards: int, message: bytes) -> StoredTensor:
    """BundleEntryProto: 1 dtype, 2 shape, 3 shard_id, 4 offset, 5 size, 6 crc32c, 7 slices."""
    fields = dict(_fields(message))
    if 7 in fields:
        raise ValueError("it has a partitioned variable: save it unpartitioned")
    numbers = {field: value for field, value in fields.items() if isinstance(value, int)}
    shape_message = fields.get(2, b"")
    if not isinstance(shape_message, bytes):
        raise ValueError("it has a tensor without shape")
    name, shape = DTYPES.get(numbers.get(1, 0)), _shape(shape_message)
    dtype, size = None if name is None else np.dtype(name), numbers.get(5, 0)
    if dtype is not None and math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"a tensor of shape {shape} has {size} bytes")
    path = prefix.with_name(f"{prefix.name}.data-{numbers.get(3, 0):05d}-of-{num_shards:05d}")
    return StoredTensor(dtype, shape, path, numbers.get(4, 0), size, numbers.get(6))


def _check_locations(tensors: dict[str, StoredTensor]) -> None:
    """ValueError if tensors overlap or end beyond their file, so that together they are no larger than the files."""
    in_order = sorted(tensors.values(), key=lambda tensor: (tensor.path, tensor.offset, tensor.size))
    for before, after in pairwise(in_order):
        if before.path == after.path and before.offset + before.size > after.offset:
            raise ValueError("its tensors overlap")
    for path in {tensor.path for tensor in in_order}:
        if not path.is_file():
            raise ValueError(f"{path} is missing")
        needed = max(tensor.offset + tensor.size for tensor in in_order if tensor.path == path)
        if path.stat().st_size < needed:
            raise ValueError(f"{path} has {path.stat().st_size} bytes where {needed} are needed")


def read_index(prefix: str | Path) -> dict[str, StoredTensor]:
    """Read the index of a checkpoint.

    Args:
        prefix: The common beginning of the files' names.

    Returns:
        The locations of its variables, by name.

    Raises:
        FileNotFoundError: There is no PREFIX.index.
        CheckpointError: The files are damaged or do not belong together.
    """
    prefix = Path(prefix)
    index = prefix.with_name(f"{prefix.name}.index")
    if not index.is_file():
        raise FileNotFoundError(f"{index} is not a file: check the path")
    try:
        if index.stat().st_size > MAX_INDEX_SIZE:
            raise ValueError(f"it has more than {MAX_INDEX_SIZE} bytes")
        entries = dict(_table_entries(index.read_bytes()))
        num_shards = _num_shards(entries.pop(b"", b""))
        tensors = {key.decode(): _stored_tensor(prefix, num_shards, value) for key, value in entries.items()}
        _check_locations(tensors)
        return tensors
    # Which of these depends on where the table is damaged.
    except (ValueError, IndexError, struct.error) as error:
        raise CheckpointError(f"{index} is not an index of TensorFlow variables, or damaged: {error}") from error


def read_tensor(tensor: StoredTensor) -> np.ndarray:
    """Read a variable in float32. CheckpointError if its checksum is wrong, or it is not numeric."""
    if tensor.dtype is None:
        raise CheckpointError(f"{tensor.path} holds no numbers at byte {tensor.offset}")
    data = np.fromfile(tensor.path, np.uint8, count=tensor.size, offset=tensor.offset)
    if len(data) != tensor.size or tensor.checksum not in (None, masked_crc32c(data)):
        raise CheckpointError(f"{tensor.path} is damaged at byte {tensor.offset}: fetch it again")
    return data.view(tensor.dtype).reshape(tensor.shape).astype(np.float32, copy=False)
