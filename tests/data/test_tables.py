"""Rows of tables that other libraries write: every cell comes back, and what is malformed is
refused with its line.
"""

import csv
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.data.documents import read_documents
from elmokit.data.tables import read_column, read_rows

CELLS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], include_characters="\n\t"),
    min_size=1,
)
ROWS = st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5)


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in rows))
    elif path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow")
        columns = {"id": [id for id, _ in rows], "text": [text for _, text in rows]}
        __import__("pyarrow.parquet").parquet.write_table(pa.table(columns), path)
    else:
        with path.open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, "excel-tab" if path.suffix == ".tsv" else "excel").writerows(
                [("id", "text"), *rows]
            )
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
@settings(max_examples=15)
@given(rows=ROWS)
def test_cells_come_back_as_they_were_written(
    suffix: str, rows: list, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if suffix == ".tsv":  # whose cells have neither tabs nor line ends
        rows = [tuple(cell.translate({9: " ", 10: " "}) for cell in row) for row in rows]
    path = write(tmp_path_factory.mktemp("t") / f"a{suffix}", rows)
    assert [(record["id"], record["text"]) for _, record in read_rows(path)] == rows


def test_marks_of_quotation_are_text_in_tsv(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('id\ttext\n1\t"Yes" or "no"\n2\t"\n3\t5" of rain\n')
    texts = [record["text"] for _, record in read_rows(tmp_path / "a.tsv")]
    assert texts == ['"Yes" or "no"', '"', '5" of rain']


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", 'id,text\n1,"never closed\n', "CSV"),
        ("a.csv", "id,text\n1,a,b\n", "line 2"),
        ("a.csv", "id;text\n1;a, b\n", "separator"),
        ("a.csv", "id,body\n1,a\n", "'id', 'body'"),
        ("a.tsv", "id\ttext\n1\n", "line 2"),
        ("a.fasta", "MVLS\n", "line 1"),
        ("a.fasta", ">a\nMV1S\n", "line 2"),
    ],
)
def test_malformed_rows_are_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        list(read_documents(str(tmp_path / name)))


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.tsv", "\t")])
def test_two_columns_of_one_name_are_refused(name: str, separator: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(separator.join(["id", "text", "text"]) + "\n")
    with pytest.raises(ValueError, match="one name"):
        list(read_rows(tmp_path / name))


FASTA = """\
>sp|P69905|HBA_HUMAN Hemoglobin subunit alpha
MVLSPADKTN
vkaawgkvga

>tr|A0A000|A0A000_9ACTN Uncharacterized
MSKE WTPQL*
>sp|Q00000|EMPTY
"""


@pytest.mark.parametrize("name", ["a.fasta", "a.fa.gz", "a.faa"])
def test_rows_of_fasta_are_headers_and_residues(name: str, tmp_path: Path) -> None:
    content = FASTA.replace("\n", "\r\n" if name == "a.faa" else "\n").encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name == "a.fa.gz" else content)
    rows = [(row["header"][:9], row["text"].split()) for _, row in read_rows(tmp_path / name)]
    assert rows == [
        ("sp|P69905", list("MVLSPADKTNVKAAWGKVGA")),
        ("tr|A0A000", list("MSKEWTPQL*")),
        ("sp|Q00000", []),
    ]
    assert [line for line, _, _ in read_column(tmp_path / name, "text")] == [1, 5, 7]
