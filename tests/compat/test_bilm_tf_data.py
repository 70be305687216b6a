"""bilm-tf's vocabularies and datasets, on words whose ids are known."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.compat.bilm_tf import (
    Batcher,
    BidirectionalLMDataset,
    LMDataset,
    UnicodeCharsVocabulary,
    Vocabulary,
)

WORDS = ["a", "</S>", "<UNK>", "bb", "<S>", "\u00e9"]
SENTENCES = [["a", "bb", "x"], ["bb"], ["\u00e9", "a"]]
BEGIN, END, UNKNOWN = 4, 1, 2


@pytest.fixture
def vocab_file(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return tmp_path / "vocab.txt"


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text-1.txt").write_text("\n".join(map(" ".join, SENTENCES)) + "\n", encoding="utf-8")
    return str(tmp_path / "text-*.txt")


# --- Vocabularies ------------------------------------------------------------------------------------------------


def test_vocabulary_encodes_words_between_boundaries(vocab_file: Path) -> None:
    vocab = Vocabulary(vocab_file)
    assert (vocab.size, vocab.bos, vocab.eos, vocab.unk) == (6, BEGIN, END, UNKNOWN)
    assert vocab.encode("a  unknown bb").tolist() == [BEGIN, 0, UNKNOWN, 3, END]
    assert vocab.encode(["bb", "a"], reverse=True, split=False).tolist() == [END, 3, 0, BEGIN]
    assert vocab.decode([3, 0]) == "bb a" and vocab.encode("a").dtype == np.int32


def test_vocabulary_lacks_boundaries_only_where_that_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\n<UNK>\n")
    assert (Vocabulary(tmp_path / "words.txt").bos, Vocabulary(tmp_path / "words.txt").unk) == (-1, 1)
    with pytest.raises(ValueError, match=r"words\.txt lacks </S>, <S>: add each"):
        Vocabulary(tmp_path / "words.txt", validate_file=True)


@pytest.mark.parametrize(
    ("word", "characters"),
    [
        ("a", [258, 97, 259, 260, 260]),
        ("abcdef", [258, 97, 98, 99, 259]),
        ("\u00e9", [258, 0xC3, 0xA9, 259, 260]),
        ("<S>", [258, 256, 259, 260, 260]),
        ("</S>", [258, 257, 259, 260, 260]),
    ],
)
def test_characters_of_a_word_are_its_bytes_between_marks(vocab_file: Path, word: str, characters: list[int]) -> None:
    vocab = UnicodeCharsVocabulary(vocab_file, 5)
    assert vocab.word_to_char_ids(word).tolist() == characters
    if word in WORDS:
        assert vocab.word_char_ids[vocab.word_to_id(word)].tolist() == characters


def test_characters_of_a_sentence_are_those_of_batches_less_one(vocab_file: Path) -> None:
    vocab = UnicodeCharsVocabulary(vocab_file, 50)
    for sentence in SENTENCES:
        batch = Batcher(vocab_file, 50).batch_sentences([sentence])[0]
        assert np.array_equal(vocab.encode_chars(" ".join(sentence)), batch - 1)
        reverse = vocab.encode_chars(sentence[::-1], reverse=True, split=False)
        assert np.array_equal(reverse, batch[::-1] - 1)


# --- Datasets ----------------------------------------------------------------------------------------------------


def stream(reverse: bool = False) -> list[list[int]]:
    """The ids of each sentence with its boundaries."""
    number = {word: index for index, word in enumerate(WORDS)}
    ids = [[BEGIN, *(number.get(word, UNKNOWN) for word in sentence), END] for sentence in SENTENCES]
    return [sentence[::-1] for sentence in ids] if reverse else ids


def test_windows_of_one_row_are_the_stream_of_sentences(vocab_file: Path, text: str) -> None:
    for reverse in (False, True):
        data = LMDataset(text, Vocabulary(vocab_file), reverse=reverse, test=True)
        windows = list(data.iter_batches(1, 3))
        tokens = [number for ids in stream(reverse) for number in ids[:-1]]
        targets = [number for ids in stream(reverse) for number in ids[1:]]
        assert len(tokens) == 9 and len(windows) == 3
        assert np.concatenate([window["token_ids"][0] for window in windows]).tolist() == tokens
        assert np.concatenate([window["next_token_id"][0] for window in windows]).tolist() == targets
        assert all(window["tokens_characters"] is None for window in windows)


def test_rows_take_the_next_sentence_when_they_have_read_one(vocab_file: Path, text: str) -> None:
    window, second = islice(LMDataset(text, Vocabulary(vocab_file)).iter_batches(2, 3), 2)
    # Row 0 has the first sentence; row 1 the second, after which it needs the third.
    assert window["token_ids"].tolist() == [[BEGIN, 0, 3], [BEGIN, 3, BEGIN]]
    assert window["next_token_id"].tolist() == [[0, 3, UNKNOWN], [3, END, 5]]
    # Row 0 goes on, and begins the text again; row 1 takes its second sentence when it has read the third.
    assert second["token_ids"].tolist() == [[UNKNOWN, BEGIN, 0], [5, 0, BEGIN]]
    assert second["next_token_id"].tolist() == [[END, 0, 3], [0, END, 3]]


def test_a_window_that_is_not_full_is_left_out(vocab_file: Path, text: str) -> None:
    data = LMDataset(text, Vocabulary(vocab_file), test=True)
    assert [window["token_ids"].shape for window in data.iter_batches(2, 3)] == [(2, 3)]
    assert list(data.iter_batches(2, 100)) == []


def test_both_directions_have_characters_of_the_same_words(vocab_file: Path, text: str) -> None:
    vocab = UnicodeCharsVocabulary(vocab_file, 5)
    data = BidirectionalLMDataset(text, vocab, test=True)
    window: dict[str, Any] = next(data.iter_batches(1, 4))
    assert window["token_ids"].tolist() == [[BEGIN, 0, 3, UNKNOWN]]
    assert window["next_token_id_reverse"].tolist() == [[UNKNOWN, 3, 0, BEGIN]]
    known = vocab.encode_chars("a bb x")
    assert np.array_equal(window["tokens_characters"][0], known[:-1])
    assert np.array_equal(window["tokens_characters_reverse"][0], known[:0:-1])


def test_no_file_is_an_error(vocab_file: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file"):
        LMDataset(f"{tmp_path}/none-*", Vocabulary(vocab_file))


def test_files_without_text_cannot_be_repeated(vocab_file: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    files, vocab = str(tmp_path / "empty.txt"), Vocabulary(vocab_file)
    assert list(LMDataset(files, vocab, test=True).iter_batches(1, 1)) == []
    with pytest.raises(ValueError, match=r"no text in .*empty\.txt"):
        next(LMDataset(files, vocab).iter_batches(1, 1))
