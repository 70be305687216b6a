"""Substitutes and next words, against brute force in float64."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from oracle import log_softmax
from small_language_model import SENTENCES, SPECIALS, brute_force, small_language_model, vocab_of

import elmokit.lm.candidates as candidates
from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.lm.candidates import next_words, substitutes
from elmokit.text.vocab import Vocab


@pytest.fixture
def model() -> Pretrained:
    return small_language_model()


def expected_substitutes(
    model: Pretrained, words: Sequence[str], direction: str
) -> list[list[tuple[str, float]]]:
    """For each position all words but the special tokens, the most likely first."""
    forward, backward = brute_force(model, words)
    by_frequency = (
        forward[:-1] + backward[1:] + np.log(np.arange(len(vocab_of(model))) + 1)
    )  # p(word) = 1 / rank
    value = {"forward": forward[:-1], "backward": backward[1:], "both": log_softmax(by_frequency)}[
        direction
    ]
    named = [zip(vocab_of(model).words, row.tolist(), strict=True) for row in value]
    return [
        sorted((pair for pair in row if pair[0] not in SPECIALS), key=lambda pair: -pair[1])
        for row in named
    ]


@pytest.mark.parametrize("direction", ["both", "forward", "backward"])
@pytest.mark.parametrize("chunk_logits", [1, 20, 1000])
def test_substitutes_equal_brute_force_for_every_chunk_size(
    model: Pretrained, direction: str, chunk_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "CHUNK_LOGITS", chunk_logits)
    for words in SENTENCES:
        result = substitutes(words, model, top=100, direction=direction)
        expected = expected_substitutes(model, words, direction)
        assert [[candidate.word for candidate in row] for row in result] == [
            [word for word, _ in row] for row in expected
        ]
        for row, expected_row in zip(result, expected, strict=True):
            assert [candidate.log_probability for candidate in row] == pytest.approx(
                [v for _, v in expected_row], abs=1e-5
            )


def test_substitutes_at_positions_equal_those_of_the_whole_sentence(model: Pretrained) -> None:
    every = substitutes(SENTENCES[2], model, top=2)
    assert substitutes(SENTENCES[2], model, positions=[3, 0], top=2) == [every[3], every[0]]
    assert all(len(row) == 2 for row in every)


def test_substitutes_of_a_word_are_no_punctuation_marks(model: Pretrained) -> None:
    assert model.softmax is not None
    words = ["a", "<S>", "--", "</S>", ".", "<UNK>", "d", "'s"]
    marked = Pretrained(model.bilm, softmax=model.softmax, vocab=Vocab(words))
    of_word, of_mark = substitutes(["d", "."], marked, top=100)
    assert {candidate.word for candidate in of_word} == {"a", "d", "'s"}
    assert {candidate.word for candidate in of_mark} == {"a", "d", "'s", "--", "."}


@pytest.mark.slow
def test_substitutes_are_often_plausible() -> None:
    """Mean precision of the first ten; docs/log.md has the figures of the rankings that were
    tried.
    """
    model = load()
    precisions = []
    for item in json.loads(Path(__file__).with_name("substitutes.json").read_text()):
        words = item["sentence"].split()
        plausible = {word.lower() for word in item["plausible"]}
        (best,) = substitutes(words, model, positions=[words.index(item["word"])], top=11)
        first = [candidate.word.lower() for candidate in best if candidate.word != item["word"]][
            :10
        ]
        precisions.append(sum(word in plausible for word in first) / 10)
    assert np.mean(precisions) > 0.32  # 0.28 by the product of both directions


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("words", [["a", "zebra", "c"], []])
def test_next_words_equal_the_distribution_without_unknown_words(
    model: Pretrained, direction: str, words: list[str]
) -> None:
    vocab = vocab_of(model)
    result = next_words(words, model, top=len(vocab_of(model)), direction=direction)
    log_p = (
        brute_force(model, words)[1, 0]
        if direction == "backward"
        else brute_force(model, words)[0, -1]
    )
    known = [number for number in np.argsort(-log_p) if number != vocab.unk]
    assert [candidate.word for candidate in result] == [vocab.words[number] for number in known]
    assert [candidate.log_probability for candidate in result] == pytest.approx(
        log_p[known].tolist(), abs=1e-5
    )
    assert next_words(words, model, top=1, direction=direction).candidates == result[:1]


def test_what_is_no_sentence_or_position_is_refused(model: Pretrained) -> None:
    with pytest.raises(ValueError, match="no word -1"):
        substitutes(["a", "b"], model, positions=[-1])
    for ask in (substitutes, next_words):
        with pytest.raises(ValueError, match="'a b' is not a word"):
            ask(["a b", "b c"], model)
        assert ask(["a", "10 000", "d"], model)
    words = np.array(["a", "b"])  # as pandas reads lists of words
    assert substitutes(words, model) == substitutes(["a", "b"], model)  # type: ignore[arg-type]
