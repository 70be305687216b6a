"""Ids in ELMoForManyLangs' dictionaries, against a reference that encodes word by word."""

import dataclasses

import pytest
import torch
from efml_files import CHARACTERS, WORDS

from elmokit.config import CharCNNConfig, EfmlEncoderConfig
from elmokit.nn.efml import EfmlEncoder

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
def test_ids_equal_those_of_a_reference_encoder(config: EfmlEncoderConfig) -> None:
    assert EfmlEncoder(config, 4).ids(TOKENS).tolist() == [
        reference_encode(word, config) for word in TOKENS
    ]


def test_words_without_a_limit_are_not_truncated() -> None:
    words = ("<oov>", "<pad>", "a" * 100)
    unlimited = EfmlEncoder(EfmlEncoderConfig(words, 1, max_characters=None), 4)
    assert unlimited.ids(["a" * 100, "a" * 98]).tolist() == [[3], [1]]
    assert unlimited.count_truncated(["a" * 100]) == 0
    assert EfmlEncoder(BOTH, 4).count_truncated(TOKENS) == 1
    narrow = EfmlEncoder(dataclasses.replace(ONLY_WORDS, max_characters=4), 4)
    # boundaries are not counted
    assert narrow.count_truncated(["<bos>", "<S>", "</S>", "<eos>", "ab", "abc", "<pad>"]) == 2


@pytest.mark.parametrize("config", [BOTH, ONLY_WORDS, ONLY_CHARACTERS])
def test_boundary_ids_equal_encoded_boundary_words(config: EfmlEncoderConfig) -> None:
    encoder = EfmlEncoder(config, 4)
    ids = encoder.ids(["<S>", "</S>", "cat"])
    assert torch.equal(torch.stack(encoder.boundary_ids(ids)), ids[:2])
    if config.characters:
        wider = torch.zeros(1, ids.shape[1] + 2, dtype=torch.int64)
        padding = CHARACTERS.index("<pad>") + 1
        assert encoder.boundary_ids(wider)[0][-2:].tolist() == [padding] * 2
