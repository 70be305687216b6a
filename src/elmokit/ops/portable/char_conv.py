"""`char_conv` as products over windows, a few words at a time, so that they stay in cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably

VALUES_AT_ONCE = 1 << 20


def _chunks(characters: Tensor, kernel: Tensor, values_at_once: int) -> Iterator[slice]:
    size = max(1, values_at_once // (characters.shape[1] * kernel.shape[1]))
    for begin in range(0, len(characters), size):
        yield slice(begin, min(begin + size, len(characters)))


def _windows(characters: Tensor, kernel: Tensor) -> Tensor:
    """(U, C, E) -> (U, C-w+1, w*E): what a filter sees at each place."""
    width = kernel.shape[0] // characters.shape[2]
    places = characters.shape[1] - width + 1
    return torch.cat([characters[:, offset : offset + places] for offset in range(width)], dim=2)


def forward(characters: Tensor, kernel: Tensor, values_at_once: int) -> tuple[tuple[Tensor], Tensors]:
    """characters (U, C, E) and kernel (w * E, F) -> (U, F)."""
    pooled = characters.new_empty(len(characters), kernel.shape[1])
    for words in _chunks(characters, kernel, values_at_once):
        torch.amax(_windows(characters[words], kernel) @ kernel, dim=1, out=pooled[words])
    return (pooled,), (characters, kernel)


def backward(saved: Tensors, gradients: Sequence[Tensor], last: bool, values_at_once: int) -> Tensors:
    """Places that share the maximum share the gradient, as with amax."""
    characters, kernel = saved
    assert characters is not None and kernel is not None
    grad_kernel = torch.zeros_like(kernel, dtype=torch.promote_types(kernel.dtype, torch.float32))
    grad_characters = torch.zeros_like(characters)
    width = kernel.shape[0] // characters.shape[2]
    for words in _chunks(characters, kernel, values_at_once):
        windows = _windows(characters[words], kernel)
        values = windows @ kernel
        is_maximum = (values == values.amax(dim=1, keepdim=True)).to(gradients[0].dtype)
        is_maximum *= (gradients[0][words] / is_maximum.sum(dim=1))[:, None]
        flat = is_maximum.flatten(0, 1)
        grad_kernel += windows.flatten(0, 1).T @ flat
        grad_windows = (flat @ kernel.T).view(*windows.shape[:2], width, -1)
        for offset in range(width):
            grad_characters[words, offset : offset + windows.shape[1]] += grad_windows[:, :, offset]
    return grad_characters, grad_kernel


def pooled_products(
    characters: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype, values_at_once: int = VALUES_AT_ONCE
) -> Tensor:
    """characters (U, C, E), weight (F, E, w), bias (F,) -> (U, F): filters of one width."""
    kernel = weight.permute(2, 1, 0).flatten(0, 1).to(dtype)
    implementation = sys.modules[__name__]
    (pooled,) = differentiably(implementation, characters.to(dtype), kernel, values_at_once=values_at_once)
    return pooled + bias.to(dtype)


def char_conv(
    ids: Tensor, embedding: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], dtype: torch.dtype
) -> Tensor:
    characters = F.embedding(ids, embedding)
    filters = zip(weights, biases, strict=True)
    return torch.cat([pooled_products(characters, weight, bias, dtype) for weight, bias in filters], dim=1)


def prepack_char_conv(
    embedding: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    own = [[tensor.detach().clone() for tensor in tensors] for tensors in (weights, biases)]
    return partial(char_conv, embedding=embedding.detach().clone(), weights=own[0], biases=own[1], dtype=dtype)
