"""Protein sequences in FASTA: a line `>HEADER`, then residues, one letter each, on any lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from elmokit.fs import read_lines
from elmokit.text import Tokenizer

RESIDUE_TOKENIZER = Tokenizer("residues", list, lambda sequence: [sequence])
RESIDUES = re.compile(r"[A-Za-z*.-]*")  # including the marks of stops and gaps


@dataclass(frozen=True)
class FastaRecord:
    """A sequence: the line of its header (from 1), the header without `>`, and the residues in
    upper case.
    """

    line: int
    header: str
    sequence: str


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


@dataclass(frozen=True)
class Fasta:
    """A file of protein sequences, read as text: a line for each, a word for each residue.

    Attributes:
        path: The file (plain, .gz or .zst).
        group: So many consecutive sequences are held in memory and given by length.
        tokenizer: Makes each residue a word.
    """

    path: Path
    group: int = 1
    tokenizer: Tokenizer = RESIDUE_TOKENIZER

    def _by_length(self) -> Iterator[tuple[int, FastaRecord]]:
        """The records, each with its number in the file."""
        numbered = enumerate(read_fasta(self.path))
        while together := list(islice(numbered, self.group)):
            yield from sorted(together, key=lambda record: len(record[1].sequence))

    def lines(self) -> Iterator[str]:
        """Stream the residues of each sequence."""
        return (record.sequence for _, record in self._by_length())

    def identifiers(self, separator: str = "|", field: int = 1) -> dict[str, int]:
        """The names of all sequences, such as P69905 in `>sp|P69905|HBA_HUMAN Hemoglobin`.

        Args:
            separator: Separates the fields of a header.
            field: Number of the field with the name, from 0; -1: the whole header.

        Returns:
            For each name, in the order of the file, the number of its sequence in `lines`, from 0.

        Raises:
            ValueError: A header has no such field, or two sequences have the same name; the message
                names the line.
        """
        headers = sorted(
            (number, place, record.line, record.header)
            for place, (number, record) in enumerate(self._by_length())
        )
        names: dict[str, int] = {}
        for _, place, line, header in headers:
            fields = [header] if field == -1 else header.split(separator)
            name = fields[field].strip() if field < len(fields) else ""
            if not name or name in names:
                problem = "names another sequence, too" if name else "is empty"
                raise ValueError(
                    f"{self.path}, line {line}: field {field} between {separator!r} of the header "
                    f"{header[:60]!r} {problem}: choose another, or -1 for the whole header"
                )
            names[name] = place
        return names
