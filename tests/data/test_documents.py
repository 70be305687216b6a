"""Documents of every file format, against the written text, and damaged files."""

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from elmokit.data import documents as module
from elmokit.data.documents import read_documents
from elmokit.data.prepare import prepare

DOCUMENTS = [
    ["One line.", "Two  lines\tof it."],
    ["naïve 我喜欢 \u2028 still the line"],
    ["x"],
    ["Three", "lines", "more"],
]
PACKED = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


def lines_of(path: Path, field: str = "text") -> list[list[str]]:
    return [document.lines for document in read_documents(str(path), field, file=3) if document.file == 3]


def records(field: str = "text") -> list[dict[str, object]]:
    """One record per document, with blank lines in the text; and some without a text."""
    texts = ["\r\n".join(DOCUMENTS[0]) + "\n", *("\n\n \n".join(lines) for lines in DOCUMENTS[1:]), "", None, " \n"]
    return [{"id": number, field: text} for number, text in enumerate(texts)]


@pytest.mark.parametrize("suffix", PACKED)
def test_read_documents_splits_text_at_blank_lines(tmp_path: Path, suffix: str) -> None:
    text = "\n\n" + "\n \n\n".join("\n".join(lines) for lines in DOCUMENTS)
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACKED[suffix](text.encode()))
    assert lines_of(path) == DOCUMENTS


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize(
    ("kind", "field"), [("jsonl", "text"), ("jsonl", "body"), ("ndjson", "text"), ("json", "text"), ("JSONL", "text")]
)
def test_read_documents_reads_one_document_per_json_record(tmp_path: Path, suffix: str, kind: str, field: str) -> None:
    text = "\n".join(json.dumps(record, ensure_ascii=number % 2 == 0) for number, record in enumerate(records(field)))
    path = tmp_path / f"a.{kind}{suffix}"
    path.write_bytes(PACKED[suffix](("\ufeff" + text + "\n\n").encode()))
    assert lines_of(path, field) == DOCUMENTS


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("kind", ["fasta", "fa", "FAA"])
def test_read_documents_reads_one_document_per_sequence(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / f"a.{kind}{suffix}"
    path.write_bytes(PACKED[suffix](b">sp|A1|ONE\nMVL\nsp\n\n>empty\n>sp|B2|TWO\nAC\n"))
    documents = list(read_documents(str(path)))
    assert [document.lines for document in documents] == [["M V L S P"], ["A C"]]
    assert [document.position for document in documents] == [1, 6]


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_read_documents_reads_one_document_per_parquet_record(tmp_path: Path, kind: str) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra parquet")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.Table.from_pylist(records("body"))
    types = {"string": arrow.string(), "large_string": arrow.large_string()}
    column = table["body"].dictionary_encode() if kind == "dictionary" else table["body"].cast(types[kind])
    parquet.write_table(table.set_column(1, "body", column), tmp_path / "a.parquet", row_group_size=2)
    assert lines_of(tmp_path / "a.parquet", "body") == DOCUMENTS
    with pytest.raises(ValueError, match=r"a\.parquet has no column 'text' \(id, body\)"):
        lines_of(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="column 'id' is int64, not text"):
        lines_of(tmp_path / "a.parquet", "id")


def test_read_documents_raises_for_damaged_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet")
    for content in (b"", b"PAR1 nothing of it PAR1"):
        (tmp_path / "a.parquet").write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.parquet is not a Parquet file, or is damaged"):
            lines_of(tmp_path / "a.parquet")
    with pytest.raises(FileNotFoundError, match=r"none\.parquet is not a file"):
        lines_of(tmp_path / "none.parquet")


def test_read_documents_raises_for_a_damaged_page_of_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra parquet")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    texts = [f"the cat sat on the mat {number}" for number in range(999)]
    parquet.write_table(arrow.table({"text": texts}), path, compression="snappy", use_dictionary=False)
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * 100 + whole[200:])
    with pytest.raises(ValueError, match=r"a\.parquet is not a Parquet file, or is damaged: "):
        lines_of(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 2 is not JSON"),
        ("[" * 100_000, r"line 2 is not JSON"),
        ('["text"]', "line 2 is not a JSON object: write one object a line"),
        ('{"body": "a", "id": 1}', r"line 2 has no field 'text' \('body', 'id'\): set text_field"),
        ('{"text": 3}', r"line 2: 'text' is int, not text"),
    ],
)
def test_read_documents_names_the_line_of_invalid_json(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, " + message):
        lines_of(tmp_path / "a.jsonl")


def test_read_documents_replaces_lone_surrogates(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(r'{"text": "a \ud83d b \ud83d\ude00 \ude00"}')
    assert lines_of(tmp_path / "a.jsonl") == [["a \ufffd b \U0001f600 \ufffd"]]
    prepare([tmp_path / "a.jsonl"], tmp_path / "out", processes=1)


def test_read_documents_splits_long_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINES", 2)
    monkeypatch.setattr(module, "MAX_DOCUMENT_CHARACTERS", 20)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a\nb\nc"}) + "\n" + json.dumps({"text": "x" * 30 + "\ny"}))
    assert lines_of(tmp_path / "a.jsonl") == [["a", "b"], ["c"], ["x" * 30], ["y"]]


def test_read_documents_counts_lines_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINES", 2)
    (tmp_path / "a.txt").write_text("\n\na\nb\nc\n \nd")
    (tmp_path / "a.jsonl").write_text('\n{"text": null}\n{"text": "a\\nb\\nc"}\n\n{"text": "\\nd"}')
    positions = [[each.position for each in read_documents(str(tmp_path / name))] for name in ("a.txt", "a.jsonl")]
    assert positions == [[3, 5, 7], [3, 3, 5]]


@pytest.mark.filterwarnings("ignore:.*letters of scripts")
def test_prepare_gives_equal_shards_for_all_file_formats(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join("\n".join(lines) for lines in DOCUMENTS), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps(record) for record in records()), encoding="utf-8")
    for name in ("a.txt", "b.jsonl"):
        prepare([tmp_path / name], tmp_path / f"of-{name}", processes=1, num_shards=1, compression="none")
    shards = [(tmp_path / f"of-{name}" / "shard-00000.txt").read_text() for name in ("a.txt", "b.jsonl")]
    assert shards[0] == shards[1] != ""
