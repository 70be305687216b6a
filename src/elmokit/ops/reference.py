"""The specification of every op, in plain PyTorch, differentiated by PyTorch.

`dtype` is what is multiplied in; sums of products and the state are at least float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.ops.functional import CharFilters, LSTMResult, LSTMState, LSTMSteps, LSTMWeights
from elmokit.ops.memory import download, upload
from elmokit.runtime import accumulation_dtype

# words per convolution without gradients; on a GPU not measured
CHUNK_WORDS, CHUNK_WORDS_ON_GPU = 512, 4096


def _product(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """x @ weight.T with both rounded to `dtype`, summed in at least float32."""
    wide = accumulation_dtype(dtype)
    return x.to(dtype).to(wide) @ weight.to(dtype).to(wide).T


def lstm(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    *weights: Any,
    steps: LSTMSteps,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step at a time (bilm-tf; AllenNLP, lstm_cell_with_projection.py:207-231)."""
    input, recurrent, bias, projection = weights
    packing, (cell_clip, projection_clip), reset_state = steps
    inputs = _product(x, input, dtype) + bias
    outputs = []
    for slots, rows in packing.steps():
        h_rows, c_rows = h[:rows], c[:rows]
        if packing.resets is not None:
            resets = packing.resets[slots, None].to(x.device)
            h_rows = torch.where(resets, reset_state.h, h_rows)
            c_rows = torch.where(resets, reset_state.c, c_rows)
        gates = inputs[slots] + _product(h_rows, recurrent, dtype)
        i, g, f, o = gates.chunk(4, dim=1)
        c_rows = torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * c_rows
        c_rows = c_rows.clamp(-cell_clip, cell_clip)
        h_rows = torch.sigmoid(o) * torch.tanh(c_rows)
        if projection is not None:
            h_rows = _product(h_rows, projection, dtype)
            # TensorFlow clips projections only
            h_rows = h_rows.clamp(-projection_clip, projection_clip)
        outputs.append(h_rows)
        # the state of rows that have ended stays
        h = torch.cat([h_rows, h[rows:]])
        c = torch.cat([c_rows, c[rows:]])
    return torch.cat([h[:0], *outputs]), h, c


def _run_lstm(
    x: Tensor,
    state: LSTMState,
    steps: LSTMSteps,
    index: Tensor | None,
    *,
    weights: Sequence[Tensor | None],
    dtype: torch.dtype,
) -> LSTMResult:
    x = x if index is None else x[index]
    outputs, h, c = lstm(x, *state, *weights, steps=steps, dtype=dtype)
    return outputs, LSTMState(h, c)


def prepack_lstm(weights: LSTMWeights, dtype: torch.dtype) -> Callable[..., LSTMResult]:
    copies = [weight if weight is None else weight.detach().clone() for weight in weights]
    return partial(_run_lstm, weights=copies, dtype=dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return _product(x, weight, dtype) + bias


def highway(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    transform, carry = (_product(x, weight, dtype) + bias).chunk(2, dim=1)
    return torch.lerp(x.to(transform.dtype), torch.relu(transform), torch.sigmoid(carry)).to(dtype)


def _prepack_map(
    run: Callable[..., Tensor],
    weight: Tensor,
    bias: Tensor,
    dtype: torch.dtype,
) -> Callable[[Tensor], Tensor]:
    weight, bias = weight.detach().to(dtype, copy=True), bias.detach().clone()
    return partial(run, weight=weight, bias=bias, dtype=dtype)


prepack_linear, prepack_highway = partial(_prepack_map, linear), partial(_prepack_map, highway)


def char_conv(ids: Tensor, filters: CharFilters, dtype: torch.dtype) -> Tensor:
    characters = F.embedding(ids, filters.embedding).transpose(1, 2).to(dtype)
    pairs = zip(filters.weights, filters.biases, strict=True)
    pooled = [
        F.conv1d(characters, weight.to(dtype), bias.to(dtype)).amax(dim=2) for weight, bias in pairs
    ]
    return torch.cat(pooled, dim=1)


def _char_conv_in_chunks(ids: Tensor, filters: CharFilters, dtype: torch.dtype) -> Tensor:
    """`char_conv` in bounded memory."""
    chunks = ids.split(CHUNK_WORDS if ids.device.type == "cpu" else CHUNK_WORDS_ON_GPU)
    return torch.cat([char_conv(chunk, filters, dtype) for chunk in chunks])


def prepack_char_conv(filters: CharFilters, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    weights, biases = ([part.detach().clone() for part in parts] for parts in filters[1:])
    copied = CharFilters(filters.embedding.detach().clone(), weights, biases)
    return partial(_char_conv_in_chunks, filters=copied, dtype=dtype)


def logsumexp(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    excluded: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    logits = _product(hidden, weight, dtype) + bias
    if excluded is not None:
        is_excluded = excluded[:, None] == torch.arange(len(weight), device=hidden.device)
        # finite, so that a row with no other class has a gradient of 0 and not NaN
        logits = logits.masked_fill(is_excluded, torch.finfo(logits.dtype).min)
    return torch.logsumexp(logits, dim=1)


def _words(streams: Tensor, slots: Tensor) -> Tensor:
    """(K, 2, N, D) in stream order -> (K, M, 2D)."""
    (slots,) = upload([slots], streams.device)
    return torch.cat([streams[:, 0, slots[0]], streams[:, 1, slots[1]]], dim=-1)


def unpack_sentences(
    streams: Tensor,
    slots: Tensor,
    begins: np.ndarray,
    outs: Sequence[np.ndarray],
) -> None:
    words = download(_words(streams, slots).float()).numpy()
    for begin, out in zip(begins, outs, strict=True):
        out[...] = words[:, begin : begin + out.shape[1]]


def unpack_words(streams: Tensor, slots: Tensor, out: np.ndarray) -> bool:
    words = _words(streams, slots).movedim(0, 1)
    stored = words.to(getattr(torch, out.dtype.name))
    out[...] = download(stored).numpy()
    return bool((stored.isinf() & words.isfinite()).any())
