"""Reading lines of plain and compressed text, against Python's own readers."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from elmokit.fs import reading
from elmokit.fs.reading import read_blocks, read_lines, suffixes_of

TEXT = "one\r\n\n zwei \u2028 drei\x0bvier\nlast, without a line end"
LINES = ["one", "", " zwei \u2028 drei\x0bvier", "last, without a line end"]


def test_plain_gzip_and_zstd_read_alike(tmp_path: Path) -> None:
    data = TEXT.encode()
    contents = {"a.txt": data, "a.txt.gz": gzip.compress(data), "a.txt.zst": zstandard.compress(data)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert list(read_lines(tmp_path / name)) == LINES


def test_lines_across_blocks_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_SIZE", 3)
    (tmp_path / "a.txt").write_text(TEXT + "\n", encoding="utf-8", newline="")
    assert list(read_lines(tmp_path / "a.txt")) == LINES


def test_several_zstd_frames_are_one_text(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(zstandard.compress(b"one\n") + zstandard.compress(b"two\n"))
    assert list(read_lines(tmp_path / "a.zst")) == ["one", "two"]


def test_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ufefftwo\n", encoding="utf-8-sig")
    assert list(read_lines(tmp_path / "a.txt")) == ["one", "\ufefftwo"]


def test_invalid_utf8_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\nalso\nb\xe4d\n")
    with pytest.raises(ValueError, match=r"a\.txt, line 3: byte 0xe4 at column 2"):
        list(read_lines(tmp_path / "a.txt"))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        list(read_lines(tmp_path / "nowhere.txt"))


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
def test_damaged_compression_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"this is plain text")
    with pytest.raises(ValueError, match="cannot be decompressed"):
        list(read_lines(tmp_path / name))


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
def test_truncated_compression_is_refused(tmp_path: Path, name: str) -> None:
    text = "\n".join(f"line {number * number}" for number in range(20_000)).encode()
    whole = gzip.compress(text) if name.endswith("gz") else zstandard.compress(text)
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cannot be decompressed"):
        list(read_lines(tmp_path / name))


@pytest.mark.parametrize(
    ("compress", "command"), [(lzma.compress, "xz -d"), (bz2.compress, "bzip2 -d"), (gzip.compress, "gzip -d")]
)
def test_compressed_file_of_another_name_is_named_as_such(
    tmp_path: Path, compress: Callable[[bytes], bytes], command: str
) -> None:
    (tmp_path / "a.txt").write_bytes(compress("a naïve café\n".encode() * 500))
    with pytest.raises(ValueError, match=f"is compressed: decompress it with `{command}`"):
        list(read_lines(tmp_path / "a.txt"))


@pytest.mark.parametrize(("name", "compress"), [("a.txt.GZ", gzip.compress), ("A.ZST", zstandard.compress)])
def test_capitals_of_a_suffix_do_not_matter(tmp_path: Path, name: str, compress: Callable[[bytes], bytes]) -> None:
    (tmp_path / name).write_bytes(compress(b"a\nb\n"))
    assert list(read_lines(tmp_path / name)) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "suffixes"),
    [
        ("a.jsonl", (".jsonl", "")),
        ("Dir.GZ/A.Conllu.GZ", (".conllu", ".gz")),
        ("a.b.zst", (".b", ".zst")),
        ("a.gz.zst", (".gz", ".zst")),
        ("a.gz", ("", ".gz")),
        (".gz", ("", "")),
        ("a", ("", "")),
    ],
)
def test_suffixes_of_are_those_of_the_last_part_in_lower_case(name: str, suffixes: tuple[str, str]) -> None:
    assert suffixes_of(name) == suffixes


def test_blocks_of_a_repetitive_zstd_file_are_small(tmp_path: Path) -> None:
    text = b"a\n" * (40 << 20)
    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress(text))
    sizes = [len(block) for block in read_blocks(tmp_path / "a.txt.zst")]
    assert sum(sizes) == len(text) and max(sizes) < 16 << 20


def test_zstd_with_a_long_window_is_read(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=28, enable_ldm=True)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()  # of unknown size
    (tmp_path / "a.txt.zst").write_bytes(frame.compress(b"a\nb\n") + frame.flush())
    assert list(read_lines(tmp_path / "a.txt.zst")) == ["a", "b"]
