"""From sentences to vectors in four stages: plan -> encode -> run -> finalize.

Unless state is carried, batches are independent, so several are in progress at a time
(`threads.overlapped`).
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from threading import Lock
from typing import cast

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints import Pretrained
from elmokit.data import PackedBatch, chunks
from elmokit.embed.outputs import OutputSpec
from elmokit.nn import BiLMState, prepack
from elmokit.ops import upload
from elmokit.settings import StatePolicy
from elmokit.threads import num_threads, overlapped

Sentences = Sequence[Sequence[str]]

BATCH_WORDS, MIN_BATCH_WORDS = 8192, 1024
MAX_LAYER_BYTES = 72 << 20  # limits the layers of a batch: wide models have smaller batches
ROWS = 128  # rows of a batch, computed side by side
GPU_FACTOR = 4  # times as many words and rows, so that a step outweighs its launch; not measured
LONG_FACTOR = 2  # times as many words in a batch of long sentences
CACHE_BYTES = 32 << 20  # memory for word vectors
MAX_CACHED_LENGTH = 200  # characters per word: text without white space would fill the memory
BATCHES_AHEAD = 2  # batches in progress at a time


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
class InitialState:
    """Initial state: `state` for every sentence, or carried over along B rows from `state` on.

    If it is not carried, `state` has one row; None: zeros.
    """

    state: BiLMState | None = None
    is_carried: bool = False


@dataclass(frozen=True)
class BatchResult:
    """The arrays that an `OutputSpec` asks for, the number of truncated words, and the final state.

    With a pooling or a `storage_dtype` there is one array for the whole batch.
    """

    vectors: list[np.ndarray]
    truncated_words: int
    state: BiLMState


# --- The vectors of words -------------------------------------------------------------------------


class WordCache:
    """Caches vectors (D,) float32 in `num_bytes`; cleared when full. Thread-safe."""

    def __init__(self, dim: int, num_bytes: int) -> None:
        self.capacity, self._sizes = max(1, num_bytes // (4 * dim)), (dim, num_bytes)
        # Inference-mode tensors cannot be updated outside it.
        with torch.inference_mode(False):
            self._vectors = torch.empty(self.capacity, dim, dtype=torch.float32, device="cpu")
        self._rows: dict[str, int] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[WordCache], tuple[int, int]]:
        """Copies and pickles are empty."""
        return WordCache, self._sizes

    def clear(self) -> None:
        with self._lock:
            self._rows.clear()

    def look_up(self, words: list[str]) -> tuple[Tensor, list[int]]:
        """U words -> vectors (U, D), and the indices of missing words, whose rows are undefined."""
        with self._lock:
            rows = [self._rows.get(word, -1) for word in words]
            vectors = self._vectors[
                torch.tensor(rows, dtype=torch.int64, device="cpu").clamp_(min=0)
            ]
        return vectors, [number for number, row in enumerate(rows) if row < 0]

    def add(self, words: list[str], vectors: Tensor) -> None:
        """Add distinct words; another thread may have added some. Words beyond the capacity are
        dropped.
        """
        with self._lock:
            # Drop all words: dropping the oldest would need the order of use, at each look-up.
            if len(self._rows) + len(words) > self.capacity:
                self._rows.clear()
            kept = enumerate(words[: self.capacity])
            new = [
                number
                for number, word in kept
                if word not in self._rows and len(word) <= MAX_CACHED_LENGTH
            ]
            rows = range(len(self._rows), len(self._rows) + len(new))
            self._vectors[rows.start : rows.stop] = vectors[new]
            self._rows.update((words[number], row) for number, row in zip(new, rows, strict=True))


# --- The stages of one model ----------------------------------------------------------------------


class Pipeline:
    """Runs the stages on a biLM that is prepacked for a device and a dtype.

    Attributes:
        batch_words: Approximate number of words in a batch. This and `rows` change vectors only by
            rounding.
        rows: Number of rows of a batch, computed side by side.
    """

    def __init__(self, model: Pretrained, device: torch.device, dtype: torch.dtype) -> None:
        self.model, self.config, self.device = model, model.config, device
        # On a CPU 6,144 words of a model with three layers of 1,024 dimensions, 8,192 of a smaller
        # one.
        word_bytes = 4 * self.config.num_representations * self.config.output_dim
        factor = 1 if device.type == "cpu" else GPU_FACTOR
        words = min(BATCH_WORDS, max(MIN_BATCH_WORDS, MAX_LAYER_BYTES // word_bytes))
        self.batch_words, self.rows = factor * words, factor * ROWS
        bilm = model.bilm if model.bilm.device == device else copy.deepcopy(model.bilm).to(device)
        self.bilm, self.cache = prepack(bilm, dtype), None
        if self.bilm.token_encoder.is_cacheable:
            self.cache = WordCache(self.config.sequence_encoder.projection_dim, CACHE_BYTES)
        self._after_boundaries: dict[bool, tuple[BiLMState | None, BiLMState]] = {}

    # --- Stages

    def plan(self, sentences: Sentences, spec: OutputSpec) -> Plan:
        """Allocate the arrays for the vectors of a batch."""
        dim, lengths = self.config.output_dim, list(map(len, sentences))
        if spec.pooling is not None:
            outs = []
        elif spec.storage_dtype is not None:
            outs = [np.empty((sum(lengths), spec.count, dim), spec.storage_dtype)]
        else:
            outs = [np.empty((spec.count, length, dim), np.float32) for length in lengths]
        return Plan(sentences, spec, outs)

    def encode(self, batch: PackedBatch) -> Tensor:
        """Look up or encode the distinct words, (U, D)."""
        if self.cache is None:
            return self.bilm.word_vectors(batch.words, self.model.vocab)
        #   words     the   cat   sat
        #   missing   0                   cat and sat are cached: one word is encoded
        vectors, missing = self.cache.look_up(batch.words)
        if missing:
            new = [batch.words[number] for number in missing]
            vectors[missing] = encoded = self.bilm.word_vectors(new, self.model.vocab)
            self.cache.add(new, encoded)
        return vectors

    def run(
        self,
        batch: PackedBatch,
        word_vectors: Tensor,
        state: BiLMState | None = None,
        start: BiLMState | None = None,
    ) -> tuple[Tensor, BiLMState]:
        """Compute the layers (L+1, 2, N, D) in stream order, and the final state.

        `state` and `start` are `state` and `reset_state` of `BiLM.run`.
        """
        (tokens,) = upload([batch.tokens], self.device)
        streams, after = self.bilm.run(word_vectors, tokens, batch.text.packing, state, start)
        if self.bilm.product_dtype == torch.float16 and not streams.isfinite().all():
            raise ValueError(
                "numbers of this model are too large for products in float16: use bfloat16 or "
                "float32"
            )
        return streams, after

    def finalize(self, batch: PackedBatch, streams: Tensor, plan: Plan) -> list[np.ndarray]:
        """Fill the plan's arrays from the layers, or pool them.

        Raises:
            ValueError: A number is too large for the dtype of the arrays.
        """
        # Two sentences with one boundary token at each end; only words have vectors:
        #
        #   position   0     1     2     3     4     5     6
        #              <S>   a1    a2    </S>  <S>   b1    </S>      lengths 4, 3
        #                    begins[0]         ends[0]               begins 1, 5
        #                                            begins[1]       ends 4, 7
        spec, ends = plan.spec, np.cumsum(batch.lengths)
        streams = spec.select(streams)
        begins, text = ends - batch.lengths + batch.num_boundary_tokens, batch.text
        if spec.pooling is None and spec.storage_dtype is None:
            text.write_sentences(streams, begins, plan.outs)
            return plan.outs if spec.shape else [out[0] for out in plan.outs]
        if batch.num_boundary_tokens:
            text = text.without(np.concatenate([begins - 1, ends - batch.num_boundary_tokens]))
        if spec.pooling is not None:
            (lengths,) = upload(
                [torch.from_numpy(batch.lengths - 2 * batch.num_boundary_tokens)], self.device
            )
            # Only the vectors of the texts come back from a GPU.
            return [spec.pool(text.unpack(streams), lengths).cpu().numpy()]
        (out,) = plan.outs
        try:
            with np.errstate(over="raise"):
                text.write_words(streams, out)
        except FloatingPointError as error:
            raise ValueError(
                f"a vector has numbers that are too large for {out.dtype}: write float32"
            ) from error
        return [out if spec.shape else out[:, 0]]

    def embed_batch(self, plan: Plan, start: BiLMState | None, rows: int) -> BatchResult:
        """Embed sentences that all start from one state, in rows that are filled evenly.

        For an encoder that carries state, the state after the leading boundary token is computed
        once, so batches contain no boundary tokens.

        Args:
            plan: The sentences.
            start: The state of one row; None: zeros.
            rows: The number of rows.
        """
        # Sentences a1 a2 a3, b1 and c1 c2 in two rows of a model that carries state; * is a reset,
        # where `start` is the state after <S> (forward) or </S> (backward):
        #
        #   forward    a1* a2 a3               backward   a3* a2 a1
        #              b1* c1* c2                         b1* c2* c1
        #
        # Other encoders read <S> and </S> with each sentence, and their vectors are left out later.
        with self._inference():
            boundaries = not self.config.sequence_encoder.carries_state
            batch = PackedBatch.to_embed(plan.sentences, rows, boundaries=boundaries)
            start = start if boundaries else self._after_boundary(start)
            return self._result(plan, batch, self.run(batch, self.encode(batch), start=start))

    def continue_batch(self, plan: Plan, state: BiLMState, first: int) -> BatchResult:
        """Embed sentences that carry on from a state of B rows: sentence i, counted from `first`,
        in row i mod B.
        """
        # Five sentences in two rows, from `first` 3 on: no state is reset, and each row's
        # goes on to the next batch.
        #
        #   row 0   ... | 4 | 6 | ...
        #   row 1   ... | 3 | 5 | 7 | ...
        with self._inference():
            batch = PackedBatch.to_embed(plan.sentences, state.h.shape[2], first)
            return self._result(plan, batch, self.run(batch, self.encode(batch), state))

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Disable gradients and the caller's autocast."""
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            yield

    def _result(
        self, plan: Plan, batch: PackedBatch, computed: tuple[Tensor, BiLMState]
    ) -> BatchResult:
        streams, state = computed
        truncated = self._count_truncated(batch) if plan.spec.storage_dtype is None else 0
        return BatchResult(self.finalize(batch, streams, plan), truncated, state)

    def _after_boundary(self, start: BiLMState | None) -> BiLMState:
        """The state after the leading boundary token of each direction, computed once.

        `start` has one row; None: zeros.
        """
        known = self._after_boundaries.get(start is None)
        if known is None or known[0] is not start:
            batch = PackedBatch.to_score([[]], 1, first=0)  # <S> and </S>
            after = self.run(batch, self.encode(batch), start)[1]
            known = self._after_boundaries[start is None] = start, after
        return known[1]

    def _count_truncated(self, batch: PackedBatch) -> int:
        """Count the words of the text that are longer than the model reads."""
        # First check the distinct words together: they are hardly ever too long.
        count = self.bilm.token_encoder.count_truncated
        if not count(batch.words):
            return 0
        long = [number for number, word in enumerate(batch.words) if count([word])]
        return int(np.isin(batch.tokens[0].numpy(), long).sum())

    # --- All batches

    def start(self, state: StatePolicy | BiLMState | None, rows: int | None = None) -> InitialState:
        """The initial state of a policy (None: the model's own), or a given state of `rows` rows.

        Raises:
            ValueError: The model has no such state, or it has another number of rows.
        """
        #   a BiLMState        carried on, each row from its own
        #   "carry"            carried on, all rows from zeros
        #   "zeros", "warm"    each sentence from the same state
        if isinstance(state, BiLMState):
            if rows not in (None, state.h.shape[2]):
                raise ValueError(
                    f"the given state has {state.h.shape[2]} rows, not {rows}: omit batch_size"
                )
            return InitialState(state.to(self.device), is_carried=True)
        state = self.model.state_policy if state is None else state
        initial = self.model.start(state)  # raises where there is none
        if state == "carry":
            return InitialState(self.bilm.initial_state(rows or 1), is_carried=True)
        return InitialState(initial and initial.to(self.device))

    def are_long(self, sentences: Sentences) -> bool:
        """Whether a batch would hold fewer sentences than rows."""
        return sum(map(len, sentences)) * self.rows > len(sentences) * self.batch_words

    def split_evenly(self, sentences: Sentences) -> Iterable[list[Sequence[str]]]:
        """Split sentences into batches of about equal size, as a small batch costs nearly as much
        as a full one.

        Batches of long sentences have more words, to fill more rows.
        """
        # 20,000 words and boundaries, at most 8,192 of them in a batch: three of about 6,667, not
        # two of 8,192 and one of 3,616.
        words = self.batch_words * (LONG_FACTOR if self.are_long(sentences) else 1)
        total = sum(map(len, sentences)) + 2 * len(sentences)
        return chunks(sentences, ceil(total / max(1, ceil(total / words))))

    def embed_all(
        self,
        batches: Iterable[Sentences],
        spec: OutputSpec,
        start: InitialState,
        rows: int | None = None,
    ) -> Generator[BatchResult, None, None]:
        """Embed batches of sentences, each a list of words.

        Args:
            batches: A batch is run at once, however large.
            spec: The output of each batch.
            start: See `start`. Unless state is carried, some batches are computed ahead.
            rows: The rows of a batch, where state is not carried; None: `self.rows`.
        """
        # This thread allocates and yields, others compute, two batches at a time on a GPU or with
        # several threads:
        #
        #   here     plan 0   plan 1     yield 0   plan 2    yield 1 ...
        #   beside            run 0 ...  run 1 ...           run 2 ...
        plans = (self.plan(sentences, spec) for sentences in batches)
        if not start.is_carried:
            run = partial(self.embed_batch, start=start.state, rows=rows or self.rows)
            ahead = BATCHES_AHEAD if self.device.type != "cpu" or num_threads() > 1 else 1
            yield from overlapped(run, plans, ahead)
            return
        state, first = cast(BiLMState, start.state), 0
        for plan in plans:
            yield (result := self.continue_batch(plan, state, first))
            state, first = result.state, first + len(plan.sentences)
