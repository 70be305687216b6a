"""Packed streams, against a plain layout of sentences in rows."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.ops.packing import PackedText

Text = tuple[list[int], list[int], int]


@st.composite
def texts(draw: st.DrawFn) -> Text:
    """The lengths of sentences, the row of each, and the number of rows."""
    num_rows = draw(st.integers(1, 5))
    sentences = draw(
        st.lists(st.tuples(st.integers(0, 6), st.integers(0, num_rows - 1)), max_size=12)
    )
    return [length for length, _ in sentences], [row for _, row in sentences], num_rows


def laid_out(
    lengths: list[int], rows: list[int], num_rows: int
) -> tuple[list[list[int]], list[list[int]]]:
    """The tokens (numbered in order) that each row reads forward and backward: sentence after
    sentence.
    """
    forward = [[] for _ in range(num_rows)]
    backward = [[] for _ in range(num_rows)]
    begin = 0
    for length, row in zip(lengths, rows, strict=True):
        sentence = list(range(begin, begin + length))
        forward[row] += sentence
        backward[row] += sentence[::-1]
        begin += length
    return forward, backward


def read_rows(text: PackedText, stream: torch.Tensor) -> list[list[int]]:
    """What a packed stream (N,) holds in each row of the caller, step by step."""
    rows: list[list[int]] = [[] for _ in text.packing.row_order]
    for begin, size in zip(text.packing.starts(), text.packing.batch_sizes, strict=False):
        for rank in range(size):
            rows[int(text.packing.row_order[rank])].append(int(stream[begin + rank]))
    return rows


@settings(max_examples=150)
@given(texts())
def test_rows_hold_their_sentences_in_order_and_each_one_mirrored_backward(case: Text) -> None:
    lengths, rows, num_rows = case
    text = PackedText.of_sentences(lengths, rows, num_rows, reset=False)
    streams = text.to_streams(torch.arange(sum(lengths)).expand(2, -1))
    forward, backward = laid_out(lengths, rows, num_rows)
    assert read_rows(text, streams[0]) == forward
    assert read_rows(text, streams[1]) == backward
    assert list(text.packing.batch_sizes) == sorted(text.packing.batch_sizes, reverse=True)


@settings(max_examples=100)
@given(texts())
def test_resets_mark_the_first_slot_of_every_sentence_in_both_directions(case: Text) -> None:
    lengths, rows, num_rows = case
    text = PackedText.of_sentences(lengths, rows, num_rows, reset=True)
    ends = np.cumsum(lengths, dtype=int)
    firsts = [int(end - length) for end, length in zip(ends, lengths, strict=True) if length]
    lasts = [int(end - 1) for end, length in zip(ends, lengths, strict=True) if length]
    marked = text.packing.resets.nonzero().squeeze(1).tolist()
    assert marked == sorted(text.slots[0, firsts].tolist()) == sorted(text.slots[1, lasts].tolist())


@settings(max_examples=50)
@given(texts())
def test_streams_come_back_in_text_order_side_by_side(case: Text) -> None:
    text = PackedText.of_sentences(*case, reset=False)
    tokens = torch.arange(sum(case[0]))
    streams = text.to_streams(torch.stack([tokens, tokens + 1000])).unsqueeze(2)
    assert torch.equal(text.unpack(streams), torch.stack([tokens, tokens + 1000], dim=1))


@settings(max_examples=100)
@given(texts(), st.integers(1, 9))
def test_windows_cover_every_step_once(case: Text, slots: int) -> None:
    packing = PackedText.of_sentences(*case, reset=True).packing
    pieces = list(packing.windows(slots))
    assert sum((piece.batch_sizes for _, piece in pieces), ()) == packing.batch_sizes
    covered = [packing.resets[window] for window, _ in pieces]
    assert all(
        torch.equal(part, piece.resets) for part, (_, piece) in zip(covered, pieces, strict=True)
    )
    assert sum(len(part) for part in covered) == len(packing.resets)
    assert all(sum(piece.batch_sizes[:-1]) < slots for _, piece in pieces)


@settings(max_examples=100)
@given(texts(), st.booleans())
def test_segments_are_the_sentences_of_a_row_or_all_of_it(case: Text, reset: bool) -> None:
    lengths, rows, num_rows = case
    text = PackedText.of_sentences(lengths, rows, num_rows, reset)
    forward = text.to_streams(torch.arange(sum(lengths)).expand(2, -1))[0].numpy()
    segments = text.packing.segments()
    found = [
        forward[segments.slots[f : f + n]].tolist()
        for f, n in zip(segments.firsts, segments.lengths, strict=True)
    ]
    laid, _ = laid_out(lengths, rows, num_rows)
    begins = [
        int(end - length)
        for end, length in zip(np.cumsum(lengths, dtype=int), lengths, strict=True)
    ]
    by_sentence = [
        list(range(begin, begin + length))
        for begin, length in zip(begins, lengths, strict=True)
        if length
    ]
    assert sorted(found) == sorted(by_sentence if reset else filter(None, laid))
    assert segments.positions().tolist() == [
        position for tokens in found for position in range(len(tokens))
    ]


@settings(max_examples=100)
@given(texts())
def test_mirrored_slots_have_the_same_token_in_the_other_direction(case: Text) -> None:
    text = PackedText.of_sentences(*case, reset=True)
    fwd, bwd = text.to_streams(torch.arange(text.packing.num_slots).expand(2, -1))
    mirrored = torch.from_numpy(text.packing.segments().mirrored())
    assert torch.equal(bwd[mirrored], fwd)
    assert torch.equal(mirrored[mirrored], torch.arange(len(mirrored)))
