"""`unpack` in C, chunks of the words on each thread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from elmokit.ops.native.library import native, require
from elmokit.ops.threads import num_threads, parallel_for

VALUES_WORTH_A_THREAD = 1 << 18


def _num_chunks(values: int) -> int:
    return max(1, min(num_threads(), values // VALUES_WORTH_A_THREAD))


def unpack_sentences(streams: Tensor, slots: Tensor, begins: np.ndarray, outs: Sequence[np.ndarray]) -> None:
    (layers, _, num_slots, width), (fwd, bwd) = streams.shape, slots.contiguous()
    streams, unpack = streams.float().contiguous(), native("unpack_sentences")
    lengths = np.array([out.shape[1] for out in outs], np.int64)
    addresses = np.array([out.ctypes.data for out in outs], np.int64)
    require(all(out.dtype == np.float32 and out.flags.c_contiguous for out in outs), "sentences are written in float32")
    # Of about as many words each.
    chunks = _num_chunks(2 * layers * width * int(lengths.sum()))
    ends = np.searchsorted(np.cumsum(lengths), np.linspace(0, lengths.sum(), chunks + 1)[1:], side="left") + 1
    bounds = [0, *ends[:-1].clip(max=len(outs)).tolist(), len(outs)]

    def chunk(number: int, held: Sequence[np.ndarray] = outs) -> None:
        unpack(
            layers=layers, slots=num_slots, width=width, first=bounds[number], end=bounds[number + 1], streams=streams,
            fwd=fwd, bwd=bwd, begins=np.asarray(begins, np.int64), lengths=lengths, outs=addresses,
        )  # fmt: skip

    parallel_for(chunk, len(bounds) - 1)


def unpack_words(streams: Tensor, slots: Tensor, out: np.ndarray) -> bool:
    layers, _, num_slots, width = streams.shape
    streams, unpack = streams.float().contiguous(), native(f"unpack_words_{out.dtype.name}")
    overflows = [0] * _num_chunks(out.size)
    bounds = np.linspace(0, len(out), len(overflows) + 1).astype(int).tolist()

    def chunk(number: int) -> None:
        words = slice(bounds[number], bounds[number + 1])
        fwd, bwd = slots[:, words].contiguous()
        overflows[number] = unpack(
            layers=layers, slots=num_slots, width=width, tokens=words.stop - words.start, streams=streams, fwd=fwd,
            bwd=bwd, out=out[words],
        )  # fmt: skip

    parallel_for(chunk, len(overflows))
    return any(overflows)
