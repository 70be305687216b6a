"""A checksum inside a safetensors file: the CRC-32 of the whole file, computed with zeros in place of its digits.

It is the metadata entry `crc32` of the header, so that a file and its checksum appear together.
"""

import zlib
from pathlib import Path
from typing import BinaryIO

from elmokit.fs.reading import open_regular

UNSEALED = {"crc32": "00000000"}  # the metadata to write; safetensors puts metadata first
BEFORE_DIGITS = b'{"__metadata__":{"crc32":"'
AT, NUM_DIGITS = 8 + len(BEFORE_DIGITS), len(UNSEALED["crc32"])
READ_SIZE = 1 << 20


def _digits(file: BinaryIO) -> bytes:
    """The checksum of an open file, in hexadecimal."""
    file.seek(0)
    before, _ = file.read(AT), file.read(NUM_DIGITS)
    checksum = zlib.crc32(before + UNSEALED["crc32"].encode())
    while block := file.read(READ_SIZE):
        checksum = zlib.crc32(block, checksum)
    return b"%08x" % checksum


def seal(file: BinaryIO) -> None:
    """Put the checksum into a file that is open for reading and writing and has the metadata `UNSEALED`."""
    digits = _digits(file)
    file.seek(AT)
    file.write(digits)


def is_intact(path: Path) -> bool:
    """Whether a file exists and matches its own checksum."""
    try:
        with open_regular(path) as file:
            digits = _digits(file)
            file.seek(8)
            return file.read(AT - 8 + NUM_DIGITS) == BEFORE_DIGITS + digits
    except (OSError, ValueError):
        return False
