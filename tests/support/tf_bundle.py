"""A small writer of TensorFlow's files of variables, for tests that need damaged or unusual
ones.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from elmokit.checkpoints.tf_checkpoint import masked_crc32c

DTYPES = {"float32": 1, "float64": 2, "int64": 9, "float16": 19, "bool": 10}
MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)


def varint(number: int) -> bytes:
    groups = [number & 0x7F]
    while number := number >> 7:
        groups.append(number & 0x7F)
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(
    dtype: str, shape: tuple[int, ...], offset: int, size: int, checksum: int | None = None
) -> bytes:
    """A BundleEntryProto."""
    dims = b"".join(field(2, field(1, dim)) for dim in shape)
    place = field(1, DTYPES[dtype]) + field(2, dims) + field(4, offset) + field(5, size)
    return place if checksum is None else place + varint(6 << 3 | 5) + struct.pack("<I", checksum)


def block(items: Mapping[bytes, bytes]) -> bytes:
    """A block with its trailer; no name shares bytes with the one before."""
    content = b"".join(
        varint(0) + varint(len(key)) + varint(len(value)) + key + value
        for key, value in sorted(items.items())
    )
    content += struct.pack("<II", 0, 1) + b"\0"
    return content + struct.pack("<I", masked_crc32c(content))


def write_index(prefix: Path, entries: Mapping[str, bytes]) -> None:
    """PREFIX.index with these entries, under good checksums."""
    data = block({b"": field(1, 1)} | {name.encode(): value for name, value in entries.items()})
    meta = block({})
    handles = block({b"\xff": varint(0) + varint(len(data) - 5)})
    footer = (
        varint(len(data))
        + varint(len(meta) - 5)
        + varint(len(data) + len(meta))
        + varint(len(handles) - 5)
    )
    prefix.with_name(prefix.name + ".index").write_bytes(
        data + meta + handles + footer.ljust(40, b"\0") + MAGIC
    )


def write_bundle(prefix: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """PREFIX.index and its one file of data."""
    entries = {}
    data = b""
    for name, array in arrays.items():
        raw = array.tobytes()
        entries[name] = entry(
            array.dtype.name, array.shape, len(data), len(raw), masked_crc32c(raw)
        )
        data += raw
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(prefix.name + ".data-00000-of-00001").write_bytes(data)
    write_index(prefix, entries)


def variable_name(dataset: str) -> str:
    """The variable of bilm-tf that its HDF5 files hold under this name."""
    head, _, last = dataset.rpartition("/")
    head = head.replace("RNN/MultiRNNCell/Cell", "rnn/multi_rnn_cell/cell_")
    head = head.replace("LSTMCell", "lstm_cell")
    weights = {"W_P_0": "projection/kernel", "W_0": "kernel", "B": "bias"}
    return "/".join(filter(None, ("lm", head, weights.get(last, last))))
