"""Ids in ELMoForManyLangs' dictionaries, against a reference that encodes word by word."""

import dataclasses

import pytest
from efml_files import CHARACTERS, WORDS

from elmokit.config import CharCNNConfig, EfmlEncoderConfig
from elmokit.text.efml import boundary_ids, count_truncated_efml, encode_efml

BOTH = EfmlEncoderConfig(
    words=tuple(WORDS),
    word_dim=3,
    characters=tuple(CHARACTERS),
    char_cnn=CharCNNConfig(2, ((1, 2), (3, 2)), max_characters=9, num_characters=len(CHARACTERS)),
    max_characters=9,
)
ONLY_WORDS = dataclasses.replace(BOTH, characters=(), char_cnn=None)
ONLY_CHARACTERS = dataclasses.replace(BOTH, words=())
TOKENS = [
    "the",
    "cat",
    "",
    "今",
    "hé😀",
    "thecatthecat",
    "<bos>",
    "</S>",
    "<S>",
    "<eos>",
    "<pad>",
    "\u3000",
]


def reference_encode(word: str, config: EfmlEncoderConfig) -> list[int]:
    """The row of a word as in the original (frontend.py), which swaps begin-word and end-word."""
    word = {"<S>": "<bos>", "</S>": "<eos>"}.get(word, word)
    boundary = word in ("<bos>", "<eos>")
    cut = word if boundary else word[: (config.max_characters or 0) - 2]
    row = []
    if config.words:
        row.append(WORDS.index(cut if cut in WORDS else "<oov>"))
    if config.characters:
        spelled = [cut] if boundary else list(cut)
        ids = [
            CHARACTERS.index(c if c in CHARACTERS else "<oov>")
            for c in ["<eow>", *spelled, "<bow>"]
        ]
        row += ids + [CHARACTERS.index("<pad>")] * (9 - len(ids))
    return [number + 1 for number in row]


@pytest.mark.parametrize("config", [BOTH, ONLY_WORDS, ONLY_CHARACTERS])
def test_encode_efml_equals_a_reference_encoder(config: EfmlEncoderConfig) -> None:
    assert encode_efml(TOKENS, config).tolist() == [
        reference_encode(word, config) for word in TOKENS
    ]


def test_encode_efml_without_a_limit_truncates_nothing() -> None:
    words = ("<oov>", "<pad>", "a" * 100)
    config = EfmlEncoderConfig(words, 1, max_characters=None)
    assert encode_efml(["a" * 100, "a" * 98], config).tolist() == [[3], [1]]
    assert count_truncated_efml(["a" * 100], config) == 0
    assert count_truncated_efml(TOKENS, BOTH) == 1
    narrow = dataclasses.replace(ONLY_WORDS, max_characters=4)  # boundaries are not counted
    assert (
        count_truncated_efml(["<bos>", "<S>", "</S>", "<eos>", "ab", "abc", "<pad>"], narrow) == 2
    )


@pytest.mark.parametrize("config", [BOTH, ONLY_WORDS, ONLY_CHARACTERS])
def test_boundary_ids_equal_encoded_boundary_words(config: EfmlEncoderConfig) -> None:
    ids = encode_efml(["<S>", "</S>", "cat"], config)
    assert [boundary_ids(config, which, ids.shape[1]) for which in range(2)] == ids[:2].tolist()
    if config.characters:
        assert boundary_ids(config, 0, ids.shape[1] + 2)[-2:] == [CHARACTERS.index("<pad>") + 1] * 2
