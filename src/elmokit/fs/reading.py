"""Reading text files line by line, plain or compressed."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import zstandard

READ_SIZE = 1 << 18


def _zstd_blocks(path: Path) -> Iterator[bytes]:
    # Frame by frame, since zstandard's own reader takes a file that was cut off for a whole one.
    frame = None
    with path.open("rb") as stream:
        while block := stream.read(READ_SIZE):
            while block:
                if frame is None or frame.eof:
                    frame = zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(block)
                block = frame.unused_data
    if frame is not None and not frame.eof:
        raise EOFError("it is cut off")


def _plain_or_gzip_blocks(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
        while block := stream.read(READ_SIZE):
            yield block


def refuse_pipe(path: Path) -> None:
    """ValueError for a pipe. It can be read only once, while text is counted or checked before it is used."""
    if path.is_fifo():
        raise ValueError(f"{path} is a pipe: write it to a file first (.gz and .zst are read as they are)")


def read_blocks(path: str | Path) -> Iterator[bytes]:
    """The bytes of a file in blocks, decompressed where the name ends in .gz or .zst.

    FileNotFoundError where it is missing, ValueError for a pipe, or where it cannot be decompressed to its end.
    """
    path = Path(path)
    refuse_pipe(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file: check the path")
    try:
        yield from _zstd_blocks(path) if path.suffix == ".zst" else _plain_or_gzip_blocks(path)
    except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"{path} cannot be decompressed ({error}): it is damaged or misnamed") from error


def read_line_blocks(path: str | Path) -> Iterator[list[bytes]]:
    """The undecoded lines of a file, a block of them at a time."""
    begun: list[bytes] = []  # of a line that has not ended; joined once, as a line may be a book
    for block in read_blocks(path):
        *lines, rest = block.split(b"\n")
        if lines:
            lines[0] = b"".join([*begun, lines[0]])
            begun.clear()
            yield lines
        begun.append(rest)
    if last := b"".join(begun):
        yield [last]


def decode_line(line: bytes, path: str | Path, number: int) -> str:
    """One line as text, without its line end. ValueError naming file and line (from 1) where it is not UTF-8."""
    try:
        return line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        reason = f"byte 0x{line[error.start]:02x} at column {error.start + 1} is not UTF-8"
        raise ValueError(f"{path}, line {number}: {reason}; convert the file, e.g. with `iconv -t UTF-8`") from None


def read_lines(path: str | Path) -> Iterator[str]:
    r"""The lines of a UTF-8 text file (plain, .gz or .zst), streamed, without their line ends.

    Only "\n" (or "\r\n") ends a line. A missing file is a FileNotFoundError, invalid UTF-8 a ValueError
    that names the file and the line. A byte order mark at the start is dropped.
    """
    number = 0
    for block in read_line_blocks(path):
        for line in block:
            number += 1
            text = decode_line(line, path, number)
            yield text.removeprefix("\ufeff") if number == 1 else text
