"""Streaming readers of documents from plain text and tables."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from elmokit.data.tables import is_table, read_column
from elmokit.fs import read_lines

# Longer documents, such as books or texts without blank lines, are split into several.
MAX_LINES = 1_000
MAX_DOCUMENT_CHARACTERS = 250_000


class Place(NamedTuple):
    """Where a document begins: the index of its file, and the number of its line (in Parquet, row)
    there, from 1.
    """

    file: int
    line: int


@dataclass(frozen=True)
class Document:
    """The place of a document, or of a chunk of a long one, and its lines without blank ones."""

    place: Place
    lines: list[str]


def _marked_lines(path: str, field: str) -> Iterator[tuple[int, str | None]]:
    """Yield the position and text of each line that is not blank; a text of None marks the end of a
    document.
    """
    if is_table(path):
        for position, text, _ in read_column(path, field):
            for line in text.split("\n"):
                if line.strip():
                    yield position, line.rstrip("\r")
            yield position, None
    else:
        for number, line in enumerate(read_lines(path), start=1):
            yield number, line if line.strip() else None


def read_documents(path: str, field: str = "text", file: int = 0) -> Iterator[Document]:
    """Stream the documents of a file.

    Args:
        path: Text file (plain, .gz or .zst) with blank lines between documents; a table as in
            `read_rows`, with one document per row.
        field: Field or column with the text.
        file: Index of the file, which each document records.

    Yields:
        Documents with at least one line. One of more than MAX_LINES lines or
        MAX_DOCUMENT_CHARACTERS characters is cut into several, between lines; those of one record
        have its position.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is damaged, not UTF-8, has no such field, or needs a library that is
            not installed.
    """
    lines: list[str] = []
    characters = begin = 0
    for position, line in _marked_lines(path, field):
        if line is not None:
            begin = begin if lines else position
            lines.append(line)
            characters += len(line)
        if lines and (
            line is None or len(lines) == MAX_LINES or characters >= MAX_DOCUMENT_CHARACTERS
        ):
            yield Document(Place(file, begin), lines)
            lines, characters = [], 0
    if lines:
        yield Document(Place(file, begin), lines)
