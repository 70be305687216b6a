"""Batches by length: which examples they hold, how many, and in which order."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest

from elmokit.tasks.batches import PADDED_WORDS, POOL, by_length, shuffled

# Batches of 64 are limited by their number if the examples are short, else by their words. Two examples fit into no
# batch with another one; one of them exceeds the limit alone. A few are empty.
LENGTHS = np.random.default_rng(0).integers(1, 600, 1000)
LENGTHS[[3, 500, 999]] = 0
LENGTHS[[10, 700]] = PADDED_WORDS // 2 + 1, PADDED_WORDS + 1

Batches = Callable[[np.ndarray, int], Iterator[np.ndarray]]


def randomly(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    return shuffled(lengths, batch_size, np.random.default_rng(0))


@pytest.mark.parametrize("batches_of", [by_length, randomly])
def test_batches_hold_every_example_with_words_once_within_both_limits(batches_of: Batches) -> None:
    batches = list(batches_of(LENGTHS, 64))
    assert sorted(np.concatenate(batches)) == np.flatnonzero(LENGTHS).tolist()
    assert all(len(batch) == 1 or len(batch) * LENGTHS[batch].max() <= PADDED_WORDS for batch in batches)
    assert max(map(len, batches)) == 64


@pytest.mark.parametrize("batches_of", [by_length, randomly])
def test_batches_of_no_words_are_none(batches_of: Batches) -> None:
    assert list(batches_of(np.zeros(3, np.int64), 2)) == list(batches_of(np.zeros(0, np.int64), 2)) == []


def test_by_length_fills_batches_in_the_order_of_the_lengths() -> None:
    batches = list(by_length(LENGTHS, 64))
    lengths = LENGTHS[np.concatenate(batches)]
    assert (np.diff(lengths) >= 0).all()
    for batch, following in pairwise(batches):  # no further example would have fitted
        assert len(batch) == 64 or (len(batch) + 1) * LENGTHS[following[0]] > PADDED_WORDS


def test_shuffled_batches_hold_examples_of_similar_lengths_in_random_order() -> None:
    lengths = np.random.default_rng(1).permutation(8 * POOL) + 1  # a pool of batches of 8
    batches = list(shuffled(lengths, 8, np.random.default_rng(0)))
    longest = [int(lengths[batch].max()) for batch in batches]
    assert sorted(longest) == [*range(8, 8 * POOL + 1, 8)] != longest
    assert all(np.ptp(lengths[batch]) == 7 for batch in batches)


def test_shuffled_puts_other_examples_together_for_another_seed() -> None:
    lengths = np.full(1000, 5)
    first, again, other = (list(shuffled(lengths, 8, np.random.default_rng(seed))) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not {tuple(sorted(batch)) for batch in first} & {tuple(sorted(batch)) for batch in other}
