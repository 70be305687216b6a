"""Ids by ELMoForManyLangs' dictionaries, against a computation word by word and character by character."""

import dataclasses

import numpy as np
import pytest
from efml_files import CHARACTERS, WORDS

from elmokit.config import BiLMConfig, CharCNNConfig, EfmlEncoderConfig, LSTMConfig
from elmokit.text.lexicon import count_cut, encode_with_lexicon, padding_ids

BOTH = EfmlEncoderConfig(
    words=tuple(WORDS),
    word_dim=3,
    characters=tuple(CHARACTERS),
    char_cnn=CharCNNConfig(2, ((1, 2), (3, 2)), max_characters=9, num_characters=len(CHARACTERS)),
    max_characters=9,
)
ONLY_WORDS = dataclasses.replace(BOTH, characters=(), char_cnn=None)
ONLY_CHARACTERS = dataclasses.replace(BOTH, words=())
TOKENS = ["the", "cat", "", "今", "hé😀\ud800", "thecatthecat", "<bos>", "</S>", "<S>", "<eos>", "<pad>", "\u3000"]


def one_by_one(word: str, config: EfmlEncoderConfig) -> list[int]:
    """A row as the old code made it (frontend.py), with its marks exchanged, less one window of padding."""
    word = {"<S>": "<bos>", "</S>": "<eos>"}.get(word, word)
    boundary = word in ("<bos>", "<eos>")
    cut = word if boundary else word[: (config.max_characters or 0) - 2]
    row = []
    if config.words:
        row.append(WORDS.index(cut if cut in WORDS else "<oov>"))
    if config.characters:
        spelled = [cut] if boundary else list(cut)
        ids = [CHARACTERS.index(c if c in CHARACTERS else "<oov>") for c in ["<eow>", *spelled, "<bow>"]]
        row += ids + [CHARACTERS.index("<pad>")] * (9 - len(ids))
    return [number + 1 for number in row]


@pytest.mark.parametrize("config", [BOTH, ONLY_WORDS, ONLY_CHARACTERS])
def test_ids_are_those_of_a_computation_one_by_one(config: EfmlEncoderConfig) -> None:
    assert encode_with_lexicon(TOKENS, config).tolist() == [one_by_one(word, config) for word in TOKENS]


def test_short_words_make_short_rows() -> None:
    ids = encode_with_lexicon(["a", ""], BOTH)
    assert ids.shape == (2, 1 + 1 + 2 + 3)  # the word, its character, two marks, a window of padding
    assert encode_with_lexicon([], BOTH).shape[0] == 0


def test_words_without_a_limit_are_never_cut() -> None:
    words = ("<oov>", "<pad>", "a" * 100)
    config = EfmlEncoderConfig(words, 1, max_characters=None)
    assert encode_with_lexicon(["a" * 100, "a" * 98], config).tolist() == [[3], [1]]
    assert count_cut(["a" * 100], config) == 0
    assert count_cut(TOKENS, BOTH) == 1


def test_padding_is_the_row_of_no_word() -> None:
    word, character = WORDS.index("<pad>") + 1, CHARACTERS.index("<pad>") + 1
    assert padding_ids(4, BOTH).tolist() == [word, character, character, character]
    assert padding_ids(1, ONLY_WORDS).tolist() == [word]
    assert np.array_equal(padding_ids(3, ONLY_CHARACTERS), [character] * 3)


@pytest.mark.parametrize("config", [BOTH, ONLY_WORDS, ONLY_CHARACTERS])
def test_boundaries_are_those_of_the_literal_words(config: EfmlEncoderConfig) -> None:
    ids = encode_with_lexicon(["<S>", "</S>", "cat"], config)
    assert [config.boundary_ids(which, ids.shape[1]) for which in range(2)] == ids[:2].tolist()


@pytest.mark.parametrize("encoder", [BOTH, ONLY_WORDS, ONLY_CHARACTERS])
def test_configurations_survive_json(encoder: EfmlEncoderConfig) -> None:
    import json

    config = BiLMConfig(LSTMConfig(interleaved=True), None, efml=encoder)
    assert BiLMConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_other_configurations_are_written_as_before() -> None:
    values = BiLMConfig.preset("tiny").to_dict()
    assert "words_and_characters" not in values and "joins_directions" not in values["lstm"]


def test_what_does_not_fit_is_refused() -> None:
    for change in (
        {"characters": BOTH.characters[:-1]},
        {"max_characters": 8},
        {"words": (*WORDS, 3)},
        {"word_dim": 0},
    ):
        with pytest.raises(ValueError, match="efml"):
            dataclasses.replace(BOTH, **change)
    with pytest.raises(ValueError, match="exactly one"):
        BiLMConfig(efml=BOTH)
