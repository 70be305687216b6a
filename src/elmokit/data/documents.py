"""The documents of raw text files: plain text, JSON lines, and Parquet columns, streamed."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elmokit.fs.reading import read_lines, refuse_pipe

JSON_LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
PARQUET = ".parquet"
COMPRESSED = (".gz", ".zst", PARQUET)

# A text without blank lines, or a long book, is taken in pieces, each as if it were a document.
PIECE_LINES = 1_000
PIECE_CHARACTERS = 250_000


@dataclass(frozen=True)
class Document:
    """A document, or a piece of a long one: its lines that are not blank, and the number of the file it is from."""

    file: int
    lines: list[str]


def _parsed(line: str, path: str, number: int) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number} is not JSON ({error}): each line must be one JSON object") from None


def _whole_characters(text: str) -> str:
    """A text in which halves of a surrogate pair, which JSON can write and UTF-8 cannot, are U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _json_texts(path: str, field: str) -> Iterator[str | None]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        record = _parsed(line, path, number)
        if not isinstance(record, dict) or field not in record:
            fields = ", ".join(map(repr, record)) if isinstance(record, dict) else "it is no object"
            raise ValueError(f"{path}, line {number} has no field {field!r} ({fields}): name the field of the text")
        text = record[field]
        if not (text is None or isinstance(text, str)):
            raise ValueError(f"{path}, line {number}: {field!r} is {type(text).__name__}, not text")
        yield text and _whole_characters(text)


def _parquet_texts(path: str, field: str) -> Iterator[str | None]:
    """The values of one column, a row group in memory at a time."""
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]  (an extra)
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(f"{path}: Parquet needs pyarrow: pip install pyarrow (elmokit's extra parquet)") from error
    refuse_pipe(Path(path))
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is not a file: check the path")
    try:
        with parquet.ParquetFile(path) as table:
            schema = table.schema_arrow
            if field not in schema.names:
                raise ValueError(f"{path} has no column {field!r} ({', '.join(schema.names)}): name that of the text")
            for batch in table.iter_batches(batch_size=1_000, columns=[field]):
                for text in batch.column(0).to_pylist():
                    if not (text is None or isinstance(text, str)):
                        raise ValueError(f"{path}: the column {field!r} is {schema.field(field).type}, not text")
                    yield text
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as Parquet ({error}): it is damaged or misnamed") from error


def _marked_lines(path: str, field: str) -> Iterator[str | None]:
    """The lines of a file that are not blank, and None where a document ends."""
    if path.endswith((*JSON_LINES, PARQUET)):
        texts = _parquet_texts(path, field) if path.endswith(PARQUET) else _json_texts(path, field)
        for text in texts:
            yield from (line.rstrip("\r") for line in (text or "").split("\n") if line.strip())
            yield None
    else:
        yield from (line if line.strip() else None for line in read_lines(path))


def read_documents(path: str, field: str = "text", file: int = 0) -> Iterator[Document]:
    """Stream the documents of one file, which is number `file` of many.

    Args:
        path: A text file (plain, .gz or .zst) with blank lines between documents; JSON lines (.jsonl, .jsonl.gz or
            .jsonl.zst) or Parquet (.parquet), of which each record is a document.
        field: The field or column that holds a record's text.
        file: Handed on with each document.

    Yields:
        Documents of at least one line; a long one in pieces of PIECE_LINES lines or about PIECE_CHARACTERS characters.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, not UTF-8, has no such field, or needs a library that is not installed.
    """
    lines: list[str] = []
    characters = 0
    for line in _marked_lines(path, field):
        if line is not None:
            lines.append(line)
            characters += len(line)
        if lines and (line is None or len(lines) == PIECE_LINES or characters >= PIECE_CHARACTERS):
            yield Document(file, lines)
            lines, characters = [], 0
    if lines:
        yield Document(file, lines)
