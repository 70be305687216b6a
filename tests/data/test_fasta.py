"""FASTA: sequences over several lines, names from headers, and errors that name the line."""

import gzip
from pathlib import Path

import pytest

from elmokit.data.fasta import Fasta, FastaRecord, read_fasta

UNIPROT = """\
>sp|P69905|HBA_HUMAN Hemoglobin subunit alpha
MVLSPADKTN
vkaawgkvga

>tr|A0A000|A0A000_9ACTN Uncharacterized
MSKE WTPQL*
>sp|Q00000|EMPTY
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_read_fasta_joins_lines_and_reads_upper_case(tmp_path: Path) -> None:
    file = write(tmp_path / "a.fasta", UNIPROT)
    assert list(read_fasta(file)) == [
        FastaRecord(1, "sp|P69905|HBA_HUMAN Hemoglobin subunit alpha", "MVLSPADKTNVKAAWGKVGA"),
        FastaRecord(5, "tr|A0A000|A0A000_9ACTN Uncharacterized", "MSKEWTPQL*"),
        FastaRecord(7, "sp|Q00000|EMPTY", ""),
    ]
    (tmp_path / "b.fasta.gz").write_bytes(gzip.compress(UNIPROT.replace("\n", "\r\n").encode()))
    assert list(Fasta(tmp_path / "b.fasta.gz").lines()) == [
        "MVLSPADKTNVKAAWGKVGA",
        "MSKEWTPQL*",
        "",
    ]


@pytest.mark.parametrize(
    ("separator", "field", "names"),
    [
        ("|", 1, ("P69905", "A0A000", "Q00000")),
        ("_", 0, ("sp|P69905|HBA", "tr|A0A000|A0A000", "sp|Q00000|EMPTY")),
        ("#", -1, tuple(line[1:] for line in UNIPROT.splitlines() if line.startswith(">"))),
    ],
)
def test_read_identifiers_takes_the_field_or_the_whole_header(
    tmp_path: Path, separator: str, field: int, names: tuple[str, ...]
) -> None:
    assert tuple(Fasta(write(tmp_path / "a.fasta", UNIPROT)).identifiers(separator, field)) == names


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("MVLS\n", 1),
        (">a\nMVLS\nMV1S\n", 3),
        (">x|a|b\nMV\n>c\nMV\n", 3),
        (">a|\nMV\n", 1),
        (">\n", 1),
        (">x|a\nM\n>y|a\nM\n", 3),
    ],
)
def test_read_identifiers_names_the_line_that_is_wrong(
    tmp_path: Path, text: str, line: int
) -> None:
    with pytest.raises(ValueError, match=f"line {line}:"):
        Fasta(write(tmp_path / "a.fasta", text)).identifiers()
