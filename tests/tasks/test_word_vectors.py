"""Files of word vectors in all formats, read with bounded memory."""

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard

from elmokit.fs import reading
from elmokit.tasks.word_vectors import Coverage, read_word_vectors

ENTRIES = {"the": [0.1, -2.0, 3e-3], "Zürich": [1.0, 2.0, 3.0], "dog": [4.0, 5.0, 6.0], ". . .": [7.0, 8.0, 9.0]}
TEXT = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in ENTRIES.items())
BINARY = b"".join(word.encode() + b" " + np.array(vector, "<f4").tobytes() for word, vector in ENTRIES.items())
LINES = b"".join(word.encode() + b" " + np.array(vector, "<f4").tobytes() + b"\n" for word, vector in ENTRIES.items())
FILES = {
    "glove.txt": TEXT.encode(),
    "glove.txt.gz": gzip.compress(TEXT.encode()),
    "fasttext.vec": f"4 3\n{TEXT}".encode(),
    "crlf.vec": f"4 3\n{TEXT}".replace("\n", " \r\n").encode(),
}
BINARY_FILES = {
    "word2vec.bin": b"3 3\n" + BINARY[: BINARY.index(b". . .")],
    "lines.bin": b"3 3\n" + LINES[: LINES.index(b". . .")],
}


@pytest.mark.parametrize("name", [*FILES, *BINARY_FILES])
def test_read_word_vectors_reads_every_format(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes({**FILES, **BINARY_FILES}[name])
    found = read_word_vectors(tmp_path / name, {"Zürich", "dog", "cat"})
    assert found.words == ("Zürich", "dog")
    np.testing.assert_allclose(found.vectors, [ENTRIES["Zürich"], ENTRIES["dog"]])
    assert found.vectors.dtype == np.float32
    assert read_word_vectors(tmp_path / name, (), most_frequent=2).words == ("the", "Zürich")


@pytest.mark.parametrize("read_size", [1, 5, 100])
def test_read_word_vectors_reads_zstandard_to_the_end_when_it_has_several_frames(
    read_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame that begins in the last bytes of a read decompresses to an empty block first."""
    monkeypatch.setattr(reading, "READ_SIZE", read_size)
    frames = (zstandard.compress(line.encode()) for line in TEXT.splitlines(keepends=True))
    (tmp_path / "glove.txt.zst").write_bytes(b"".join(frames))
    assert read_word_vectors(tmp_path / "glove.txt.zst", (), most_frequent=9).words == tuple(ENTRIES)


def test_word_of_glove_may_hold_spaces(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text(TEXT)
    np.testing.assert_array_equal(read_word_vectors(tmp_path / "glove.txt", {". . ."}).vectors, [[7, 8, 9]])


def test_word_with_a_line_break_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "word2vec.bin").write_bytes(b"4 3\n" + BINARY.replace(b"the", b"t\ne").replace(b". . .", b"..."))
    assert read_word_vectors(tmp_path / "word2vec.bin", (), most_frequent=9).words == ("Zürich", "dog", "...")


def test_number_falls_back_to_lower_case_and_coverage_counts_it(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text(TEXT)
    vectors = read_word_vectors(tmp_path / "glove.txt", {"the", "dog", "Zürich"})
    assert [vectors.number(word) for word in ("the", "The", "DOG", "Zürich", "zürich")] == [1, 1, 3, 2, 0]
    coverage = vectors.coverage(("the", "The", "DOG", "zürich", "the"))
    assert coverage == Coverage(exact=1, lowercase=2, missing=1)
    assert str(coverage).startswith("of 4 distinct words 25.0 % have a vector, 50.0 % have one in lower case")


def test_of_repeated_words_the_first_counts(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("a 1 2\na 3 4\n")
    np.testing.assert_array_equal(read_word_vectors(tmp_path / "glove.txt", {"a"}).vectors, [[1, 2]])


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "line 1 is not a word and its numbers"),
        (b"EU NNP I-ORG\n", "line 1 is not a word and its numbers"),
        (b"a 1 2\nb 1\n", "expected a word and 2 numbers for word 2"),
        (b"a 1 2\nb 1 x\n", "the vector of 'b' is not made of numbers"),
        (b"a 1 2\nb 1 inf\n", "a number that is not finite"),
        (b"9 3\n" + TEXT.encode(), "ends after word 4 of 9"),
        (b"9 3\n" + BINARY[: BINARY.index(b". . .")], "ends in word 4 of 9"),
        (b"3 3\n" + BINARY[:-1][:20], "truncated"),
        (b"3 99999999\n", "numbers, not 99999999"),
        (b"\xba\x16\x4f\x2f" + bytes(64), "give its file of vectors, .vec"),
        (b"c 1 2\n", "has a vector for none of the words"),
    ],
)
def test_read_word_vectors_raises_for_other_files_and_says_why(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_word_vectors(tmp_path / "file", {"a", "b"})


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    numbers = " 0.25" * 50
    (tmp_path / "glove.txt").write_text("".join(f"word{n}{numbers}\n" for n in range(20_000)))
    assert (tmp_path / "glove.txt").stat().st_size > 5_000_000
    tracemalloc.start()
    try:
        found = read_word_vectors(tmp_path / "glove.txt", {"word7", "word19999"})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.words == ("word7", "word19999") and peak < 2_000_000
