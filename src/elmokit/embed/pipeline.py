"""From sentences to vectors in four stages: plan -> encode -> run -> finalize.

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

from elmokit.checkpoints import Pretrained
from elmokit.config import BiLMConfig
from elmokit.data import PackedBatch, assign_rows, embedding_batch, scoring_batch, sentence_batches
from elmokit.embed.outputs import OutputSpec
from elmokit.embed.word_cache import WordCache
from elmokit.nn import BiLMState, prepack
from elmokit.ops import download, unpack_sentences, unpack_words, upload
from elmokit.settings import Count, CountOrZero, StatePolicy, check
from elmokit.storage import nothing_overflows
from elmokit.threads import num_threads, overlapped

Sentences = Sequence[Sequence[str]]

GPU_FACTOR = (
    4  # times as many words and rows on a GPU, so that a step outweighs its launch; not measured
)
LONG_FACTOR = 2  # times as many words in a batch of long sentences


@dataclass(frozen=True)
class Sizes:
    """How much is computed at a time. Vectors depend on it by rounding at most."""

    batch_words: Count = 8192
    min_batch_words: Count = 1024
    max_layer_bytes: Count = (
        72 << 20
    )  # of all layers of a batch, which therefore has fewer words for wide models
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
        words = min(
            sizes.batch_words, max(sizes.min_batch_words, sizes.max_layer_bytes // bytes_of_word)
        )
        return replace(sizes, batch_words=factor * words, rows=factor * sizes.rows)

    def are_long(self, sentences: Sentences) -> bool:
        """Whether sentences are so long that a batch would have fewer of them than rows."""
        return sum(map(len, sentences)) * self.rows > len(sentences) * self.batch_words

    def split_evenly(self, sentences: Sentences) -> Iterable[list[Sequence[str]]]:
        """Consecutive sentences in batches of about equal size: a small last one would cost nearly
        as much as a full.

        Batches of long sentences have more words, so that they have more rows.
        """
        words = self.batch_words * (LONG_FACTOR if self.are_long(sentences) else 1)
        total = sum(map(len, sentences)) + 2 * len(sentences)
        return sentence_batches(sentences, ceil(total / max(1, ceil(total / words))))


# --- The records of the stages --------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Sentences that are run together, and the arrays that will hold their vectors.

    The arrays are allocated by the thread that will release them, since allocators have a pool for
    each thread.
    """

    sentences: Sentences
    spec: OutputSpec
    outs: list[np.ndarray]


@dataclass(frozen=True)
class BatchResult:
    """The arrays of a batch as its `OutputSpec` says, how many of its words were truncated, and the
    state after it.

    With a pooling or a `storage_dtype` there is one array for the whole batch.
    """

    vectors: list[np.ndarray]
    truncated_words: int
    state: BiLMState


# --- The stages of one model ----------------------------------------------------------------------


class Pipeline:
    """A model's biLM, prepacked for a device and a dtype, and the stages that use it."""

    def __init__(
        self,
        model: Pretrained,
        device: torch.device,
        dtype: torch.dtype,
        sizes: Sizes | None = None,
    ) -> None:
        self.model, self.config, self.device = model, model.config, device
        self.sizes = Sizes.of(model.config, device, sizes)
        bilm = model.bilm if model.bilm.device == device else copy.deepcopy(model.bilm).to(device)
        self.bilm = prepack(bilm, dtype)
        cache = partial(
            WordCache, self.config.sequence_encoder.projection_dim, self.sizes.cache_bytes
        )
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
        return Plan(sentences, spec, outs)

    def encode(self, batch: PackedBatch) -> Tensor:
        """The vectors (U, D) of the distinct words: those that are not in the cache go through the
        token encoder.
        """
        if self.cache is None:
            return self.bilm.word_vectors(batch.words, self.model.vocab)
        vectors, missing = self.cache.look_up(batch.words)
        if missing:
            new = [batch.words[number] for number in missing]
            vectors[missing] = encoded = self.bilm.word_vectors(new, self.model.vocab)
            self.cache.add(new, encoded)
        return vectors

    def run(
        self,
        batch: PackedBatch,
        words: Tensor,
        state: BiLMState | None = None,
        start: BiLMState | None = None,
    ) -> tuple[Tensor, BiLMState]:
        """The layers (L+1, 2, N, D) in stream order, and the state after them; `state` and `start`
        as in `BiLM.run`.
        """
        (tokens,) = upload([batch.tokens], self.device)
        streams, after = self.bilm.run(words, tokens, batch.text.packing, state, start)
        if self.bilm.product_dtype == torch.float16 and not streams.isfinite().all():
            raise ValueError(
                "numbers of this model are too large for products in float16: use bfloat16 or "
                "float32"
            )
        return streams, after

    def finalize(self, batch: PackedBatch, streams: Tensor, plan: Plan) -> list[np.ndarray]:
        """Fill the plan's arrays from the layers, or pool them. ValueError for numbers too large
        for their dtype.
        """
        spec, ends = plan.spec, np.cumsum(batch.lengths)
        streams = spec.layers(streams)
        begins, slots = ends - batch.lengths + batch.margin, batch.text.slots
        if spec.pooling is None and spec.storage_dtype is None:
            unpack_sentences(streams, slots, begins, plan.outs)
            return plan.outs if spec.layers.keeps_axis else [out[0] for out in plan.outs]
        if batch.margin:
            boundaries = np.concatenate([begins - 1, ends - batch.margin])
            slots = slots[:, np.delete(np.arange(slots.shape[1]), boundaries)]
        if spec.pooling is not None:
            slots, lengths = upload(
                [slots, torch.from_numpy(batch.lengths - 2 * batch.margin)], self.device
            )
            words = torch.cat([streams[0, d].index_select(0, slots[d]) for d in range(2)], dim=1)
            return [
                download(spec.pooling(words, lengths)).numpy()
            ]  # only the vectors of the texts come back
        (out,) = plan.outs
        with nothing_overflows(out.dtype):
            unpack_words(streams, slots, out)
        return [out if spec.layers.keeps_axis else out[:, 0]]

    def embed_batch(
        self,
        plan: Plan,
        start: BiLMState | None,
        rows: int | None,
        state: BiLMState | None = None,
        first: int = 0,
    ) -> BatchResult:
        """Embed a batch.

        The state after the boundary that a direction reads first is the same for all sentences, and
        the boundary that it reads last has no output: without `state`, an encoder that carries
        state starts from that state, and reads only words.

        Args:
            plan: The sentences.
            start: The state that every sentence starts from, of one row; None: zeros.
            rows: The number of rows, which are filled evenly; None: `Sizes.rows`.
            state: The state to carry on from: sentence i continues row i mod its rows. None: no
                state is carried.
            first: The number of the first sentence, with `state`.
        """
        # The caller may train something under autocast.
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            if state is not None:
                rows = state.h.shape[2]
                in_row = np.arange(first, first + len(plan.sentences)) % rows
                batch = embedding_batch(plan.sentences, in_row, rows, reset=False)
            else:
                rows = min(rows or self.sizes.rows, len(plan.sentences))
                in_row = assign_rows(list(map(len, plan.sentences)), rows)
                boundaries = not self.config.sequence_encoder.carries_state
                batch = embedding_batch(
                    plan.sentences, in_row, rows, reset=True, boundaries=boundaries
                )
                start = start if boundaries else self._after_boundary(start)
            streams, after = self.run(batch, self.encode(batch), state, start)
            vectors = self.finalize(batch, streams, plan)
        return BatchResult(
            vectors, self._count_truncated(batch) if plan.spec.storage_dtype is None else 0, after
        )

    def _after_boundary(self, start: BiLMState | None) -> BiLMState:
        """The state after the boundary that each direction reads first, from `start` (one row;
        None: zeros).
        """
        known = self._after_boundaries.get(start is None)
        if known is None or known[0] is not start:
            batch = scoring_batch([[]], np.zeros(1, np.int64), 1, reset=False)  # <S> and </S>
            known = self._after_boundaries[start is None] = (
                start,
                self.run(batch, self.encode(batch), start)[1],
            )
        return known[1]

    def _count_truncated(self, batch: PackedBatch) -> int:
        """How many words of the text, not only distinct ones, are longer than the model reads."""
        count = self.bilm.token_encoder.count_truncated
        if not count(batch.words):
            return 0
        long = [number for number, word in enumerate(batch.words) if count([word])]
        return int(np.isin(batch.tokens[0].numpy(), long).sum())

    # --- All batches

    def carried(
        self, state: StatePolicy | BiLMState | None, batch_size: int | None = None
    ) -> BiLMState | None:
        """The state that the rows continue from; None where state is not carried."""
        state = self.model.state_policy if state is None else state
        if not isinstance(state, BiLMState):
            self.model.start(state)  # raises where there is none to carry
            return self.bilm.initial_state(batch_size or 1) if state == "carry" else None
        if batch_size not in (None, state.h.shape[2]):
            raise ValueError(
                f"the given state has {state.h.shape[2]} rows, not {batch_size}: omit batch_size"
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
        if (carried := self.carried(state, batch_size)) is None:
            start = self.model.start(cast(StatePolicy, state or self.model.state_policy))
            run = partial(self.embed_batch, start=start and start.to(self.device), rows=batch_size)
            ahead = (
                self.sizes.batches_ahead if self.device.type != "cpu" or num_threads() > 1 else 1
            )
            yield from overlapped(run, plans, ahead)
            return
        first = 0
        for plan in plans:
            yield (result := self.embed_batch(plan, None, None, carried, first))
            carried, first = result.state, first + len(plan.sentences)
