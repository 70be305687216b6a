"""From the streams of a block to the vectors of each of its sentences."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from elmokit.nn.kernels.directions import on_both_cores
from elmokit.nn.kernels.library import POINTER, SIZE, address, compiled


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
