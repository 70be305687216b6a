"""`unpack_sentences` and `unpack_words` in C, chunks of words on each thread (csrc/unpack.c)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from elmokit.ops.native.library import native, require
from elmokit.threads import num_threads, parallel_for

VALUES_WORTH_A_THREAD = 1 << 18


def _unpack(
    streams: Tensor,
    slots: Tensor,
    dtype: torch.dtype,
    outs: Sequence[np.ndarray],
    addresses: np.ndarray,
    layer_strides: np.ndarray,
) -> bool:
    """Write each word's vectors to its address within `outs`, its layers `layer_strides` values
    apart.

    Returns:
        Whether a finite number has become infinite.
    """
    layers, _, num_slots, width = streams.shape
    streams, unpack = streams.float().contiguous(), native("unpack", dtype)
    values = 2 * layers * width * len(addresses)
    chunks = max(1, min(num_threads(), values // VALUES_WORTH_A_THREAD))
    bounds = np.linspace(0, len(addresses), chunks + 1).astype(int).tolist()
    overflows = [0] * chunks

    # C gets only addresses: the task itself must hold the arrays, which an interrupted caller may
    # release.
    def run(number: int, held: Sequence[np.ndarray] = outs) -> None:
        words = slice(bounds[number], bounds[number + 1])
        fwd, bwd = slots[:, words].contiguous()
        overflows[number] = unpack(
            layers=layers,
            slots=num_slots,
            width=width,
            tokens=len(fwd),
            streams=streams,
            fwd=fwd,
            bwd=bwd,
            outs=addresses[words],
            layer_strides=layer_strides[words],
        )

    parallel_for(run, chunks)
    return any(overflows)


def unpack_sentences(
    streams: Tensor,
    slots: Tensor,
    begins: np.ndarray,
    outs: Sequence[np.ndarray],
) -> None:
    layers, size = len(streams), 2 * streams.shape[3]
    for out in outs:
        require(out.dtype == np.float32 and out.flags.c_contiguous, "sentences are float32")
        require((len(out), *out.shape[2:]) == (layers, size), out.shape)
    require(len(begins) == len(outs), (len(begins), len(outs)))
    # Word n of a sentence of T words lies at n * size in its array (layers, T, size), its layers
    # T * size apart. Of sentences of 3 and 2 words:
    #
    #     words         begins[0] + 0 1 2   begins[1] + 0 1     tokens of the text
    #     within                    0 1 2               0 1
    #     layer strides        size * 3 3 3        size * 2 2
    lengths = np.array([out.shape[1] for out in outs], np.int64)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    arrays = np.repeat(np.array([out.ctypes.data for out in outs], np.int64), lengths)
    words = np.repeat(np.asarray(begins, np.int64), lengths) + within
    layer_strides = np.repeat(lengths * size, lengths)
    addresses = arrays + within * size * 4
    _unpack(streams, slots[:, words], torch.float32, outs, addresses, layer_strides)


def unpack_words(streams: Tensor, slots: Tensor, out: np.ndarray) -> bool:
    layers, size = len(streams), 2 * streams.shape[3]
    require(out.flags.c_contiguous and out.shape[1:] == (layers, size), out.shape)
    words = np.arange(len(out), dtype=np.int64)
    addresses = out.ctypes.data + words * (layers * size * out.itemsize)
    layer_strides = np.full(len(out), size, np.int64)
    dtype = torch.from_numpy(out).dtype
    return _unpack(streams, slots, dtype, [out], addresses, layer_strides)
