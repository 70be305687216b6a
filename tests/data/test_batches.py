"""Packed batches of sentences, and how sentences are divided."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.data.batches import PackedBatch, assign_rows, chunks


def inputs_of(batch: PackedBatch, number: int) -> tuple[list[str], list[str]]:
    """The inputs of each direction for one sentence, in the order of the text."""
    begin = int(batch.lengths[:number].sum())
    window = slice(begin, begin + int(batch.lengths[number]))
    words = np.array(batch.words, dtype=object)
    fwd, bwd = (
        words[batch.tokens[d][batch.text.slots[d, window]].numpy()].tolist() for d in range(2)
    )
    return fwd, bwd


TEXTS = st.lists(st.lists(st.sampled_from("abcd"), max_size=4), min_size=1, max_size=7)


@settings(max_examples=40)
@given(TEXTS, st.integers(1, 3), st.booleans())
def test_packed_batches_contain_whole_sentences_with_boundaries(
    sentences: list[list[str]], num_rows: int, is_carried: bool
) -> None:
    first = 2 if is_carried else None
    embedding = PackedBatch.to_embed(sentences, num_rows, first)
    scoring = PackedBatch.to_score(sentences, num_rows, first)
    bare = PackedBatch.to_embed(sentences, num_rows, first, boundaries=False)
    for number, words in enumerate(sentences):
        assert inputs_of(embedding, number) == (["<S>", *words, "</S>"],) * 2
        assert inputs_of(bare, number) == (words, words)
        assert inputs_of(scoring, number) == (["<S>", *words], [*words, "</S>"])
    assert embedding.lengths.tolist() == [len(words) + 2 for words in sentences]
    assert (embedding.num_boundary_tokens, bare.num_boundary_tokens) == (1, 0)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 6))
def test_assign_rows_balances_row_lengths(lengths: list[int], num_rows: int) -> None:
    rows = assign_rows(lengths, num_rows)
    fill = np.bincount(rows, weights=lengths, minlength=num_rows)
    assert len(fill) == num_rows
    assert fill.max() - fill.min() <= max(lengths, default=0)


@settings(max_examples=40)
@given(TEXTS, st.integers(1, 20))
def test_chunks_keep_every_sentence_whole(sentences: list[list[str]], words: int) -> None:
    groups = list(chunks(iter(sentences), words))
    assert [sentence for group in groups for sentence in group] == sentences
    for group in groups[:-1]:
        assert sum(len(s) + 2 for s in group) >= words > sum(len(s) + 2 for s in group[:-1])
