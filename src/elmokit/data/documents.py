"""Streaming readers of documents from plain text, JSON lines, Parquet files and FASTA."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from elmokit.data.fasta import read_fasta
from elmokit.data.readers import is_conllu
from elmokit.fs.arrow import errors_naming, require_pyarrow
from elmokit.fs.reading import read_lines, refuse_pipe, suffixes_of

JSON_LINES = (".jsonl", ".ndjson", ".json")
PARQUET = ".parquet"
FASTA = (".fasta", ".fa", ".faa")

# Longer documents, such as books or texts without blank lines, are split into several.
MAX_LINES = 1_000
MAX_DOCUMENT_CHARACTERS = 250_000


@dataclass(frozen=True)
class Document:
    """A document, or a chunk of a long one.

    Attributes:
        file: Index of the file.
        lines: The lines without blank ones.
        position: Number of the line, from 1, at which it begins, or of its record in JSON lines; of the row, from 0, in
            a Parquet file.
    """

    file: int
    lines: list[str]
    position: int


def position_name(path: str) -> str:
    """The unit that a document's position counts: "row" in a Parquet file, "line" in others."""
    return "row" if suffixes_of(path).kind == PARQUET else "line"


def is_fasta(path: str | Path) -> bool:
    """Whether the name of a file says that it has protein sequences."""
    return suffixes_of(path).kind in FASTA


def _parsed(line: str, path: str, number: int) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number} is not JSON ({error}): each line must be one JSON object") from None


def _whole_characters(text: str) -> str:
    """Replace lone surrogates, which JSON can represent and UTF-8 cannot, by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _json_texts(path: str, field: str) -> Iterator[tuple[int, str | None]]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        record = _parsed(line, path, number)
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number} is not a JSON object: write one object a line, with its text")
        if field not in record:
            fields = ", ".join(map(repr, record))
            raise ValueError(f"{path}, line {number} has no field {field!r} ({fields}): set text_field")
        text = record[field]
        if not (text is None or isinstance(text, str)):
            raise ValueError(f"{path}, line {number}: {field!r} is {type(text).__name__}, not text")
        yield number, text and _whole_characters(text)


def _parquet_texts(path: str, field: str) -> Iterator[tuple[int, str | None]]:
    """The rows and values of one column; memory holds one row group."""
    require_pyarrow()
    from pyarrow import parquet  # pyright: ignore[reportMissingImports]

    refuse_pipe(Path(path))
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is not a file: check the path")
    with errors_naming(path), parquet.ParquetFile(path) as table:
        schema = table.schema_arrow
        if field not in schema.names:
            raise ValueError(f"{path} has no column {field!r} ({', '.join(schema.names)}): set text_field")
        batches = table.iter_batches(batch_size=1_000, columns=[field])
        for row, text in enumerate(chain.from_iterable(batch.column(0).to_pylist() for batch in batches)):
            if not (text is None or isinstance(text, str)):
                raise ValueError(f"{path}: the column {field!r} is {schema.field(field).type}, not text")
            yield row, text


def _marked_lines(path: str, field: str) -> Iterator[tuple[int, str | None]]:
    """Yield the position and text of each line that is not blank; a text of None marks the end of a document."""
    kind = suffixes_of(path).kind
    if kind in (*JSON_LINES, PARQUET):
        texts = _parquet_texts(path, field) if kind == PARQUET else _json_texts(path, field)
        for position, text in texts:
            for line in (text or "").split("\n"):
                if line.strip():
                    yield position, line.rstrip("\r")
            yield position, None
    elif kind in FASTA:
        for record in read_fasta(path):
            if record.sequence:
                yield record.line, " ".join(record.sequence)
            yield record.line, None
    elif is_conllu(path):
        raise ValueError(
            f"{path} holds CoNLL-U, not text: write its sentences, which are in its lines `# text = `, to a text file"
        )
    else:
        for number, line in enumerate(read_lines(path), start=1):
            yield number, line if line.strip() else None


def read_documents(path: str, field: str = "text", file: int = 0) -> Iterator[Document]:
    """Stream the documents of a file.

    Args:
        path: Text file (plain, .gz or .zst) with blank lines between documents; JSON lines (.jsonl, .ndjson or
            .json; plain, .gz or .zst) or Parquet (.parquet) with one document per record; or FASTA (.fasta, .fa or
            .faa; plain, .gz or .zst), each sequence a document of one line, with spaces between its residues.
        field: Field or column with the text.
        file: Index of the file, which each document records.

    Yields:
        Documents with at least one line. One of more than MAX_LINES lines or MAX_DOCUMENT_CHARACTERS characters is cut
        into several, between lines; those of one record have its position.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is damaged, not UTF-8, has no such field, is CoNLL-U, or needs a library that is not
            installed.
    """
    lines: list[str] = []
    characters = begin = 0
    for position, line in _marked_lines(path, field):
        if line is not None:
            begin = begin if lines else position
            lines.append(line)
            characters += len(line)
        if lines and (line is None or len(lines) == MAX_LINES or characters >= MAX_DOCUMENT_CHARACTERS):
            yield Document(file, lines, begin)
            lines, characters = [], 0
    if lines:
        yield Document(file, lines, begin)
