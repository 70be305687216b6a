"""Rows of tables: CSV, TSV, JSON lines, Parquet, and protein sequences in FASTA."""

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from elmokit.extras import import_extra
from elmokit.fs import atomic_path, read_blocks, read_lines, suffixes_of, write_lines

CSV, TSV, PARQUET = ".csv", ".tsv", ".parquet"
JSON_LINES = (".jsonl", ".ndjson", ".json")
FASTA = (".fasta", ".fa", ".faa")
RESIDUES = re.compile(r"[A-Za-z*.-]+")  # including the marks of stops and gaps

# The number of a row, from 1, as `read_column` counts it, and its columns.
Record = tuple[int, dict[str, Any]]


def is_table(path: str | Path) -> bool:
    """Whether the name of a file says that it is a table."""
    return suffixes_of(path).kind in (CSV, TSV, *JSON_LINES, *FASTA, PARQUET)


def _json_records(path: str | Path) -> Iterator[Record]:
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                yield number, {**json.loads(line)}
            except (ValueError, TypeError, RecursionError) as error:
                raise ValueError(
                    f"{path}, line {number} is no JSON object: one is expected in each line"
                ) from error


def _unquoted(cell: str) -> str:
    """The content of a cell of a TSV file, in which a quotation mark may also be text."""
    inner = cell[1:-1].replace('""', "")
    is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in inner
    return cell[1:-1].replace('""', '"') if is_quoted else cell


def _delimited_records(path: str | Path, kind: str) -> Iterator[Record]:
    csv.field_size_limit(1 << 30)
    lines = read_lines(path)
    if kind == CSV:
        reader = csv.reader((f"{line}\n" for line in lines), strict=True)
        rows = ((reader.line_num, row) for row in reader)
    else:
        rows = enumerate(
            ([_unquoted(cell) for cell in line.split("\t")] for line in lines), start=1
        )
    names: list[str] = []
    try:
        for number, row in rows:
            if not names:
                names = row
                if len(set(names)) < len(names):
                    raise ValueError(f"{path}: two columns have one name: {', '.join(names)}")
            elif len(row) == len(names):
                yield number, dict(zip(names, row, strict=True))
            elif row not in ([], [""]):
                raise ValueError(
                    f"{path}, line {number}: {len(row)} columns, but {len(names)} names in the "
                    "first line (is the separator another one, or in a cell, which needs .csv and "
                    "quotation marks?)"
                )
    except csv.Error as error:
        raise ValueError(
            f"{path} is no CSV: {error} (is a quotation mark never closed?)"
        ) from error


def _fasta_records(path: str | Path) -> Iterator[Record]:
    """The sequences of a file by the line of their header, which is the column `header`; the column
    `text` has the residues in upper case, each a word.
    """
    #   >sp|P01308|INS_HUMAN Insulin      1, {"header": "sp|P01308|INS_HUMAN Insulin",
    #   MALW                                  "text": "M A L W M R"}
    #   mr
    begin, header, residues = 0, None, ""
    for number, line in chain(enumerate(read_lines(path), start=1), [(0, ">")]):
        if line.startswith(">"):
            if header is not None:
                yield begin, {"header": header, "text": " ".join(residues.upper())}
            begin, header, residues = number, line[1:].strip(), ""
        elif part := "".join(line.split()):
            if header is None or not RESIDUES.fullmatch(part):
                raise ValueError(
                    f"{path}, line {number}: the letters of residues after a line >NAME are "
                    f"expected, not {line[:60]!r}"
                )
            residues += part


def _parquet_records(path: str | Path, columns: Sequence[str] | None) -> Iterator[Record]:
    """Stream records, one row group in memory."""
    parquet = import_extra("pyarrow.parquet", "parquet")
    next(read_blocks(path), None)  # refuses pipes
    with parquet.ParquetFile(os.path.expanduser(path)) as table:
        has_all = columns is not None and set(columns) <= {*table.schema_arrow.names}
        batches = table.iter_batches(batch_size=1_000, columns=columns if has_all else None)
        yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), start=1)


def _records(path: str | Path, columns: Sequence[str] | None) -> Iterator[Record]:
    kind = suffixes_of(path).kind
    if kind == PARQUET:
        return _parquet_records(path, columns)
    if kind in FASTA:
        return _fasta_records(path)
    return _json_records(path) if kind in JSON_LINES else _delimited_records(path, kind)


def _filled(value: Any) -> Any:
    """The value of a cell; "" for None and NaN."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return "" if value is None or is_nan else value


def _place(path: str | Path, number: int) -> str:
    """The place of a record, by which a message names it."""
    return f"{path}, {'row' if suffixes_of(path).kind == PARQUET else 'line'} {number}"


def read_rows(
    source: str | Path | Iterable[Any], columns: Sequence[str] | None = None
) -> Iterator[tuple[str, Any]]:
    """Stream the rows of a table.

    Args:
        source: CSV (.csv) or TSV (.tsv, or another suffix) with names of columns in the first line,
            JSON lines (.jsonl, .ndjson or .json); FASTA (.fasta, .fa or .faa), with the columns
            header and text; plain, .gz or .zst; Parquet; a DataFrame of pandas; or rows as
            dictionaries, among which others are left as they are.
        columns: The columns that are needed; None: all.

    Yields:
        The place of each row, by which a message names it, and its values by column; "" where a
        cell has none.

    Raises:
        ValueError: The file is malformed, not UTF-8, or needs a library that is not installed; the
            message names the line.
        FileNotFoundError: The file does not exist.
    """
    rows: Any = source
    if isinstance(source, str | Path):
        rows = ((_place(source, number), row) for number, row in _records(source, columns))
    else:
        if hasattr(rows, "notna"):  # a DataFrame
            rows = rows.astype(object).where(rows.notna(), None).to_dict("records")
        rows = ((f"example {number}", row) for number, row in enumerate(rows, start=1))
    for place, row in rows:
        if isinstance(row, Mapping):
            row = {name: _filled(value) for name, value in row.items()}
        yield place, row


def read_column(
    path: str | Path, column: str, others: bool = False
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Stream the texts in a column of a table.

    Args:
        path: As in `read_rows`.
        column: The name of the column.
        others: Read the other columns, too.

    Yields:
        The number of each row, from 1 (of its last line, in FASTA of its header, in Parquet of the
        row); its text, "" where the cell is empty, or has no value; and the other columns that were
        read.

    Raises:
        ValueError: There is no such column, or a cell is not text; and as `read_rows`.
        FileNotFoundError: The file does not exist.
    """
    for number, record in _records(path, None if others else [column]):
        if column not in record:
            names = ", ".join(map(repr, record))
            raise ValueError(
                f"{_place(path, number)}: there is no column {column!r}: choose one of {names} "
                f"(--column)"
            )
        text = _filled(record.pop(column))
        if not isinstance(text, str):
            raise ValueError(
                f"{_place(path, number)}: the column {column!r} has {text!r:.60}, which is no text"
            )
        yield number, text, record


# --- Writing --------------------------------------------------------------------------------------


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of text and numbers: mappings as a column for each key, lists as JSON."""
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            inner = {f"{name}.{key}": item for key, item in value.items()}
            cells |= _cells(inner)
        elif isinstance(value, list | tuple):
            cells[name] = json.dumps(value, ensure_ascii=False)
        else:
            cells[name] = round(value, 6) if isinstance(value, float) else value
    return cells


class _Line:
    """A file for `csv`, whose writer returns what `write` returns: the line."""

    def write(self, line: str) -> str:
        return line


def _delimited_lines(rows: Iterable[dict[str, Any]], delimiter: str) -> Iterator[str]:
    writer = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(_Line(), row, delimiter=delimiter, lineterminator="")
            yield writer.writerow(dict(zip(row, row, strict=True)))
        yield writer.writerow(row)


def write_table(
    path: str | Path, rows: Iterable[Mapping[str, Any]], overwrite: bool = False
) -> None:
    """Write rows to a file atomically, in the format that its suffix names.

    Args:
        path: One of `TABLES`: CSV, TSV or JSON lines, plain, .gz or .zst; or Parquet.
        rows: Values by column, the same columns in each. In CSV and TSV, an inner mapping becomes
            a column for each of its keys, NAME.KEY, and a list becomes JSON.
        overwrite: Replace a file.

    Raises:
        FileExistsError: The file exists, and is not to be overwritten.
    """
    kind = suffixes_of(path).kind
    if kind == PARQUET:
        with atomic_path(path, overwrite) as partial:
            _write_parquet(partial, iter(rows))
    elif kind in (*JSON_LINES, ""):
        write_lines(path, (json.dumps(row, ensure_ascii=False) for row in rows), overwrite)
    else:
        lines = _delimited_lines(map(_cells, rows), "," if kind == CSV else "\t")
        write_lines(path, lines, overwrite)


def _write_parquet(path: Path, rows: Iterator[Mapping[str, Any]]) -> None:
    """Stream records, one row group in memory."""
    arrow = import_extra("pyarrow", "parquet")
    parquet = import_extra("pyarrow.parquet", "parquet")
    writer = None
    while group := list(islice(rows, 1_000)):
        columns = arrow.Table.from_pylist(group, writer and writer.schema)
        writer = writer or parquet.ParquetWriter(path, columns.schema)
        writer.write_table(columns)
    if writer is None:
        raise ValueError("there are no rows to write")
    writer.close()
