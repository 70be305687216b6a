"""From the streams of a block to the vectors of each of its sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from elmokit.nn.kernels.directions import on_both_cores
from elmokit.nn.kernels.library import INT, POINTER, SIZE, address, compiled

TOO_LARGE = "finite numbers have become infinite"


def word_vectors(streams: Tensor, slots: Tensor, out: np.ndarray) -> None:
    """streams (K, 2, N, D) in stream order -> out (M, K, 2D), the words' vectors end to end, float32 or float16.

    slots (2, M): where the words lie in each direction. FloatingPointError where numbers are too large for float16.
    """
    count, _, num_slots, width = streams.shape
    arguments = SIZE, SIZE, SIZE, SIZE, POINTER, POINTER, POINTER, POINTER
    kernel = compiled(f"elmokit_words_{out.dtype.name}", *arguments, result=INT)
    if kernel is None or not streams.is_cpu:
        both = torch.cat([streams[:, d, slots[d].to(streams.device)] for d in range(2)], dim=-1).movedim(0, 1)
        stored = both.to(getattr(torch, out.dtype.name))
        if (stored.isinf() & both.isfinite()).any():
            raise FloatingPointError(TOO_LARGE)
        out[...] = stored.cpu().numpy()
        return
    streams, slots = streams.float().contiguous(), slots.contiguous()
    overflows = [0, 0]

    def half(which: int) -> None:
        middle = len(out) // 2
        begin, end = (middle, len(out)) if which else (0, middle)
        places = (slots.data_ptr() + (d * len(out) + begin) * slots.element_size() for d in range(2))
        sizes = count, num_slots, width, end - begin
        overflows[which] = kernel(*sizes, address(streams), *places, out[begin:].ctypes.data)

    on_both_cores(half, torch.device("cpu"))
    if any(overflows):
        raise FloatingPointError(TOO_LARGE)


def sentence_vectors(streams: Tensor, slots: Tensor, begins: np.ndarray, out: Sequence[np.ndarray]) -> None:
    """streams (K, 2, N, D) in stream order -> out, for each sentence (K, T, 2D) float32.

    slots (2, N): where the tokens of the text lie in each direction; sentence i begins with token begins[i].
    """
    count, _, num_slots, width = streams.shape
    streams, slots = streams.float().cpu().contiguous(), slots.contiguous()
    kernel = compiled("elmokit_text_order", SIZE, SIZE, SIZE, SIZE, POINTER, POINTER, POINTER, POINTER)

    def one(number: int) -> None:
        vectors, begin = out[number], int(begins[number])
        words = vectors.shape[1]
        if kernel is None:
            parts = [streams[:, d, slots[d, begin : begin + words]] for d in range(2)]
            torch.cat(parts, dim=-1, out=torch.from_numpy(vectors))
        else:
            fwd, bwd = (slots.data_ptr() + (d * slots.shape[1] + begin) * slots.element_size() for d in range(2))
            kernel(count, num_slots, width, words, address(streams), fwd, bwd, vectors.ctypes.data)

    def half(which: int) -> None:
        middle = len(out) // 2
        for number in range(middle, len(out)) if which else range(middle):
            one(number)

    on_both_cores(half, torch.device("cpu"))
