"""From sentences to vectors in four stages: plan -> encode -> run -> finalize. Each hands a record to the next.

Batches are independent of each other but for carried state, so several are in progress at a time
(`threads.overlapped`).
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import cast

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.data.streams import PackedBatch, assign_rows, embedding_batch, sentence_batches, window_batch
from elmokit.embed.outputs import OutputSpec
from elmokit.embed.word_cache import WordCache
from elmokit.nn.bilm import BiLMState
from elmokit.nn.inference import PrepackedBiLM, prepack
from elmokit.ops.functional import unpack_sentences, unpack_words
from elmokit.ops.threads import num_threads, overlapped
from elmokit.ops.transfer import download, upload
from elmokit.settings import Count, CountOrZero, StatePolicy, check
from elmokit.storage.shard import nothing_overflows
from elmokit.text.characters import BOS, EOS

Sentences = Sequence[Sequence[str]]

GPU_FACTOR = 4  # times as many words and rows on a GPU, so that a step outweighs its launch; not measured
LONG_FACTOR = 2  # times as many words in a batch of long sentences


@dataclass(frozen=True)
class Sizes:
    """How much is computed at a time. Vectors depend on it by rounding at most."""

    batch_words: Count = 8192
    min_batch_words: Count = 1024
    max_layer_bytes: Count = 72 << 20  # of all layers of a batch, which therefore has fewer words for wide models
    rows: Count = 128  # rows of a batch, computed side by side
    cache_bytes: CountOrZero = 32 << 20  # of word vectors
    batches_ahead: Count = 2  # batches in progress at a time

    def __post_init__(self) -> None:
        check(self)

    @staticmethod
    def of(config: BiLMConfig, device: torch.device, sizes: Sizes | None = None) -> Sizes:
        """The sizes for a model on a device; given ones hold for any device."""
        factor = GPU_FACTOR if sizes is None and device.type != "cpu" else 1
        sizes = sizes or Sizes()
        bytes_of_word = 4 * config.num_representations * config.output_dim
        words = min(sizes.batch_words, max(sizes.min_batch_words, sizes.max_layer_bytes // bytes_of_word))
        return replace(sizes, batch_words=factor * words, rows=factor * sizes.rows)

    def are_long(self, sentences: Sentences) -> bool:
        """Whether sentences are so long that a batch would have fewer of them than rows."""
        return sum(map(len, sentences)) * self.rows > len(sentences) * self.batch_words

    def split_evenly(self, sentences: Sentences) -> Iterable[list[Sequence[str]]]:
        """Consecutive sentences in batches of about equal size: a small last one would cost nearly as much as a full.

        Batches of long sentences have more words, so that they have more rows.
        """
        words = self.batch_words * (LONG_FACTOR if self.are_long(sentences) else 1)
        total = sum(map(len, sentences)) + 2 * len(sentences)
        return sentence_batches(sentences, ceil(total / max(1, ceil(total / words))))


def running_order(sentences: Sentences, sizes: Sizes) -> list[int]:
    """The indices of sentences in the order in which to run them, where any order will do.

    Short sentences fill the rows evenly in the order of the text. Where a batch has fewer sentences than rows, each is
    a row: they are sorted by length, so that the rows of a batch end together.
    """
    numbers = list(range(len(sentences)))
    if sizes.are_long(sentences):
        numbers.sort(key=lambda number: len(sentences[number]))
    return numbers


# --- The records of the stages ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Sentences that are run together, and the arrays that will hold their vectors.

    The arrays are allocated by the thread that will release them, since allocators have a pool for each thread.
    """

    sentences: Sentences
    outs: list[np.ndarray]


@dataclass(frozen=True)
class Encoded:
    """A packed batch, and the vectors of its distinct words (U, D)."""

    batch: PackedBatch
    words: Tensor


@dataclass(frozen=True)
class Layers:
    """The layers of a batch (L+1, 2, N, D) in stream order, and the state after it."""

    batch: PackedBatch
    streams: Tensor
    state: BiLMState


@dataclass(frozen=True)
class BatchResult:
    """The arrays of a batch as its `OutputSpec` says, how many of its words were truncated, and the state after it.

    With a pooling or a `storage_dtype` there is one array for the whole batch.
    """

    vectors: list[np.ndarray]
    truncated_words: int
    state: BiLMState


# --- The stages of one model -----------------------------------------------------------------------------------------


class Pipeline:
    """A model's biLM, prepacked for a device and a dtype, and the stages that use it."""

    def __init__(self, model: Pretrained, device: torch.device, dtype: torch.dtype, sizes: Sizes | None = None) -> None:
        self.model, self.config, self.device = model, model.config, device
        self.sizes = Sizes.of(model.config, device, sizes)
        bilm = model.bilm
        try:
            self.bilm = prepack(bilm if bilm.device == device else copy.deepcopy(bilm).to(device), dtype)
        except ValueError as error:
            if dtype != torch.int8 or isinstance(bilm, PrepackedBiLM):
                raise
            raise ValueError(
                "int8 needs a CPU and the compiled kernels (see elmokit info): use bfloat16 or float32"
            ) from error
        cache = partial(WordCache, self.config.sequence_encoder.projection_dim, self.sizes.cache_bytes)
        self.cache = cache() if self.bilm.token_encoder.is_cacheable else None
        self._after_boundaries: dict[bool, tuple[BiLMState | None, BiLMState]] = {}

    def plan(self, sentences: Sentences, spec: OutputSpec) -> Plan:
        """Allocate the arrays for the vectors of a batch."""
        count, dim, lengths = spec.layers.count, self.config.output_dim, list(map(len, sentences))
        if spec.pooling is not None:
            outs = []
        elif spec.storage_dtype is not None:
            outs = [np.empty((sum(lengths), count, dim), spec.storage_dtype)]
        else:
            outs = [np.empty((count, length, dim), np.float32) for length in lengths]
        return Plan(sentences, outs)

    def encode(self, batch: PackedBatch) -> Encoded:
        """The vectors of the batch's distinct words: those that are not in the cache go through the token encoder."""
        if self.cache is None:
            return Encoded(batch, self.bilm.word_vectors(batch.words, self.model.vocab))
        vectors, missing = self.cache.look_up(batch.words)
        if missing:
            new = [batch.words[number] for number in missing]
            encoded = self.bilm.word_vectors(new, self.model.vocab)
            vectors[missing] = encoded
            self.cache.add(new, encoded)
        return Encoded(batch, vectors)

    def run(self, encoded: Encoded, state: BiLMState | None = None, start: BiLMState | None = None) -> Layers:
        """`state` and `start` as in `BiLM.run`. ValueError where products in float16 overflow."""
        batch = encoded.batch
        (tokens,) = upload([batch.tokens], self.device)
        streams, after = self.bilm.run(encoded.words, tokens, batch.text.packing, state, start)
        if self.bilm.product_dtype == torch.float16 and not streams.isfinite().all():
            raise ValueError("numbers of this model are too large for products in float16: use bfloat16 or float32")
        return Layers(batch, streams, after)

    def finalize(self, layers: Layers, plan: Plan, spec: OutputSpec) -> BatchResult:
        """Fill the plan's arrays from the layers, or pool them. ValueError for numbers too large for their dtype."""
        batch, streams = layers.batch, spec.layers(layers.streams)
        ends = np.cumsum(batch.lengths)
        begins, slots = ends - batch.lengths + batch.margin, batch.text.slots
        if spec.pooling is None and spec.storage_dtype is None:
            unpack_sentences(streams, slots, begins, plan.outs)
            vectors = plan.outs if spec.layers.keeps_axis else [out[0] for out in plan.outs]
            return BatchResult(vectors, self._count_truncated(batch), layers.state)
        if batch.margin:
            boundaries = np.concatenate([begins - 1, ends - batch.margin])
            slots = slots[:, np.delete(np.arange(slots.shape[1]), boundaries)]
        if spec.pooling is not None:
            slots, lengths = upload([slots, torch.from_numpy(batch.lengths - 2 * batch.margin)], self.device)
            words = torch.cat([streams[0, d].index_select(0, slots[d]) for d in range(2)], dim=1)
            pooled = download(spec.pooling(words, lengths))  # only the vectors of the texts come back
            return BatchResult([pooled.numpy()], self._count_truncated(batch), layers.state)
        (out,) = plan.outs
        with nothing_overflows(out.dtype):
            unpack_words(streams, slots, out)
        return BatchResult([out if spec.layers.keeps_axis else out[:, 0]], 0, layers.state)

    def _count_truncated(self, batch: PackedBatch) -> int:
        """How many words of the text, not only distinct ones, are longer than the model reads."""
        count = self.bilm.token_encoder.count_truncated
        if not count(batch.words):
            return 0
        long = [number for number, word in enumerate(batch.words) if count([word])]
        return int(np.isin(batch.tokens[0].numpy(), long).sum())

    def _embed(
        self, batch: PackedBatch, plan: Plan, spec: OutputSpec, state: BiLMState | None, start: BiLMState | None
    ) -> BatchResult:
        # The caller may train something under autocast.
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            start = self._after_boundary(start) if state is None and not batch.margin else start
            return self.finalize(self.run(self.encode(batch), state, start), plan, spec)

    def _after_boundary(self, start: BiLMState | None) -> BiLMState:
        """The state after the boundary that each direction reads first, from `start` (one row; None: zeros)."""
        known = self._after_boundaries.get(start is None)
        if known is None or known[0] is not start:
            layers = self.run(self.encode(window_batch([BOS], [EOS])), start)
            known = self._after_boundaries[start is None] = start, layers.state
        return known[1]

    def embed_batch(
        self, plan: Plan, spec: OutputSpec, start: BiLMState | None = None, rows: int | None = None
    ) -> BatchResult:
        """Embed a batch, every sentence from `start` (one row; None: zeros), in `rows` rows that are filled evenly.

        The state after the boundary that a direction reads first is the same for all sentences, and the boundary that
        it reads last has no output: an encoder that carries state starts from that state, and reads only words.
        """
        rows = min(rows or self.sizes.rows, len(plan.sentences))
        in_row = assign_rows(list(map(len, plan.sentences)), rows)
        boundaries = not self.config.sequence_encoder.carries_state
        batch = embedding_batch(plan.sentences, in_row, rows, reset=True, boundaries=boundaries)
        return self._embed(batch, plan, spec, None, start)

    def embed_carrying(self, plan: Plan, spec: OutputSpec, state: BiLMState, first: int) -> BatchResult:
        """Embed a batch whose first sentence is number `first`: sentence i continues row i mod the rows of `state`."""
        num_rows = state.h.shape[2]
        rows = np.arange(first, first + len(plan.sentences)) % num_rows
        batch = embedding_batch(plan.sentences, rows, num_rows, reset=False)
        return self._embed(batch, plan, spec, state, None)

    # --- All batches

    def carried(self, state: StatePolicy | BiLMState | None, batch_size: int | None = None) -> BiLMState | None:
        """The state that the rows continue from; None where state is not carried."""
        state = self.model.state_policy if state is None else state
        if not isinstance(state, BiLMState):
            self.model.start(state)  # raises where there is none to carry
            return self.bilm.initial_state(batch_size or 1) if state == "carry" else None
        if batch_size not in (None, state.h.shape[2]):
            raise ValueError(
                f"the given state has {state.h.shape[2]} rows, not {batch_size}: give one row for each sentence of a "
                "batch"
            )
        return state.to(self.device)

    def embed_all(
        self,
        batches: Iterable[Sentences],
        spec: OutputSpec,
        state: StatePolicy | BiLMState | None = None,
        batch_size: int | None = None,
    ) -> Generator[BatchResult, None, None]:
        """Embed batches of sentences, each a list of words.

        Args:
            batches: A batch is run at once, however large.
            spec: The output of each batch.
            state: As for `Embedder.embed`. Unless it is carried, some batches are computed ahead.
            batch_size: As for `Embedder.embed`.
        """
        plans = (self.plan(sentences, spec) for sentences in batches)
        if (carried := self.carried(state, batch_size)) is not None:
            return self._embed_all_carrying(plans, spec, carried)
        start = self.model.start(cast(StatePolicy, state or self.model.state_policy))
        run = partial(self.embed_batch, spec=spec, start=start and start.to(self.device), rows=batch_size)
        ahead = self.sizes.batches_ahead if self.device.type != "cpu" or num_threads() > 1 else 1
        return overlapped(run, plans, ahead)

    def _embed_all_carrying(
        self, plans: Iterable[Plan], spec: OutputSpec, state: BiLMState
    ) -> Generator[BatchResult, None, None]:
        first = 0
        for plan in plans:
            result = self.embed_carrying(plan, spec, state, first)
            state, first = result.state, first + len(plan.sentences)
            yield result
