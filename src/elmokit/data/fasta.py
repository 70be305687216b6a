"""Protein sequences in FASTA format: a line `>HEADER`, then the residues, one letter each, on any
number of lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from elmokit.fs import read_lines

RESIDUES = re.compile(r"[A-Za-z*.-]*")  # including the marks of stops and gaps


@dataclass(frozen=True)
class FastaRecord:
    """A sequence: the line of its header (from 1), the header without `>`, and the residues in
    upper case.
    """

    line: int
    header: str
    sequence: str


def are_fasta(lines: Iterable[str]) -> bool:
    """Whether lines of text, without blank ones, are a header and residues."""
    kinds = [">" if line.startswith(">") else RESIDUES.fullmatch(line.rstrip()) for line in lines]
    return len(kinds) > 1 and kinds[0] == ">" and kinds[1] != ">" and all(kinds)


def read_fasta(path: str | Path) -> Iterator[FastaRecord]:
    """Stream the sequences of a file.

    Args:
        path: The file (plain, .gz or .zst).

    Yields:
        The sequences in the order of the file, without white space.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: A line of residues has other characters, or precedes the first header; the
            message names the line.
    """
    line, header, residues = 0, None, []
    for number, text in enumerate(read_lines(path), start=1):
        if text.startswith(">"):
            if header is not None:
                yield FastaRecord(line, header, "".join(residues))
            line, header, residues = number, text[1:].strip(), []
            continue
        part = "".join(text.split())
        if part and header is None:
            raise ValueError(
                f"{path}, line {number}: residues without a header: is this FASTA? It begins with "
                f">NAME"
            )
        if RESIDUES.fullmatch(part) is None:
            raise ValueError(
                f"{path}, line {number}: residues are letters, not {text.strip()[:60]!r}"
            )
        residues.append(part.upper())
    if header is not None:
        yield FastaRecord(line, header, "".join(residues))


def _by_length(records: Iterable[FastaRecord], group: int) -> Iterator[tuple[int, FastaRecord]]:
    """Records with their numbers in the file; every `group` consecutive ones are sorted by
    length.
    """
    numbered = enumerate(records)
    while together := list(islice(numbered, group)):
        yield from sorted(together, key=lambda each: len(each[1].sequence))


def read_sequences(path: str | Path, group: int = 1) -> Iterator[str]:
    """Stream the residues of each sequence; every `group` consecutive ones are held in memory and
    sorted by length.
    """
    return (record.sequence for _, record in _by_length(read_fasta(path), group))


def read_identifiers(
    path: str | Path, separator: str = "|", field: int = 1, group: int = 1
) -> dict[str, int]:
    """The names of all sequences: a field of each header, such as P69905 in `>sp|P69905|HBA_HUMAN
    Hemoglobin`.

    Args:
        path: The file.
        separator: Separates the fields.
        field: Number of the field, from 0; -1: the whole header.
        group: As for `read_sequences`.

    Returns:
        For each name, in the order of the file, the index of its sequence in the order of
        `read_sequences`, from 0.

    Raises:
        ValueError: A header has no such field, or two sequences have the same name; the message
            names the line.
    """
    in_order = enumerate(_by_length(read_fasta(path), group))
    headers = sorted(
        (number, place, record.line, record.header) for place, (number, record) in in_order
    )
    names: dict[str, int] = {}
    for _, place, line, header in headers:
        fields = [header] if field == -1 else header.split(separator)
        name = fields[field].strip() if field < len(fields) else ""
        if not name or name in names:
            raise ValueError(
                f"{path}, line {line}: field {field} between {separator!r} of the header "
                f"{header[:60]!r} {'names another sequence, too' if name else 'is empty'}: choose "
                "another, or -1 for the whole header"
            )
        names[name] = place
    return names
