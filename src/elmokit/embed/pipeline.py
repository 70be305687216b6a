"""From sentences to vectors in four stages: plan -> encode -> run -> finalize. Each hands a record to the next.

Batches are independent of each other but for carried state, so several are in progress at a time
(`threads.overlapped`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import groupby
from math import ceil
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, check_count
from elmokit.data.streams import PackedBatch, assign_rows, embedding_batch, sentence_batches, window_batch
from elmokit.embed.outputs import HalfVectors, LayerSelection, OutputSpec, RunningPool
from elmokit.embed.windows import Window, plan_windows
from elmokit.embed.word_cache import WordCache
from elmokit.nn.bilm import MAX_WHOLE_BYTES, BiLMState, check_length, longest_sentence
from elmokit.nn.inference import prepack
from elmokit.ops.functional import unpack_sentences, unpack_words
from elmokit.ops.threads import num_threads, overlapped
from elmokit.ops.transfer import download, upload
from elmokit.storage.shard import nothing_overflows
from elmokit.text.characters import BOS, EOS

Sentences = Sequence[Sequence[str]]
Method = TypeVar("Method", bound=Callable[..., Any])

GPU_FACTOR = 4  # times as many words and rows on a GPU, so that a step outweighs its launch; not measured
LONG_FACTOR = 2  # times as many words in a batch of long sentences


@dataclass(frozen=True)
class Sizes:
    """How much is computed at a time. Vectors depend on it by rounding at most."""

    batch_words: int = 8192  # a sentence with more positions is run in windows
    min_batch_words: int = 1024
    max_layer_bytes: int = 72 << 20  # of all layers of a batch, which therefore has fewer words for wide models
    rows: int = 128  # rows of a batch, computed side by side
    window_positions: int = 4096  # of each direction
    max_whole_bytes: int = MAX_WHOLE_BYTES  # of the layers of a sentence that cannot be read in windows
    cache_bytes: int = 32 << 20  # of word vectors
    batches_ahead: int = 2  # batches in progress at a time

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "cache_bytes" or value != 0:  # 0: no cache
                check_count(name, value)

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

    def words_of(self, sentences: Sentences) -> int:
        """The number of words in a batch of these sentences: more for long ones, so that it has more rows."""
        return self.batch_words * (LONG_FACTOR if self.are_long(sentences) else 1)


# --- Plan ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Sentences that are run together, or a long one alone, and the arrays that will hold their vectors.

    The arrays are allocated by the thread that will release them, since allocators have a pool for each thread.
    """

    sentences: Sentences
    is_long: bool
    outs: list[np.ndarray]


def split_batches(
    sentences: Iterable[Sequence[str]], longest: int, words: int | None = None
) -> Iterator[tuple[list[Sequence[str]], bool]]:
    """Split sentences into batches of about `words` words (None: `longest`), as `sentence_batches` does.

    Yields:
        Consecutive sentences, and whether they are a single one of more than `longest` positions.
    """
    for is_long, together in groupby(sentences, key=lambda sentence: len(sentence) + 2 > longest):
        for batch in ([sentence] for sentence in together) if is_long else sentence_batches(together, words or longest):
            yield batch, is_long


def split_evenly(
    sentences: Sentences, longest: int, words: int | None = None
) -> Iterator[tuple[list[Sequence[str]], bool]]:
    """`split_batches` of a known number of sentences, in batches of about equal size.

    A small last batch would cost nearly as much as a full one.
    """
    if not sentences:
        return iter(())
    total = sum(map(len, sentences)) + 2 * len(sentences)
    num_batches = ceil(total / (words or longest))
    return split_batches(sentences, longest, ceil(total / num_batches))


def running_order(sentences: Sentences, sizes: Sizes) -> list[int]:
    """The indices of sentences in the order in which to run them, where any order will do.

    Short sentences fill the rows evenly in the order of the text. Where a batch has fewer sentences than rows, each is
    a row: they are sorted by length, so that the rows of a batch end together.
    """
    numbers = list(range(len(sentences)))
    if sizes.are_long(sentences):
        numbers.sort(key=lambda number: len(sentences[number]))
    return numbers


# --- The stages of one model -----------------------------------------------------------------------------------------


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
    """The arrays of a batch as its `OutputSpec` says, how many of its words were truncated, and the state after it."""

    vectors: list[np.ndarray]
    truncated_words: int
    state: BiLMState


@dataclass(frozen=True)
class WindowResult:
    """The forward halves of some words' vectors, the backward halves of others', and the state after the window."""

    halves: tuple[HalfVectors, HalfVectors]
    state: BiLMState


def _slots_of_words(batch: PackedBatch) -> Tensor:
    """The slot of each word in each direction, without the boundaries, (2, M)."""
    if not batch.margin:
        return batch.text.slots
    ends = np.cumsum(batch.lengths)
    return batch.text.slots[:, np.delete(np.arange(ends[-1]), np.concatenate([ends - batch.lengths, ends - 1]))]


def _pooled(stream: Tensor, slots: Tensor, lengths: np.ndarray, pooling: str) -> np.ndarray:
    """The mean or maximum of the words of each sentence, computed on the device of the stream.

    Args:
        stream: (2, N, D), in stream order.
        slots: The slot of each word in each direction, (2, M).
        lengths: The number of words of each sentence, (S,).
        pooling: "mean" or "max".

    Returns:
        (S, 2D) float32; zeros for a sentence without words.
    """
    slots, sizes = upload([slots, torch.from_numpy(lengths)], stream.device)
    words = torch.cat([stream[0, slots[0]], stream[1, slots[1]]], dim=1)
    # Not the default: it checks the sizes, for which it waits.
    pooled = torch.segment_reduce(words, pooling, lengths=sizes, axis=0, unsafe=True)
    return download(pooled.where((sizes > 0)[:, None], 0).float()).numpy()


def _without_autocast(method: Method) -> Method:
    """The method, which computes in the embedder's number type even if its caller trains something under autocast."""

    @wraps(method)
    def run(self: Pipeline, *arguments: Any, **options: Any) -> Any:
        with torch.autocast(self.device.type, enabled=False):
            return method(self, *arguments, **options)

    return cast(Method, run)


class Pipeline:
    """A model's biLM, prepacked for a device and a number type, and the stages that use it."""

    def __init__(self, model: Pretrained, device: torch.device, dtype: torch.dtype, sizes: Sizes | None = None) -> None:
        self.config, self.device = model.config, device
        self.sizes = Sizes.of(model.config, device, sizes)
        bilm = model.bilm
        try:
            self.bilm = prepack(bilm if bilm.device == device else copy.deepcopy(bilm).to(device), dtype)
        except ValueError as error:
            if dtype != torch.int8 or bilm.is_prepacked:
                raise
            raise ValueError(
                "int8 needs a CPU and the compiled kernels (see elmokit info): use bfloat16 or float32"
            ) from error
        self._vocab, self._dtype = model.vocab, dtype
        cache = partial(WordCache, self.config.sequence_encoder.projection_dim, self.sizes.cache_bytes)
        self.cache = cache() if self.bilm.token_encoder.is_cacheable else None
        self._after_boundaries: dict[bool, tuple[BiLMState | None, BiLMState]] = {}

    # Plan

    def plan(self, sentences: Sentences, is_long: bool, spec: OutputSpec) -> Plan:
        """Allocate the arrays for the vectors of a batch; those of a long sentence come window by window."""
        count, dim, lengths = spec.layers.count, self.config.output_dim, list(map(len, sentences))
        if is_long:
            outs = []
        elif spec.storage_dtype is not None:
            outs = [np.empty((sum(lengths), count, dim), spec.storage_dtype)]
        else:
            outs = [np.empty((count, length, dim), np.float32) for length in lengths]
        return Plan(sentences, is_long, outs)

    # Encode

    @_without_autocast
    def encode(self, batch: PackedBatch) -> Encoded:
        """The vectors of the batch's distinct words: those that are not in the cache go through the token encoder."""
        if self.cache is None:
            return Encoded(batch, self.bilm.word_vectors(batch.words, self._vocab))
        vectors, missing = self.cache.look_up(batch.words)
        if missing:
            new = [batch.words[number] for number in missing]
            encoded = self.bilm.word_vectors(new, self._vocab)
            vectors[missing] = encoded
            self.cache.add(new, encoded)
        return Encoded(batch, vectors)

    # Run

    @_without_autocast
    @torch.no_grad()
    def run(self, encoded: Encoded, state: BiLMState | None = None, start: BiLMState | None = None) -> Layers:
        """`state` and `start` as in `BiLM.run`. ValueError where products in float16 overflow."""
        batch = encoded.batch
        (tokens,) = upload([batch.tokens], self.device)
        streams, after = self.bilm.run(encoded.words, tokens, batch.text.packing, state, start)
        if self._dtype == torch.float16 and not streams.isfinite().all():
            raise ValueError("numbers of this model are too large for products in float16: use bfloat16 or float32")
        return Layers(batch, streams, after)

    def after_boundaries(self, start: BiLMState | None) -> BiLMState:
        """The state after the boundary that each direction reads first, from `start` (one row; None: zeros)."""
        known = self._after_boundaries.get(start is None)
        if known is None or known[0] is not start:
            layers = self.run(self.encode(window_batch([BOS], [EOS])), start)
            known = self._after_boundaries[start is None] = start, layers.state
        return known[1]

    # Finalize

    @_without_autocast
    def finalize(self, layers: Layers, plan: Plan, spec: OutputSpec) -> BatchResult:
        """Fill the plan's arrays from the layers, and pool them. ValueError for numbers too large for their dtype."""
        batch, streams = layers.batch, spec.layers(layers.streams)
        if spec.storage_dtype is not None:
            out = plan.outs[0]
            with nothing_overflows(out.dtype):
                unpack_words(streams, _slots_of_words(batch), out)
            return BatchResult([out if spec.layers.keeps_axis else out[:, 0]], 0, layers.state)
        if spec.pooling is not None and self.device.type != "cpu":  # only the vectors of the texts come back
            pooled = _pooled(streams[0], _slots_of_words(batch), batch.lengths - 2 * batch.margin, spec.pooling.name)
            return BatchResult([spec.pooling(row[None]) for row in pooled], self._count_truncated(batch), layers.state)
        begins = np.cumsum(batch.lengths) - batch.lengths + batch.margin
        unpack_sentences(streams, batch.text.slots, begins, plan.outs)
        vectors = plan.outs if spec.layers.keeps_axis else [out[0] for out in plan.outs]
        pooled = list(map(spec.pooling, vectors)) if spec.pooling else vectors
        return BatchResult(pooled, self._count_truncated(batch), layers.state)

    def _count_truncated(self, batch: PackedBatch) -> int:
        """How many words of the text, not only distinct ones, are longer than the model reads."""
        count = self.bilm.token_encoder.count_truncated
        if not count(batch.words):
            return 0
        long = [number for number, word in enumerate(batch.words) if count([word])]
        return int(np.isin(batch.tokens[0].numpy(), long).sum())

    # All four

    def embed_batch(
        self, plan: Plan, spec: OutputSpec, start: BiLMState | None = None, rows: int | None = None
    ) -> BatchResult:
        """Embed a batch, every sentence from `start` (one row; None: zeros), in `rows` rows that are filled evenly.

        The state after the boundary that a direction reads first is the same for all sentences, and the boundary that
        it reads last has no output: an encoder that carries state starts from that state, and reads only words.
        """
        if plan.is_long:
            return self._embed_long(plan.sentences[0], spec, start)
        boundaries = not self.config.sequence_encoder.carries_state
        rows = min(rows or self.sizes.rows, len(plan.sentences))
        in_row = assign_rows(list(map(len, plan.sentences)), rows)
        batch = embedding_batch(plan.sentences, in_row, rows, reset=True, boundaries=boundaries)
        start = start if boundaries else self.after_boundaries(start)
        return self.finalize(self.run(self.encode(batch), start=start), plan, spec)

    def embed_carrying(self, plan: Plan, spec: OutputSpec, state: BiLMState, first: int) -> BatchResult:
        """Embed a batch whose first sentence is number `first`: sentence i continues row i mod the rows of `state`."""
        num_rows = state.h.shape[2]
        rows = np.arange(first, first + len(plan.sentences)) % num_rows
        if plan.is_long:
            result = self._embed_long(plan.sentences[0], spec, state.row(rows[0]))
            return BatchResult(result.vectors, result.truncated_words, state.with_row(rows[0], result.state))
        batch = embedding_batch(plan.sentences, rows, num_rows, reset=False)
        return self.finalize(self.run(self.encode(batch), state), plan, spec)

    def embed_windows(
        self, words: Sequence[str], layers: LayerSelection, state: BiLMState | None
    ) -> Iterator[WindowResult]:
        """Embed one sentence from `state` (one row; None: zeros), window by window."""
        self.check_length(len(words), "a sentence")
        carries = self.config.sequence_encoder.carries_state
        for window in plan_windows(words, self.sizes.window_positions if carries else len(words) + 2):
            result = self._embed_window(window, layers, state)
            state = result.state
            yield result

    @property
    def longest_sentence(self) -> int | None:
        """The most words of a sentence that must be computed whole; None where state is carried, for any number."""
        return longest_sentence(self.config, self.sizes.max_whole_bytes)

    def check_length(self, words: int, name: str) -> None:
        """ValueError, which names the sentence, if it must be computed whole and would take too much memory."""
        check_length(self.config, words, name, self.sizes.max_whole_bytes)

    @_without_autocast
    def _embed_window(self, window: Window, layers: LayerSelection, state: BiLMState | None) -> WindowResult:
        result, dim = self.run(self.encode(window.batch), state), self.config.output_dim // 2
        array = np.empty((layers.count, int(window.batch.lengths[0]), 2 * dim), np.float32)
        unpack_sentences(layers(result.streams), window.batch.text.slots, np.array([0]), [array])
        vectors = (array if layers.keeps_axis else array[0])[..., window.words, :]
        forward = HalfVectors(window.forward, slice(0, dim), vectors[..., :dim])
        backward = HalfVectors(window.backward, slice(dim, 2 * dim), vectors[..., ::-1, dim:])
        return WindowResult((forward, backward), result.state)

    def _embed_long(self, words: Sequence[str], spec: OutputSpec, state: BiLMState | None) -> BatchResult:
        pool = RunningPool(spec.pooling, self.config.output_dim) if spec.pooling else None
        vectors = np.empty((spec.layers.count, len(words), 0 if pool else self.config.output_dim), np.float32)
        vectors = vectors if spec.layers.keeps_axis else vectors[0]
        for result in self.embed_windows(words, spec.layers, state):
            state = result.state
            for half in result.halves:
                if pool is not None:
                    pool.add(half)
                else:
                    vectors[..., half.rows, half.columns] = half.vectors
        assert state is not None
        truncated = self.bilm.token_encoder.count_truncated(words)
        return BatchResult([vectors if pool is None else pool.vectors()], truncated, state)

    def embed_all(
        self,
        batches: Iterable[tuple[Sentences, bool]],
        spec: OutputSpec,
        start: BiLMState | None,
        rows: int | None = None,
    ) -> Generator[BatchResult, None, None]:
        """Embed batches, as `split_batches` yields them, some ahead; every sentence from `start`."""
        plans = (self.plan(sentences, is_long, spec) for sentences, is_long in batches)
        ahead = self.sizes.batches_ahead if self.device.type != "cpu" or num_threads() > 1 else 1
        return overlapped(partial(self.embed_batch, spec=spec, start=start, rows=rows), plans, ahead)

    def embed_all_carrying(
        self, batches: Iterable[tuple[Sentences, bool]], spec: OutputSpec, state: BiLMState
    ) -> Generator[BatchResult, None, None]:
        """Embed batches one after the other, each from the state that the one before it left."""
        first = 0
        for sentences, is_long in batches:
            result = self.embed_carrying(self.plan(sentences, is_long, spec), spec, state, first)
            state, first = result.state, first + len(sentences)
            yield result
