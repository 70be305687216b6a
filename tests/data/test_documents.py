"""Documents of every file format, against the written text, and damaged files."""

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from elmokit.data.documents import read_documents

DOCUMENTS = [
    ["One line.", "Two  lines\tof it."],
    ["naïve 我喜欢 \u2028 still the line"],
    ["x"],
    ["Three", "lines", "more"],
]
PACKED = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


def lines_of(path: Path, field: str = "text") -> list[list[str]]:
    return [document.lines for document in read_documents(str(path), field)]


def records(field: str = "text") -> list[dict[str, object]]:
    """One record per document, with blank lines in the text; and some without a text."""
    texts = [
        "\r\n".join(DOCUMENTS[0]) + "\n",
        *("\n\n \n".join(lines) for lines in DOCUMENTS[1:]),
        "",
        None,
        " \n",
    ]
    return [{"id": number, field: text} for number, text in enumerate(texts)]


@pytest.mark.parametrize("suffix", PACKED)
def test_text_is_split_at_blank_lines(tmp_path: Path, suffix: str) -> None:
    text = "\n\n" + "\n \n\n".join("\n".join(lines) for lines in DOCUMENTS)
    (tmp_path / f"a.txt{suffix}").write_bytes(PACKED[suffix](text.encode()))
    assert lines_of(tmp_path / f"a.txt{suffix}") == DOCUMENTS


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize(
    ("kind", "field"), [("jsonl", "text"), ("ndjson", "body"), ("json", "text"), ("JSONL", "x")]
)
def test_a_json_record_is_a_document(tmp_path: Path, suffix: str, kind: str, field: str) -> None:
    text = "\n".join(
        json.dumps(record, ensure_ascii=number % 2 == 0)
        for number, record in enumerate(records(field))
    )
    path = tmp_path / f"a.{kind}{suffix}"
    path.write_bytes(PACKED[suffix](("\ufeff" + text + "\n\n").encode()))
    assert lines_of(path, field) == DOCUMENTS


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_a_row_of_parquet_is_a_document(tmp_path: Path, kind: str) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra parquet")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.Table.from_pylist(records("body"))
    types = {"string": arrow.string(), "large_string": arrow.large_string()}
    column = (
        table["body"].dictionary_encode()
        if kind == "dictionary"
        else table["body"].cast(types[kind])
    )
    parquet.write_table(
        table.set_column(1, "body", column), tmp_path / "a.parquet", row_group_size=2
    )
    assert lines_of(tmp_path / "a.parquet", "body") == DOCUMENTS
    for field in ("text", "id"):
        with pytest.raises(ValueError, match=field):
            lines_of(tmp_path / "a.parquet", field)


@pytest.mark.parametrize("line", ["{", "[" * 100_000, '["text"]', '{"body": "a"}', '{"text": 3}'])
def test_a_json_line_without_a_text_is_an_error(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, (line|row) 2"):
        lines_of(tmp_path / "a.jsonl")
