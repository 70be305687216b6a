"""Preparing a corpus, against a straightforward one-process loop, and with every bad input."""

import errno
import json
import os
from pathlib import Path

import pytest
import zstandard

from elmokit.data import prepare as module
from elmokit.data.prepare import prepare, read_report, shard_of
from elmokit.fs.reading import read_lines
from elmokit.text.tokenizers import get_tokenizer

resource = pytest.importorskip("resource")  # which Windows has not

DOCUMENTS = [
    ["I don't know. He left me.", "A second paragraph, by Mr. Smith."],
    ["Another document!"],
    ["One.", "Two.", "x" * 60],
    *[[f"Document {number} says: it's number {number}."] for number in range(40)],
]


@pytest.fixture
def raw(tmp_path: Path) -> list[Path]:
    """Two raw files, one compressed, with blank lines in all places."""
    halves = DOCUMENTS[:5], DOCUMENTS[5:]
    texts = ["\n\n" + "\n \n\n".join("\n".join(lines) for lines in half) + "\n\n" for half in halves]
    paths = [tmp_path / "a.txt", tmp_path / "b.txt.zst"]
    paths[0].write_text(texts[0], encoding="utf-8")
    paths[1].write_bytes(zstandard.compress(texts[1].encode()))
    return paths


def _content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _expected_shards(num_shards: int, seed: int) -> list[list[str]]:
    english = get_tokenizer("english-1")
    shards: list[list[str]] = [[] for _ in range(num_shards)]
    for number, lines in enumerate(DOCUMENTS):
        for line in lines:
            for sentence in english.split_sentences(line):
                shards[shard_of(number, num_shards, seed)].append(" ".join(english.tokenize(sentence)))
    return shards


def test_shards_and_report(tmp_path: Path, raw: list[Path]) -> None:
    report = prepare(raw, tmp_path / "out", num_shards=3, processes=1, seed=7)
    shards = [list(read_lines(tmp_path / "out" / f"shard-{index:05d}.txt.zst")) for index in range(3)]
    assert shards == _expected_shards(3, 7)
    assert all(shards)
    lines = [line for shard in shards for line in shard]
    assert "I do n't know ." in lines
    assert report.documents == len(DOCUMENTS)
    assert report.sentences == len(lines)
    assert report.words == sum(len(line.split()) for line in lines) == sum(report.words_per_input.values())
    assert report.long_words == 1
    raw_lines = [line for path in raw for line in read_lines(path)]
    assert report.empty_lines == sum(not line.strip() for line in raw_lines)
    assert read_report(tmp_path / "out") == report
    assert json.loads((tmp_path / "out" / "corpus.json").read_text())["options"]["tokenizer"] == "english-1"


def test_number_of_processes_changes_nothing(tmp_path: Path, raw: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 100)
    prepare(raw, tmp_path / "one", num_shards=4, processes=1)
    prepare(raw, tmp_path / "two", num_shards=4, processes=2)
    assert _content(tmp_path / "one") == _content(tmp_path / "two")


def test_long_documents_are_dealt_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_LINES", 10)
    (tmp_path / "book.txt").write_text("".join(f"line {number}\n" for number in range(95)))
    report = prepare([tmp_path / "book.txt"], tmp_path / "out", num_shards=2, processes=1, compression="none")
    assert report.documents == 10
    shards = [list(read_lines(tmp_path / "out" / f"shard-0000{index}.txt")) for index in range(2)]
    assert sorted(shards[0] + shards[1]) == sorted(f"line {number}" for number in range(95))


def test_running_again_does_nothing(tmp_path: Path, raw: list[Path]) -> None:
    first = prepare(raw, tmp_path / "out", num_shards=2, processes=1)
    before = _content(tmp_path / "out")
    again = prepare(raw, tmp_path / "out", num_shards=2, processes=1)
    assert again.already_done and not first.already_done and again.words == first.words
    assert _content(tmp_path / "out") == before
    with pytest.raises(ValueError, match="made with other num_shards, seed: remove it"):
        prepare(raw, tmp_path / "out", num_shards=3, seed=1, processes=1)


def test_a_foreign_directory_is_left_alone(tmp_path: Path, raw: list[Path]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(FileExistsError, match="remove it"):
        prepare(raw, tmp_path / "out", processes=1)
    assert _content(tmp_path / "out") == {"thesis.tex": b"mine"}


def test_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Only this.")
    report = prepare([tmp_path / "a.txt"], tmp_path / "out", processes=1)
    assert (report.options.num_shards, report.sentences, report.words) == (1, 1, 3)


def test_invalid_utf8_names_the_line_and_leaves_nothing(tmp_path: Path, raw: list[Path]) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good\n\nba\xffd\n")
    with pytest.raises(ValueError, match=r"bad\.txt, line 3"):
        prepare([*raw, tmp_path / "bad.txt"], tmp_path / "out", processes=1)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".partial*"))


@pytest.mark.parametrize("text", ["", "\n \n\n"])
def test_empty_input(tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.txt").write_text(text)
    with pytest.raises(ValueError, match=r"empty\.txt is empty"):
        prepare([tmp_path / "empty.txt"], tmp_path / "out", processes=1)


def test_wrong_arguments(tmp_path: Path, raw: list[Path]) -> None:
    with pytest.raises(ValueError, match="no input"):
        prepare([], tmp_path / "out")
    with pytest.raises(ValueError, match="more than once"):
        prepare([raw[0], raw[0]], tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        prepare([tmp_path / "nowhere.txt"], tmp_path / "out")
    with pytest.raises(ValueError, match="zst, gz, none"):
        prepare(raw, tmp_path / "out", compression="rar")
    with pytest.raises(ValueError, match="num_shards is 0"):
        prepare(raw, tmp_path / "out", num_shards=0)
    with pytest.raises(ValueError, match=r"num_shards is 9999999: choose 1 to \d+, .*ulimit -n"):
        prepare(raw, tmp_path / "out", num_shards=9_999_999)
    with pytest.raises(ValueError, match="english-1"):
        prepare(raw, tmp_path / "out", tokenizer="klingon-1")


def test_many_shards_are_within_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    terabytes = {"a.txt": 1 << 42}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert module._default_num_shards(terabytes) == min(256, module.most_shards()) <= soft
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, hard))
    assert module._default_num_shards(terabytes) == module.most_shards() == 36
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, hard))
    assert module._default_num_shards(terabytes) == 256


def test_unwritable_output(tmp_path: Path, raw: list[Path]) -> None:
    with pytest.raises(OSError, match=r"cannot write .*out"):
        prepare(raw, raw[0] / "out", processes=1)


def test_full_disk(tmp_path: Path, raw: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write .*out \(No space left"):
        prepare(raw, tmp_path / "out", processes=1)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".partial*"))
