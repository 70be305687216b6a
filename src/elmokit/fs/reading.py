"""Reading text files line by line, plain or compressed, and untrusted JSON."""

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import zstandard

MAX_JSON_BYTES = 1 << 26
COMPRESSIONS = (".gz", ".zst")
PARQUET_START = b"PAR1\x15"  # and the first byte of a page's header
READ_SIZE = 1 << 18
# Small, since four bytes may become 128 KiB, and a whole read is decompressed at once.
ZSTD_READ_SIZE = 1 << 10
# The largest window that is accepted; a file's own, chosen by `zstd --long`, is held in memory.
ZSTD_WINDOW = 1 << 31


class Suffixes(NamedTuple):
    """The suffixes of a file's name, in lower case.

    Attributes:
        kind: The suffix of the uncompressed file, such as ".jsonl"; empty if it has none.
        compression: ".gz", ".zst" or empty.
    """

    kind: str
    compression: str


def suffixes_of(path: str | Path) -> Suffixes:
    """The suffixes that determine how a file is read and written, whatever their case."""
    name = Path(Path(path).name.lower())
    if name.suffix in COMPRESSIONS:
        return Suffixes(name.with_suffix("").suffix, name.suffix)
    return Suffixes(name.suffix, "")


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file to read its bytes; ValueError for a directory, and for a pipe or device, which
    may never end.
    """
    path = Path(os.path.expanduser(path))
    if path.exists() and not path.is_file():
        raise ValueError(
            f"{path} is not a regular file (a pipe can be read only once: write it to a file first)"
        )
    return path.open("rb")


def read_json(path: str | Path) -> Any:
    """Read a file of JSON in UTF-8, limited in size and depth; `settings.conform` checks what it
    holds.

    Args:
        path: A regular file.

    Returns:
        The value: dictionaries, lists, strings, numbers, booleans and None.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: It is not a regular file, larger than 64 MiB, not JSON, or nested too deeply.
    """
    with open_regular(path) as file:
        content = file.read(MAX_JSON_BYTES)
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _zstd_blocks(stream: BinaryIO) -> Iterator[bytes]:
    # Frame by frame, since zstandard's own reader does not notice a truncated file.
    frame = None
    while block := stream.read(ZSTD_READ_SIZE):
        while block:
            if frame is None or frame.eof:
                frame = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
            if decompressed := frame.decompress(block):
                yield decompressed
            block = frame.unused_data
    if frame is not None and not frame.eof:
        raise EOFError("it is truncated")


def read_blocks(path: str | Path) -> Iterator[bytes]:
    """Read a file in blocks, decompressed if its name ends in .gz or .zst.

    Args:
        path: The file.

    Yields:
        Blocks of at most 32 MiB.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: It is not a regular file, or cannot be decompressed to its end.
    """
    compression = suffixes_of(path).compression
    with open_regular(path) as file:
        try:
            if compression == ".zst":
                yield from _zstd_blocks(file)
                return
            stream = gzip.GzipFile(fileobj=file) if compression == ".gz" else file
            while block := stream.read(READ_SIZE):
                yield block
        except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise ValueError(
                f"{path} cannot be decompressed ({error}): it is damaged or misnamed"
            ) from error


def _lines(path: str | Path) -> Iterator[bytes]:
    r"""Stream the undecoded lines of a file, without "\n", the only character that ends a line."""
    # Parts of an unfinished line, concatenated once: a line may be as long as a book.
    begun: list[bytes] = []
    for block in read_blocks(path):
        *lines, rest = block.split(b"\n")
        if lines:
            lines[0] = b"".join([*begun, lines[0]])
            begun.clear()
            yield from lines
        begun.append(rest)
    if last := b"".join(begun):
        yield last


def read_lines(path: str | Path, errors: Literal["strict", "replace"] = "strict") -> Iterator[str]:
    r"""Stream the lines of a UTF-8 text file (plain, .gz or .zst).

    Args:
        path: The file.
        errors: Whether bytes that are not UTF-8 are refused, or become U+FFFD.

    Yields:
        Lines without their end, "\n" or "\r\n" (no other character ends a line), and without a byte
        order mark.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: It is not UTF-8 (the message names file, line and column), its lines end in CR
            alone, it is not a regular file, or cannot be decompressed.
    """
    for number, line in enumerate(_lines(path), start=1):
        if number == 1 and line.startswith(PARQUET_START):
            raise ValueError(
                f"{path} is Parquet: name it .parquet, and the column of its texts (--column)"
            )
        try:
            text = line.decode("utf-8", errors).rstrip("\r")
        except UnicodeDecodeError as error:
            where = (
                f"{path}, line {number}: byte 0x{line[error.start]:02x} at column "
                f"{error.start + 1} is not UTF-8"
            )
            is_utf_16 = line.startswith((b"\xff\xfe", b"\xfe\xff"))
            kinds = "UTF-16" if is_utf_16 else "GB18030 (Chinese) or LATIN1 (Western)"
            raise ValueError(
                f"{where}: unless it is compressed, convert it from its encoding, {kinds}: "
                f"`iconv -f ENCODING -t UTF-8 {path}`"
            ) from None
        if number == 1 and "\r" in text:
            raise ValueError(f"{path}: lines end in CR alone; write them anew with LF (`mac2unix`)")
        yield text.removeprefix("\ufeff") if number == 1 else text
