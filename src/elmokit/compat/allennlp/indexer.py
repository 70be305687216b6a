"""AllenNLP's `ELMoCharacterMapper` and `ELMoTokenCharactersIndexer` (data/token_indexers/elmo_indexer.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elmokit.compat.allennlp.common import FromParams
from elmokit.compat.notice import warn_of_truncated
from elmokit.config import BEGIN_SENTENCE, BEGIN_WORD, CHARACTER_SHIFT, END_SENTENCE, END_WORD, PAD_CHARACTER
from elmokit.text.characters import BOS, EOS, MAX_CHARACTERS, encode_words

KEY = "elmo_tokens"
NO_WORDS: Mapping[str, int] = {}


def _marked(character: int) -> list[int]:
    """The characters of a word with a single character, without the 1 that AllenNLP adds to keep 0 for padding."""
    word = [BEGIN_WORD, character + CHARACTER_SHIFT, END_WORD]
    return [number - CHARACTER_SHIFT for number in word + [PAD_CHARACTER] * (MAX_CHARACTERS - len(word))]


class ELMoCharacterMapper:
    """Words -> the ids of their characters, 1 to 261; 0 is reserved for padding."""

    max_word_length = MAX_CHARACTERS
    beginning_of_sentence_character = BEGIN_SENTENCE - CHARACTER_SHIFT
    end_of_sentence_character = END_SENTENCE - CHARACTER_SHIFT
    beginning_of_word_character = BEGIN_WORD - CHARACTER_SHIFT
    end_of_word_character = END_WORD - CHARACTER_SHIFT
    padding_character = PAD_CHARACTER - CHARACTER_SHIFT
    beginning_of_sentence_characters = _marked(beginning_of_sentence_character)
    end_of_sentence_characters = _marked(end_of_sentence_character)
    bos_token, eos_token = BOS, EOS

    def __init__(self, tokens_to_add: Mapping[str, int] | None = None) -> None:
        """`tokens_to_add` maps words that are represented by a single character of their own to its number."""
        self.tokens_to_add = dict(tokens_to_add or {})
        self.convert_word_to_char_ids = partial(self.convert_word_to_char_ids, tokens_to_add=self.tokens_to_add)

    @staticmethod  # AllenNLP 0.9 has it in the class
    def convert_word_to_char_ids(word: str, *, tokens_to_add: Mapping[str, int] = NO_WORDS) -> list[int]:
        """The `max_word_length` character ids of a word."""
        if word in tokens_to_add:
            return [number + CHARACTER_SHIFT for number in _marked(tokens_to_add[word])]
        warn_of_truncated([word], MAX_CHARACTERS, "AllenNLP")
        return encode_words([word], MAX_CHARACTERS)[0].tolist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ELMoCharacterMapper) and self.tokens_to_add == other.tokens_to_add


class ELMoTokenCharactersIndexer(FromParams):
    """Tokens -> character ids, with the methods of AllenNLP 2 and of 0.9, where `index_name` names the result.

    Tokens are AllenNLP's, other objects with an attribute `text`, or strings.
    """

    def __init__(
        self,
        namespace: str = "elmo_characters",
        tokens_to_add: Mapping[str, int] | None = None,
        token_min_padding_length: int = 0,
    ) -> None:
        self._namespace, self._token_min_padding_length = namespace, token_min_padding_length
        self._mapper = ELMoCharacterMapper(tokens_to_add)

    def count_vocab_items(self, token: Any, counter: dict[str, dict[str, int]]) -> None:
        """Do nothing: characters need no vocabulary."""

    def get_empty_token_list(self) -> dict[str, list[Any]]:
        """The indices of no tokens."""
        return {KEY: []}

    def tokens_to_indices(
        self, tokens: Sequence[Any], vocabulary: Any = None, index_name: str = KEY
    ) -> dict[str, list[list[int]]]:
        """Tokens -> {index_name: the character ids of each}."""
        texts = [getattr(token, "text", token) for token in tokens]
        return {index_name: [self._mapper.convert_word_to_char_ids(text) for text in texts]}

    def get_padding_lengths(self, indexed_tokens: Mapping[str, Sequence[Any]]) -> dict[str, int]:
        """The number of tokens under each name, at least `token_min_padding_length`."""
        return {name: max(len(ids), self._token_min_padding_length) for name, ids in indexed_tokens.items()}

    def as_padded_tensor_dict(
        self, tokens: Mapping[str, Sequence[Sequence[int]]], padding_lengths: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """Indices -> tensors (T, 50) int64, where T is given by `padding_lengths`; zeros for padding."""
        return {name: _padded(ids, padding_lengths[name]) for name, ids in tokens.items()}

    def as_padded_tensor(
        self,
        tokens: Mapping[str, Sequence[Sequence[int]]],
        desired_num_tokens: Mapping[str, int],
        padding_lengths: Mapping[str, int],
    ) -> dict[str, Tensor]:
        """`as_padded_tensor_dict` under its name in AllenNLP 0.9, with the lengths in `desired_num_tokens`."""
        return self.as_padded_tensor_dict(tokens, desired_num_tokens)


def _padded(ids: Sequence[Sequence[int]], length: int) -> Tensor:
    padded = torch.zeros(length, MAX_CHARACTERS, dtype=torch.int64)
    for row, word in zip(padded, ids, strict=False):  # as in AllenNLP, tokens beyond the length are dropped
        row[:] = torch.tensor(word)
    return padded
