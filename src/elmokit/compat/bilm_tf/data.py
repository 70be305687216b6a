"""bilm-tf's vocabularies, batchers and datasets (bilm/data.py): words to ids."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cached_property
from glob import glob
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.compat.shared import encode_with_notices, warn_of_truncated, word_lists
from elmokit.config import (
    BEGIN_SENTENCE,
    BEGIN_WORD,
    CHARACTER_SHIFT,
    END_SENTENCE,
    END_WORD,
    PAD_CHARACTER,
)
from elmokit.fs import read_lines
from elmokit.text import BOS, EOS, Vocab, encode_words

UNK = "<UNK>"

# --- Vocabularies ---------------------------------------------------------------------------------


class Vocabulary:
    """Words and their ids, from 0; unlike the batchers' ids, these are not shifted by one."""

    def __init__(self, filename: str | Path, validate_file: bool = False) -> None:
        """Read a vocabulary.

        Args:
            filename: One word per line.
            validate_file: Require <S>, </S> and <UNK>; otherwise the id of a missing one is -1.

        Raises:
            ValueError: With `validate_file`, one of them is missing.
        """
        self.filename = Path(filename)
        self.words = Vocab.read_words(filename)
        self._word_to_id = {word: number for number, word in enumerate(self.words)}
        self.bos, self.eos, self.unk = (self._word_to_id.get(mark, -1) for mark in (BOS, EOS, UNK))
        self.size = len(self.words)
        if validate_file and (missing := {BOS, EOS, UNK} - self._word_to_id.keys()):
            raise ValueError(
                f"{filename} lacks {', '.join(sorted(missing))}: add each as a line of its own"
            )

    def word_to_id(self, word: str) -> int:
        """The id of a word, or of <UNK>."""
        return self._word_to_id.get(word, self.unk)

    def id_to_word(self, cur_id: int) -> str:
        """The word of an id."""
        return self.words[cur_id]

    def decode(self, cur_ids: Sequence[int]) -> str:
        """The words of ids, with spaces between them."""
        return " ".join(map(self.id_to_word, cur_ids))

    def encode(
        self, sentence: str | Sequence[str], reverse: bool = False, split: bool = True
    ) -> np.ndarray:
        """The ids of a sentence with its boundaries, (T+2,) int32.

        Args:
            sentence: A string, which is split at white space, or with `split=False` a list of
                words.
            reverse: Whether `sentence` is given in reverse order; </S> is then put first and <S>
                last.
            split: Whether `sentence` is a string.
        """
        begin, end = (self.eos, self.bos) if reverse else (self.bos, self.eos)
        return np.array(
            [begin, *map(self.word_to_id, _words(sentence, split)), end], dtype=np.int32
        )


def _words(sentence: str | Sequence[str], split: bool) -> Sequence[str]:
    return sentence.split() if split and isinstance(sentence, str) else list(sentence)


class UnicodeCharsVocabulary(Vocabulary):
    """Words with the ids of their characters, which batchers shift by one."""

    bos_char = BEGIN_SENTENCE - CHARACTER_SHIFT
    eos_char = END_SENTENCE - CHARACTER_SHIFT
    bow_char = BEGIN_WORD - CHARACTER_SHIFT
    eow_char = END_WORD - CHARACTER_SHIFT
    pad_char = PAD_CHARACTER - CHARACTER_SHIFT

    def __init__(
        self, filename: str | Path, max_word_length: int, validate_file: bool = False
    ) -> None:
        super().__init__(filename, validate_file)
        self.max_word_length = max_word_length
        self.bos_chars, self.eos_chars = self._characters([BOS, EOS])

    def _characters(self, words: Sequence[str]) -> np.ndarray:
        return encode_words(words, self.max_word_length) - CHARACTER_SHIFT

    @cached_property
    def word_char_ids(self) -> np.ndarray:
        """The characters of all words, (V, `max_word_length`) int32."""
        return self._characters(self.words)

    def word_to_char_ids(self, word: str) -> np.ndarray:
        """The characters of a word, (`max_word_length`,) int32."""
        return self._characters([word])[0]

    def encode_chars(
        self, sentence: str | Sequence[str], reverse: bool = False, split: bool = True
    ) -> np.ndarray:
        """`encode` in characters, (T+2, `max_word_length`) int32."""
        begin, end = (EOS, BOS) if reverse else (BOS, EOS)
        words = _words(sentence, split)
        warn_of_truncated(words, self.max_word_length, "bilm-tf")
        return self._characters([begin, *words, end])


# --- Batchers -------------------------------------------------------------------------------------


class Batcher:
    """Tokenized sentences -> character ids with boundaries. No vocabulary is read."""

    def __init__(self, lm_vocab_file: str | Path | None, max_token_length: int) -> None:
        self._max_token_length = max_token_length

    def batch_sentences(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """Ids (B, T+2, `max_token_length`) int64, zeros for padding."""
        bounded = [(BOS, *sentence, EOS) for sentence in word_lists(sentences)]
        return encode_with_notices(bounded, self._max_token_length, "bilm-tf")


class TokenBatcher:
    """Tokenized sentences -> word ids with boundaries."""

    def __init__(self, lm_vocab_file: str | Path) -> None:
        self._lm_vocab = Vocabulary(lm_vocab_file)

    def batch_sentences(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """Ids (B, T+2) int64, zeros for padding. Unknown words become <UNK>."""
        lists = word_lists(sentences)
        ids = np.zeros((len(lists), max(map(len, lists), default=0) + 2), dtype=np.int64)
        for row, sentence in zip(ids, lists, strict=True):
            numbers = self._lm_vocab.encode(sentence, split=False)
            if (numbers < 0).any():  # bilm-tf used the id of padding, which shortened the sentence
                raise ValueError(
                    f"{self._lm_vocab.filename} lacks <S>, </S>, or a word of {sentence} and <UNK>"
                )
            row[: len(numbers)] = numbers + 1
        return ids


# --- Datasets -------------------------------------------------------------------------------------

Sentence = tuple[np.ndarray, np.ndarray | None]  # ids of words and of characters, with boundaries


class LMDataset:
    """Tokenized sentences of files, in windows of a few rows, as bilm-tf trains on them.

    `elmokit.pretrain` does not need it: it reads text itself, and faster.
    """

    def __init__(
        self,
        filepattern: str,
        vocab: Vocabulary,
        reverse: bool = False,
        test: bool = False,
        shuffle_on_load: bool = False,
    ) -> None:
        """Find the files.

        Args:
            filepattern: Path of the files, with wildcards; one sentence per line.
            vocab: A vocabulary; a `UnicodeCharsVocabulary` gives characters as well.
            reverse: Reverse each sentence.
            test: Read the files once, in order; otherwise endlessly, in random order.
            shuffle_on_load: Shuffle the sentences of each file.

        Raises:
            FileNotFoundError: There is no such file.
        """
        self.files = sorted(map(Path, glob(str(filepattern))))
        if not self.files:
            raise FileNotFoundError(f"there is no file {filepattern}")
        self.vocab, self.reverse, self.test, self.shuffle_on_load = (
            vocab,
            reverse,
            test,
            shuffle_on_load,
        )
        self.max_word_length = getattr(vocab, "max_word_length", None)

    def get_sentence(self) -> Iterator[Sentence]:
        """Yield the ids of each sentence, and of its characters or None."""
        while True:
            sentences: list[list[str]] = []
            for file in self.files if self.test else random.sample(self.files, len(self.files)):
                sentences = [
                    line.split()[:: -1 if self.reverse else 1] for line in read_lines(file)
                ]
                if self.shuffle_on_load:
                    random.shuffle(sentences)
                for sentence in sentences:
                    chars = None
                    if isinstance(self.vocab, UnicodeCharsVocabulary):
                        chars = self.vocab.encode_chars(sentence, self.reverse, split=False)
                    yield self.vocab.encode(sentence, self.reverse, split=False), chars
            if self.test:
                return
            if not sentences:
                raise ValueError(f"there is no text in {self.files[-1]}, which is read endlessly")

    def iter_batches(self, batch_size: int, num_steps: int) -> Iterator[dict[str, Any]]:
        """Yield windows of `batch_size` rows of `num_steps` words, each row continuing its last.

        Yields:
            token_ids (B, T), tokens_characters (B, T, C) or None, and next_token_id (B, T), int32.
            As in bilm-tf, words that do not fill a last window are dropped.
        """
        sentences = self.get_sentence()

        def predictions() -> Iterator[tuple[int, np.ndarray | None, int]]:
            for ids, chars in sentences:  # all rows take sentences from the same iterator
                yield from zip(
                    ids[:-1], repeat(None) if chars is None else chars, ids[1:], strict=False
                )

        rows = [predictions() for _ in range(batch_size)]
        while (
            len(window := list(chain.from_iterable(islice(row, num_steps) for row in rows)))
            == batch_size * num_steps
        ):
            tokens, characters, targets = zip(*window, strict=True)
            shape = batch_size, num_steps
            yield {
                "token_ids": np.array(tokens, np.int32).reshape(shape),
                "tokens_characters": None
                if characters[0] is None
                else np.stack(characters).reshape(*shape, -1),
                "next_token_id": np.array(targets, np.int32).reshape(shape),
            }


class BidirectionalLMDataset:
    """An `LMDataset` for each direction, of the same files."""

    def __init__(
        self, filepattern: str, vocab: Vocabulary, test: bool = False, shuffle_on_load: bool = False
    ) -> None:
        self._forward = LMDataset(filepattern, vocab, False, test, shuffle_on_load)
        self._reverse = LMDataset(filepattern, vocab, True, test, shuffle_on_load)
        self.files, self.vocab, self.max_word_length = (
            self._forward.files,
            vocab,
            self._forward.max_word_length,
        )

    def iter_batches(self, batch_size: int, num_steps: int) -> Iterator[dict[str, Any]]:
        """Yield the windows of both; the names of the reversed sentences end in `_reverse`."""
        directions = (
            dataset.iter_batches(batch_size, num_steps)
            for dataset in (self._forward, self._reverse)
        )
        for window, reverse in zip(*directions, strict=False):
            yield window | {f"{name}_reverse": array for name, array in reverse.items()}
