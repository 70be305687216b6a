"""Corpora: checked before training, shuffled reproducibly, resumable at any sentence."""

import gzip
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import pytest
import zstandard

import elmokit.train.corpus as corpus
from elmokit.train.corpus import CorpusReport, SentenceReader

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "plain.txt": bytes,
    "zipped.txt.gz": gzip.compress,
    "zstd.txt.zst": zstandard.ZstdCompressor().compress,
}


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(COMPRESS[path.name](content) if path.name in COMPRESS else content)
    return path


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three files of 7, 1 and 10 sentences, with blank lines between them, in blocks of 4 lines."""
    monkeypatch.setattr(corpus, "BLOCK_LINES", 4)
    sizes = zip(COMPRESS, (7, 1, 10), strict=True)
    texts = {
        name: "\n\n".join(f"{name} sentence {number}" for number in range(size))
        for name, size in sizes
    }
    return [write(tmp_path / name, text.encode()) for name, text in texts.items()]


def sentences(reader: SentenceReader, count: int) -> list[str]:
    return [" ".join(words) for words in islice(reader, count)]


def everything(files: list[Path]) -> Counter[str]:
    sizes = zip(files, (7, 1, 10), strict=True)
    return Counter(
        f"{file.name} sentence {number}" for file, size in sizes for number in range(size)
    )


def test_sentence_reader_reads_every_sentence_once_per_pass_in_a_new_order(
    files: list[Path],
) -> None:
    reader = SentenceReader(files, seed=1)
    first = sentences(reader, 18)
    second = sentences(reader, 18)
    assert Counter(first) == Counter(second) == everything(files)
    assert first != second
    assert sentences(SentenceReader(files, seed=1), 36) == first + second
    assert sentences(SentenceReader(files, seed=2), 18) != first


def test_sentence_reader_resumes_from_every_position(files: list[Path]) -> None:
    whole = sentences(SentenceReader(files, seed=3), 45)
    for taken in range(40):
        reader = SentenceReader(files, seed=3)
        assert sentences(reader, taken) == whole[:taken]
        resumed = SentenceReader(files, seed=3, position=asdict(reader.position))
        assert sentences(resumed, 45 - taken) == whole[taken:]


def test_a_report_counts_words_like_the_reader(tmp_path: Path) -> None:
    """Both split lines with `str.split`, also at no-break spaces: the number of steps depends on
    it.
    """
    lines = [
        "two words",
        "",
        "  ",
        "\t",
        "a\u00a0b \u3000c",
        "\u00a0",
        "Größe\r",
        "three\u2028more\x85words",
    ]
    file = write(tmp_path / "text.txt", "\n".join(lines).encode())
    report = CorpusReport.of([file])
    read = [line.split() for line in lines if line.split()]
    assert (report.sentences, report.words) == (len(read), sum(map(len, read)))
    assert report.stream_tokens == report.words + report.sentences
    result = sentences(SentenceReader([file], seed=0), len(read))
    assert Counter(result) == Counter(" ".join(words) for words in read)


@pytest.mark.parametrize("content", ["", " \n\t\n", "\u00a0\n\u3000"])
def test_a_report_rejects_a_corpus_without_sentences(tmp_path: Path, content: str) -> None:
    """The endless reader would never return."""
    empty = [write(tmp_path / f"empty-{number}.txt", content.encode()) for number in range(2)]
    with pytest.raises(ValueError, match="no sentences"):
        CorpusReport.of(empty)


def test_a_corpus_with_an_empty_file_is_read_as_without_it(tmp_path: Path) -> None:
    """Documents go to shards by their hash, so that some shards of a small corpus are empty."""
    full = write(tmp_path / "full.txt", b"a b\nc")
    empty = write(tmp_path / "empty.txt", b"")
    report = CorpusReport.of([empty, full])
    without = CorpusReport.of([full])
    assert (report.sentences, report.words, report.files) == (without.sentences, without.words, 2)
    read = sentences(SentenceReader([empty, full], seed=0), 6)
    assert Counter(read) == {"a b": 3, "c": 3}
