"""Files of word vectors in all formats, read with bounded memory."""

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard

from elmokit.fs import reading
from elmokit.tasks.fitting.vectors import read_word_vectors

ENTRIES = {"the": [0.1, -2.0, 3e-3], "Zürich": [1.0, 2.0, 3.0], "dog": [4.0, 5.0, 6.0], ". . .": [7.0, 8.0, 9.0]}
TEXT = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in ENTRIES.items())
BINARY = [word.encode() + b" " + np.array(vector, "<f4").tobytes() for word, vector in list(ENTRIES.items())[:3]]
FILES = {
    "glove.txt": TEXT.encode(),
    "glove.txt.gz": gzip.compress(TEXT.encode()),
    "glove.txt.zst": b"".join(zstandard.compress(line.encode()) for line in TEXT.splitlines(keepends=True)),
    "fasttext.vec": f"4 3\n{TEXT}".encode(),
    "crlf.vec": f"4 3\n{TEXT}".replace("\n", " \r\n").encode(),
    "word2vec.bin": b"3 3\n" + b"".join(BINARY),
    "lines.bin.gz": gzip.compress(b"3 3\n" + b"\n".join(BINARY) + b"\n"),
}


@pytest.mark.parametrize("read_size", [5, 1 << 18])
@pytest.mark.parametrize("name", FILES)
def test_every_format_is_read(name: str, read_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_SIZE", read_size)
    (tmp_path / name).write_bytes(FILES[name])
    found = read_word_vectors(tmp_path / name, {"Zürich", "dog", "cat"})
    assert found.words == ("Zürich", "dog") and found.vectors.dtype == np.float32
    np.testing.assert_allclose(found.vectors, [ENTRIES["Zürich"], ENTRIES["dog"]])
    assert [found.number(word) for word in ("dog", "DOG", "Zürich", "zürich", "cat")] == [2, 2, 1, 0, 0]
    frequent = read_word_vectors(tmp_path / name, (), most_frequent=9).words
    assert frequent == tuple(ENTRIES)[: 3 if ".bin" in name else 4]


def test_of_repeated_words_the_first_counts(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("a 1 2\na 3 4\n")
    np.testing.assert_array_equal(read_word_vectors(tmp_path / "glove.txt", {"a"}).vectors, [[1, 2]])


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.txt", b""),
        ("a.txt", b"word\n"),
        ("a.txt", b"EU NNP I-ORG\n"),
        ("a.txt", b"a 1 2\nb 1\n"),
        ("a.txt", b"a 1 x\n"),
        ("a.txt", b"c 1 2\n"),  # none of the words
        ("a.vec", b"9 3\n" + TEXT.encode()),
        ("a.bin", b"3 3\n" + BINARY[0] + BINARY[1][:-1]),
        ("a.bin", b"\xba\x16\x4f\x2f" + bytes(64)),  # a whole fastText model
    ],
)
def test_other_and_truncated_files_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError):
        read_word_vectors(tmp_path / name, {"a", "b", "the"})


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    numbers = " 0.25" * 50
    (tmp_path / "glove.txt").write_text("".join(f"word{n}{numbers}\n" for n in range(20_000)))
    tracemalloc.start()
    try:
        found = read_word_vectors(tmp_path / "glove.txt", {"word7", "word19999"})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "glove.txt").stat().st_size > 5_000_000 and peak < 2_500_000
    assert found.words == ("word7", "word19999")
