"""From the streams of a block to the vectors of each of its sentences."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from elmokit.nn.kernels.directions import on_both_cores
from elmokit.nn.kernels.library import INT, POINTER, SIZE, address, compiled


def word_vectors(streams: Tensor, slots: Tensor, dtype: str) -> np.ndarray:
    """streams (K, 2, N, D) in stream order -> the words' vectors end to end (M, K, 2D), float32 or float16.

    slots (2, M): where the words lie in each direction. FloatingPointError where numbers are too large for float16.
    """
    count, _, num_slots, width = streams.shape
    kernel = compiled(f"elmokit_words_{dtype}", SIZE, SIZE, SIZE, SIZE, POINTER, POINTER, POINTER, POINTER, result=INT)
    if kernel is None or not streams.is_cpu:
        both = torch.cat([streams[:, d, slots[d].to(streams.device)] for d in range(2)], dim=-1).movedim(0, 1)
        with np.errstate(over="raise"):
            return both.float().cpu().numpy().astype(dtype)
    found = np.empty((slots.shape[1], count, 2 * width), dtype)
    streams, slots = streams.float().contiguous(), slots.contiguous()
    overflows = [0, 0]

    def half(which: int) -> None:
        middle = len(found) // 2
        begin, end = (middle, len(found)) if which else (0, middle)
        places = (slots.data_ptr() + (d * len(found) + begin) * slots.element_size() for d in range(2))
        sizes = count, num_slots, width, end - begin
        overflows[which] = kernel(*sizes, address(streams), *places, found[begin:].ctypes.data)

    on_both_cores(half, torch.device("cpu"))
    if any(overflows):
        raise FloatingPointError("finite numbers have become infinite")
    return found


def sentence_vectors(streams: Tensor, slots: Tensor, begins: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    """streams (K, 2, N, D) in stream order -> for each sentence (K, T, 2D) float32, an array of its own.

    slots (2, N): where the tokens of the text lie in each direction; sentence i is tokens begins[i]..ends[i].
    """
    count, _, num_slots, width = streams.shape
    found = [np.empty((count, length, 2 * width), np.float32) for length in (ends - begins).tolist()]
    streams, slots = streams.float().cpu().contiguous(), slots.contiguous()
    kernel = compiled("elmokit_text_order", SIZE, SIZE, SIZE, SIZE, POINTER, POINTER, POINTER, POINTER)

    def one(number: int) -> None:
        begin, end, out = int(begins[number]), int(ends[number]), found[number]
        if kernel is None:
            parts = [streams[:, d, slots[d, begin:end]] for d in range(2)]
            torch.cat(parts, dim=-1, out=torch.from_numpy(out))
        else:
            fwd, bwd = (slots.data_ptr() + (d * slots.shape[1] + begin) * slots.element_size() for d in range(2))
            kernel(count, num_slots, width, end - begin, address(streams), fwd, bwd, out.ctypes.data)

    def half(which: int) -> None:
        middle = len(found) // 2
        for number in range(middle, len(found)) if which else range(middle):
            one(number)

    on_both_cores(half, torch.device("cpu"))
    return found
