"""Token streams, against a plain restatement of how bilm-tf lays out text."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.data.streams import (
    Block,
    TrainingStream,
    Window,
    blocks_of,
    deal_evenly,
    embedding_block,
    number_words,
    scoring_block,
)
from elmokit.nn.token_encoders import token_encoder as encoder_of
from elmokit.text.characters import encode_words
from elmokit.text.vocab import Vocab

VOCAB = Vocab(["<S>", "</S>", "<UNK>", *"abcdefgh"])
SENTENCES = st.lists(st.lists(st.sampled_from([*"abcdefghij", "<S>"]), min_size=1, max_size=9), min_size=1, max_size=8)


def endless(sentences: list[list[str]]) -> Iterator[list[str]]:
    while True:
        yield from sentences


def whole_streams(sentences: list[list[str]]) -> dict[str, list[str]]:
    """What one row reads and predicts in each direction (spec of bilm-tf's batcher)."""
    streams: dict[str, list[str]] = {"fwd": [], "fwd targets": [], "bwd": [], "bwd targets": []}
    for words in sentences:
        streams["fwd"] += ["<S>", *words]
        streams["fwd targets"] += [*words, "</S>"]
        streams["bwd"] += ["</S>", *reversed(words)]
        streams["bwd targets"] += [*reversed(words), "<S>"]
    return streams


def dealt(sentences: Iterator[list[str]], rows: int, steps: int, windows: int) -> list[list[list[str]]]:
    """The sentences of each row: window after window, row after row, one is taken where the row has too few words."""
    taken: list[list[list[str]]] = [[] for _ in range(rows)]
    for window in range(1, windows + 1):
        for row in taken:
            while sum(len(sentence) + 1 for sentence in row) < window * steps:
                row.append(next(sentences))
    return taken


def rows_of(window: Window, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Words (2, B, T) and targets (2, B, T) of a window, which is time-major."""
    words = np.array(window.words, dtype=object)[window.tokens.numpy()].reshape(2, -1, batch_size)
    return words.transpose(0, 2, 1), window.targets.numpy().reshape(2, -1, batch_size).transpose(0, 2, 1)


@settings(max_examples=60)
@given(SENTENCES, st.integers(1, 4), st.integers(1, 7), st.integers(1, 6))
def test_windows_cut_the_streams_of_their_rows(
    sentences: list[list[str]], batch_size: int, steps: int, windows: int
) -> None:
    stream = TrainingStream(endless(sentences), VOCAB, batch_size, steps)
    rows = [whole_streams(row) for row in dealt(endless(sentences), batch_size, steps, windows)]
    for number in range(windows):
        window = next(stream)
        words, targets = rows_of(window, batch_size)
        assert ((words[0] == "<S>") == window.begins.numpy().reshape(-1, batch_size).T).all()
        cut = slice(number * steps, (number + 1) * steps)
        for row, expected in enumerate(rows):
            for d, name in enumerate(["fwd", "bwd"]):
                assert words[d, row].tolist() == expected[name][cut]
                assert targets[d, row].tolist() == VOCAB.ids(expected[f"{name} targets"][cut]).tolist()


def test_a_stream_goes_on_from_what_its_rows_had_left() -> None:
    sentences = [["a", "b", "c"], ["d"], ["e", "f", "g", "h", "a"]]
    source, whole = endless(sentences), TrainingStream(endless(sentences), VOCAB, 2, 3)
    first = TrainingStream(source, VOCAB, 2, 3)
    for _ in range(2):
        next(first), next(whole)
    second = TrainingStream(source, VOCAB, 2, 3, rows=first.rows)
    for _ in range(4):
        resumed, expected = next(second), next(whole)
        assert resumed.words == expected.words
        assert torch.equal(resumed.tokens, expected.tokens) and torch.equal(resumed.targets, expected.targets)


def test_a_sentence_of_100_000_words_is_cut_into_windows() -> None:
    sentence = [f"w{number % 5000}" for number in range(100_000)]
    stream = TrainingStream(endless([sentence]), VOCAB, 2, 5000)
    words = np.concatenate([rows_of(next(stream), 2)[0] for _ in range(21)], axis=2)
    assert words[0, 1, :100_002].tolist() == ["<S>", *sentence, "<S>"]
    assert words[1, 0, :100_002].tolist() == ["</S>", *reversed(sentence), "</S>"]


def test_a_row_tells_only_what_it_has_still_to_read() -> None:
    """So a snapshot of it is small, and the same whether the row was filled now or windows ago."""
    stream = TrainingStream(endless([[*"abcdefgh"], ["a"]]), VOCAB, 1, 3)
    next(stream)
    fwd, fwd_targets, bwd, bwd_targets = stream.rows[0]
    assert (fwd, fwd_targets) == ([*"cdefgh"], [*"defgh", "</S>"])
    assert (bwd, bwd_targets) == ([*"fedcba"], [*"edcba", "<S>"])
    assert TrainingStream(endless([["b"]]), VOCAB, 1, 3, rows=stream.rows).rows == stream.rows


def test_a_literal_boundary_in_the_text_is_the_boundary() -> None:
    window = next(TrainingStream(endless([["a", "</S>", "b"]]), VOCAB, 1, 4))
    words, targets = rows_of(window, 1)
    assert words[0, 0].tolist() == ["<S>", "a", "</S>", "b"]
    assert targets[0, 0].tolist() == [VOCAB.ids(["a"])[0], VOCAB.eos, VOCAB.ids(["b"])[0], VOCAB.eos]
    ids = encoder_of(BiLMConfig.preset("tiny")).ids(window.words, VOCAB)
    assert ids[window.words.index("</S>")].tolist()[:4] == [259, 258, 260, 261]  # word begins, </S>, word ends, padding


@pytest.mark.parametrize("missing", ["<S>", "</S>", "<UNK>"])
def test_a_vocabulary_without_the_special_words_is_refused(missing: str) -> None:
    """bilm-tf went on: its last word became the boundary, or sentences were silently shortened."""
    words = [word for word in ("<S>", "</S>", "<UNK>", "the", "cat") if word != missing]
    with pytest.raises(ValueError, match=f"lacks {missing}"):
        Vocab(words)


def test_unknown_words_keep_their_characters_as_input_and_are_unk_as_target() -> None:
    window = next(TrainingStream(endless([["a", "zebra"]]), VOCAB, 1, 3))
    words, targets = rows_of(window, 1)
    assert words[0, 0].tolist() == ["<S>", "a", "zebra"]
    assert targets[0, 0].tolist() == [VOCAB.ids(["a"])[0], VOCAB.unk, VOCAB.eos]


def test_word_ids_are_characters_or_rows_of_the_word_table() -> None:
    words = ["a", "zebra", "<S>"]
    by_characters = encoder_of(BiLMConfig.preset("tiny")).ids(words)
    np.testing.assert_array_equal(by_characters, encode_words(words, widest_filter=3))
    by_words = BiLMConfig(LSTMConfig(1, 4, 2), None, num_words=len(VOCAB))
    assert encoder_of(by_words).ids(words, VOCAB).tolist() == [4, 3, 1]
    with pytest.raises(ValueError, match="has no vocabulary"):
        encoder_of(by_words).ids(words)


def test_words_are_numbered_as_they_come() -> None:
    words, which = number_words(["b", "a", "b", "c"])
    assert words == ["b", "a", "c"] and which.tolist() == [0, 1, 0, 2]


def both_orders(block: Block, number: int) -> tuple[list[str], list[str]]:
    """What each direction reads in its row for one sentence, in text order."""
    begin = int(block.lengths[:number].sum())
    window = slice(begin, begin + int(block.lengths[number]))
    words = np.array(block.words, dtype=object)
    fwd, bwd = (words[block.tokens[d][block.text.slots[d, window]].numpy()].tolist() for d in range(2))
    return fwd, bwd


TEXTS = st.lists(st.lists(st.sampled_from("abcd"), max_size=4), min_size=1, max_size=7)


@settings(max_examples=40)
@given(TEXTS, st.integers(1, 3), st.booleans())
def test_blocks_hold_whole_sentences_with_their_boundaries(
    sentences: list[list[str]], num_rows: int, reset: bool
) -> None:
    rows = np.arange(len(sentences)) % num_rows
    embedding, scoring = (make(sentences, rows, num_rows, reset) for make in (embedding_block, scoring_block))
    bare = embedding_block(sentences, rows, num_rows, reset, boundaries=False)
    for number, words in enumerate(sentences):
        assert both_orders(embedding, number) == (["<S>", *words, "</S>"],) * 2
        assert both_orders(bare, number) == (words, words)
        assert both_orders(scoring, number) == (["<S>", *words], [*words, "</S>"])
    assert embedding.lengths.tolist() == [len(words) + 2 for words in sentences]
    assert (embedding.margin, bare.margin) == (1, 0)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 6))
def test_sentences_are_dealt_evenly(lengths: list[int], num_rows: int) -> None:
    rows = deal_evenly(lengths, num_rows)
    fill = np.bincount(rows, weights=lengths, minlength=num_rows)
    assert len(fill) == num_rows
    assert fill.max() - fill.min() <= max(lengths, default=0)


@settings(max_examples=40)
@given(TEXTS, st.integers(1, 20))
def test_groups_never_cut_or_lose_a_sentence(sentences: list[list[str]], words: int) -> None:
    groups = list(blocks_of(iter(sentences), words))
    assert [sentence for group in groups for sentence in group] == sentences
    for group in groups[:-1]:
        assert sum(len(s) + 2 for s in group) >= words > sum(len(s) + 2 for s in group[:-1])
