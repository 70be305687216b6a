"""Sentences to vectors, some thousand words at a time: each from the same state, or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

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
from elmokit.nn.kernels.text_order import sentence_vectors

WORDS_AT_ONCE, FEWEST_WORDS_AT_ONCE = 8192, 1024
DEFAULT_ROWS = 128


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


# --- A group of sentences ------------------------------------------------------------------------------------------


def _by_sentence(streams: Tensor, block: Block) -> list[np.ndarray]:
    """Chosen layers in stream order -> each sentence's own array, without the boundaries."""
    ends = np.cumsum(block.lengths)
    begins = ends - block.lengths + block.margin
    found = sentence_vectors(streams, block.text.slots, begins, ends - block.margin)
    return [vectors[0] if len(vectors) == 1 else vectors for vectors in found]


def _count_truncated(block: Block, config: BiLMConfig) -> int:
    """How many words of the text, not only distinct ones, are longer than the model reads."""
    if not count_cut_words(block.words, config):
        return 0
    long = [number for number, word in enumerate(block.words) if count_cut_words([word], config)]
    return int(np.isin(block.tokens[0].numpy(), long).sum())


def _begin(
    engine: Engine, block: Block, wanted: Wanted, state: BiLMState | None, start: BiLMState | None
) -> Callable[[], Made]:
    """A block on its way; what comes back finishes it. `state` and `start` as in `BiLM.run_packed`."""
    under_way = ExitStack()
    result = under_way.enter_context(engine.begun(block, state, start))

    def finish() -> Made:
        with under_way:
            streams, after = result()
            vectors = _by_sentence(wanted.choose(streams), block)
        pooled = list(map(wanted.pooling, vectors)) if wanted.pooling else vectors
        return Made(pooled, _count_truncated(block, engine.config), after)

    return finish


# --- A long sentence -----------------------------------------------------------------------------------------------


def embed_long(
    engine: Engine, words: Sequence[str], choose: LayerChoice, state: BiLMState | None, put: Put
) -> BiLMState:
    """One sentence from `state` on (one row; None: zeros), window by window; returns the state after it."""

    def run(block: Block, state: BiLMState | None) -> tuple[np.ndarray, BiLMState]:
        with engine.run(block, state, None) as (streams, after):
            (vectors,) = sentence_vectors(choose(streams), block.text.slots, np.array([0]), block.lengths)
        return vectors[0] if len(vectors) == 1 else vectors, after

    # Where directions join after each layer, both must have read the whole sentence.
    joined = engine.config.lstm.joins_directions
    return embed_in_windows(words, run, state, put, len(words) + 2 if joined else POSITIONS_AT_ONCE)


def _make_long(engine: Engine, words: Sequence[str], wanted: Wanted, state: BiLMState | None) -> Made:
    dim = engine.config.output_dim
    found = RunningPool(wanted.pooling, dim) if wanted.pooling else WholeArray(len(words), dim)
    after = embed_long(engine, words, wanted.choose, state, found.put)
    return Made([found.vectors()], count_cut_words(words, engine.config), after)


# --- All of them ---------------------------------------------------------------------------------------------------


def words_at_once(sentences: Sequence[Sequence[str]]) -> int:
    """Of a group: fewer where more cores than two would not all have one."""
    threads = torch.get_num_threads()
    each = sum(map(len, sentences)) // threads if threads > 2 else WORDS_AT_ONCE
    return min(WORDS_AT_ONCE, max(FEWEST_WORDS_AT_ONCE, each))


def from_same_state(
    engine: Engine,
    sentences: Iterable[Sequence[str]],
    wanted: Wanted,
    start: BiLMState | None,
    rows: int | None = None,
    words: int | None = None,
) -> Iterator[Made]:
    """Every sentence from `start` (one row; None: zeros), so that rows can be filled as suits the machine.

    `words` (WORDS_AT_ONCE when not given) are computed together, and sentences are taken as they are needed.

    What the directions make of the boundary that they read first is the same for all sentences, and nobody asks for
    what they make of the last one: where the directions do not join, only words are computed.
    """
    boundaries = engine.config.lstm.joins_directions

    def begin(group_and_kind: tuple[list[Sequence[str]], bool]) -> Callable[[], Made]:
        group, is_long = group_and_kind
        if is_long:
            return partial(_make_long, engine, group[0], wanted, start)
        lengths, num_rows = list(map(len, group)), min(rows or DEFAULT_ROWS, len(group))
        dealt = deal_evenly(lengths, num_rows)
        block = embedding_block(group, dealt, num_rows, reset=True, boundaries=boundaries)
        return _begin(engine, block, wanted, None, start if boundaries else engine.after_first_boundaries(start))

    return side_by_side(begin, long_apart(sentences, words or WORDS_AT_ONCE), engine.device)


def from_carried_state(
    engine: Engine, sentences: Iterable[Sequence[str]], wanted: Wanted, state: BiLMState
) -> Iterator[Made]:
    """Sentence i in row i mod the rows of `state`, which runs on (AllenNLP's and bilm-tf's way)."""
    num_rows, count = state.h.shape[2], 0
    for group, is_long in long_apart(sentences, WORDS_AT_ONCE):
        rows = np.arange(count, count + len(group)) % num_rows
        if is_long:
            made = _make_long(engine, group[0], wanted, row_of(state, rows[0]))
            made = made._replace(state=with_row(state, rows[0], made.state))
        else:
            made = _begin(engine, embedding_block(group, rows, num_rows, reset=False), wanted, state, None)()
        state, count = made.state, count + len(group)
        yield made
