"""Reading lines of plain and compressed text, against Python's own readers."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from elmokit.fs import reading
from elmokit.fs.reading import read_blocks, read_json, read_lines

TEXT = "\ufeffone\r\n\n\ufeff zwei \u2028 drei\x0bvier\nlast, without a line end"
LINES = ["one", "", "\ufeff zwei \u2028 drei\x0bvier", "last, without a line end"]


def _two_frames(data: bytes) -> bytes:
    return zstandard.compress(data[:9]) + zstandard.compress(data[9:])


def _long_window(data: bytes) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=28, enable_ldm=True)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()  # of unknown size
    return frame.compress(data) + frame.flush()


FILES: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("a.txt", bytes),
    ("a.txt.gz", gzip.compress),
    ("a.txt.GZ", gzip.compress),
    ("a.zst", zstandard.compress),
    ("A.ZST", zstandard.compress),
    ("two.zst", _two_frames),
    ("long.zst", _long_window),
]


@pytest.mark.parametrize(("name", "compress"), FILES)
@pytest.mark.parametrize("read_size", [3, 1 << 18])
def test_files_read_alike(
    tmp_path: Path,
    name: str,
    compress: Callable[[bytes], bytes],
    read_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "READ_SIZE", read_size)
    (tmp_path / name).write_bytes(compress(TEXT.encode()))
    assert list(read_lines(tmp_path / name)) == LINES
    (tmp_path / name).write_bytes(compress(TEXT.encode() + b"\n"))
    assert list(read_lines(tmp_path / name)) == LINES


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\nalso\nb\xe4d\n")
    with pytest.raises(ValueError, match=r"a\.txt, line 3: byte 0xe4 at column 2.*GB18030"):
        list(read_lines(tmp_path / "a.txt"))
    (tmp_path / "a.txt").write_text("good", encoding="utf-16")
    with pytest.raises(ValueError, match="UTF-16"):
        list(read_lines(tmp_path / "a.txt"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        list(read_lines(tmp_path / "nowhere.txt"))


@pytest.mark.parametrize(("name", "compress"), FILES[1:])
@pytest.mark.parametrize("damage", ["plain", "truncated"])
def test_damaged_compression_is_refused(
    tmp_path: Path, name: str, compress: Callable[[bytes], bytes], damage: str
) -> None:
    text = "\n".join(f"line {number * number}" for number in range(20_000)).encode()
    whole = compress(text)
    (tmp_path / name).write_bytes(text if damage == "plain" else whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cannot be decompressed"):
        list(read_lines(tmp_path / name))


def test_blocks_of_a_repetitive_zstd_file_are_small(tmp_path: Path) -> None:
    text = b"a\n" * (40 << 20)
    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress(text))
    sizes = [len(block) for block in read_blocks(tmp_path / "a.txt.zst")]
    assert sum(sizes) == len(text)
    assert max(sizes) < 16 << 20


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b"{", b'"\xff"', b"1" * 5000],
    ids=["deep", "cut", "bytes", "digits"],
)
def test_damaged_json_is_a_value_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError):
        read_json(tmp_path / "a.json")


def test_pipe_or_device_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(ValueError, match="is not a regular file"):
            read_json(path)
