"""Sentences to vectors, some thousand words at a time: each from the same state, or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from elmokit.config import BiLMConfig
from elmokit.data.streams import Block, count_cut_words, deal_evenly, embedding_block
from elmokit.embed.engine import Engine
from elmokit.embed.layers import LayerChoice
from elmokit.embed.long import POSITIONS_AT_ONCE, Put, WholeArray, embed_in_windows, long_apart, row_of, with_row
from elmokit.embed.pooling import Pooling, RunningPool
from elmokit.nn.bilm import BiLMState
from elmokit.nn.kernels.directions import side_by_side
from elmokit.nn.kernels.text_order import sentence_vectors, word_vectors
from elmokit.storage.shard import nothing_overflows

WORDS_AT_ONCE, FEWEST_WORDS_AT_ONCE = 8192, 1024
LAYERS_AT_ONCE = 72 << 20  # bytes: of wide models fewer words, since two groups are held at a time
DEFAULT_ROWS = 128
GPU_TIMES = 4  # as many words and rows on a GPU, so that a step is more work than to start it; not measured


@dataclass(frozen=True)
class Wanted:
    """What is to be made of the layers: one or all of them, of every word or pooled."""

    choose: LayerChoice
    pooling: Pooling | None = None


class Made(NamedTuple):
    """The arrays of a group of sentences, how many of their words were too long, and the state after them."""

    vectors: list[np.ndarray]
    truncated_words: int
    state: BiLMState


Result = TypeVar("Result")
# Takes the memory of what will be made of a block, and says what makes it: of the layers in stream order, which are
# good until then, and of the state after. Memory is not taken there: that is another thread, and the allocator gives
# each of them memory of its own, so that what is let go in one would be missing in the other.
Then: TypeAlias = Callable[[Block], Callable[[Tensor, BiLMState], Result]]


# --- How much at a time --------------------------------------------------------------------------------------------


def _times(device: torch.device) -> int:
    return 1 if device.type == "cpu" else GPU_TIMES


def default_rows(device: torch.device) -> int:
    """How many sentences are computed side by side."""
    return DEFAULT_ROWS * _times(device)


def words_at_once(config: BiLMConfig, device: torch.device) -> int:
    """How many words a group has; a sentence with more positions is embedded in windows."""
    bytes_of_word = 4 * config.num_representations * config.output_dim
    return _times(device) * min(WORDS_AT_ONCE, max(FEWEST_WORDS_AT_ONCE, LAYERS_AT_ONCE // bytes_of_word))


# --- A group of sentences ------------------------------------------------------------------------------------------


def _begin_group(
    engine: Engine, group: Sequence[Sequence[str]], start: BiLMState | None, rows: int | None, then: Then[Result]
) -> Callable[[], Result]:
    """A group on its way; what comes back waits for what `then` makes of it. See `Engine.begin`.

    Every sentence goes from `start` (one row; None: zeros), so that rows can be filled as suits the machine.
    What the directions make of the boundary that they read first is the same for all sentences, and nobody asks for
    what they make of the last one: where the directions do not join, only words are computed.
    """
    boundaries, rows = engine.config.lstm.joins_directions, min(rows or default_rows(engine.device), len(group))
    block = embedding_block(group, deal_evenly(list(map(len, group)), rows), rows, reset=True, boundaries=boundaries)
    start = start if boundaries else engine.after_first_boundaries(start)
    return engine.begin(block, None, start, then(block))


def _bounds_of_words(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Where in the text each sentence's words begin and end."""
    ends = np.cumsum(block.lengths)
    return ends - block.lengths + block.margin, ends - block.margin


def _count_truncated(block: Block, config: BiLMConfig) -> int:
    """How many words of the text, not only distinct ones, are longer than the model reads."""
    if not count_cut_words(block.words, config):
        return 0
    long = [number for number, word in enumerate(block.words) if count_cut_words([word], config)]
    return int(np.isin(block.tokens[0].numpy(), long).sum())


def _sentences_to_make(engine: Engine, wanted: Wanted, block: Block) -> Callable[[Tensor, BiLMState], Made]:
    begins, ends = _bounds_of_words(block)
    count, dim = wanted.choose.count, engine.config.output_dim
    found = [np.empty((count, length, dim), np.float32) for length in (ends - begins).tolist()]

    def make(streams: Tensor, after: BiLMState) -> Made:
        sentence_vectors(wanted.choose(streams), block.text.slots, begins, found)
        vectors = [vectors[0] for vectors in found] if count == 1 else found
        pooled = list(map(wanted.pooling, vectors)) if wanted.pooling else vectors
        return Made(pooled, _count_truncated(block, engine.config), after)

    return make


def _words_to_make(
    engine: Engine, choose: LayerChoice, dtype: str, block: Block
) -> Callable[[Tensor, BiLMState], np.ndarray]:
    slots = block.text.slots
    if block.margin:
        begins, ends = _bounds_of_words(block)
        slots = slots[:, np.delete(np.arange(slots.shape[1]), np.concatenate([begins - 1, ends]))]
    found = np.empty((slots.shape[1], choose.count, engine.config.output_dim), dtype)

    def make(streams: Tensor, _: BiLMState) -> np.ndarray:
        with nothing_overflows(found.dtype):
            word_vectors(choose(streams), slots, found)
        return found[:, 0] if choose.count == 1 else found

    return make


# --- A long sentence -----------------------------------------------------------------------------------------------


def embed_long(
    engine: Engine, words: Sequence[str], choose: LayerChoice, state: BiLMState | None, put: Put
) -> BiLMState:
    """One sentence from `state` on (one row; None: zeros), window by window; returns the state after it."""

    def run(block: Block, state: BiLMState | None) -> tuple[np.ndarray, BiLMState]:
        vectors = np.empty((choose.count, int(block.lengths[0]), engine.config.output_dim), np.float32)

        def make(streams: Tensor, after: BiLMState) -> tuple[np.ndarray, BiLMState]:
            sentence_vectors(choose(streams), block.text.slots, np.array([0]), [vectors])
            return vectors[0] if choose.count == 1 else vectors, after

        return engine.begin(block, state, None, make)()

    # Where directions join after each layer, both must have read the whole sentence.
    joined = engine.config.lstm.joins_directions
    return embed_in_windows(words, run, state, put, len(words) + 2 if joined else POSITIONS_AT_ONCE)


def _make_long(engine: Engine, words: Sequence[str], wanted: Wanted, state: BiLMState | None) -> Made:
    dim = engine.config.output_dim
    found = RunningPool(wanted.pooling, dim) if wanted.pooling else WholeArray(len(words), dim)
    after = embed_long(engine, words, wanted.choose, state, found.put)
    return Made([found.vectors()], count_cut_words(words, engine.config), after)


# --- All of them ---------------------------------------------------------------------------------------------------


def in_even_groups(
    sentences: Sequence[Sequence[str]], most: int, cores: int = 1
) -> Iterator[tuple[list[Sequence[str]], bool]]:
    """As `long_apart`, of sentences that are all there: a small last group would cost nearly as much as a whole one.

    A group has at most about so many words. `cores` work on one each: there are so many groups that all have one, but
    none of too few words.
    """
    words = sum(map(len, sentences)) + 2 * len(sentences)
    groups = ceil(words / most)
    groups = min(ceil(groups / cores) * cores, max(groups, words // FEWEST_WORDS_AT_ONCE))
    return long_apart(sentences, most, ceil(words / max(groups, 1)))


def from_same_state(
    engine: Engine,
    groups: Iterable[tuple[list[Sequence[str]], bool]],
    wanted: Wanted,
    start: BiLMState | None,
    rows: int | None = None,
) -> Iterator[Made]:
    """Groups as those of `long_apart`, taken as they are needed, every sentence from `start` (one row; None: zeros)."""

    def begin(group_and_kind: tuple[list[Sequence[str]], bool]) -> Callable[[], Made]:
        group, is_long = group_and_kind
        if is_long:
            return partial(_make_long, engine, group[0], wanted, start)
        return _begin_group(engine, group, start, rows, partial(_sentences_to_make, engine, wanted))

    return side_by_side(begin, groups, engine.device, engine.begins_early)


def end_to_end(
    engine: Engine, groups: Iterable[list[Sequence[str]]], choose: LayerChoice, start: BiLMState | None, dtype: str
) -> Iterator[np.ndarray]:
    """As `from_same_state`, of groups without long sentences: (N, 2D) or (N, L+1, 2D) of the words of each."""
    then = partial(_words_to_make, engine, choose, dtype)

    def begin(group: list[Sequence[str]]) -> Callable[[], np.ndarray]:
        return _begin_group(engine, group, start, None, then)

    return side_by_side(begin, groups, engine.device, engine.begins_early)


def from_carried_state(
    engine: Engine, sentences: Iterable[Sequence[str]], wanted: Wanted, state: BiLMState
) -> Iterator[Made]:
    """Sentence i in row i mod the rows of `state`, which runs on (AllenNLP's and bilm-tf's way)."""
    num_rows, count = state.h.shape[2], 0
    for group, is_long in long_apart(sentences, words_at_once(engine.config, engine.device)):
        rows = np.arange(count, count + len(group)) % num_rows
        if is_long:
            made = _make_long(engine, group[0], wanted, row_of(state, rows[0]))
            made = made._replace(state=with_row(state, rows[0], made.state))
        else:
            block = embedding_block(group, rows, num_rows, reset=False)
            made = engine.begin(block, state, None, _sentences_to_make(engine, wanted, block))()
        state, count = made.state, count + len(group)
        yield made
