"""Convolution over a word's characters and its maximum over all places, a few words at a time, staying in cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

VALUES_AT_ONCE = 1 << 20


def _chunks(characters: Tensor, kernel: Tensor) -> Iterator[slice]:
    size = max(1, VALUES_AT_ONCE // (characters.shape[1] * kernel.shape[1]))
    for begin in range(0, len(characters), size):
        yield slice(begin, min(begin + size, len(characters)))


def _windows(characters: Tensor, kernel: Tensor) -> Tensor:
    """(U, C, E) -> (U, C-w+1, w*E): what the filter sees at each place."""
    width = kernel.shape[0] // characters.shape[2]
    places = characters.shape[1] - width + 1
    return torch.cat([characters[:, offset : offset + places] for offset in range(width)], dim=2)


class _PooledProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, characters, kernel):
        pooled = characters.new_empty(len(characters), kernel.shape[1])
        for words in _chunks(characters, kernel):
            torch.amax(_windows(characters[words], kernel) @ kernel, dim=1, out=pooled[words])
        ctx.save_for_backward(characters, kernel)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients):
        characters, kernel = ctx.saved_tensors
        (grad,) = gradients
        wide = torch.promote_types(kernel.dtype, torch.float32)
        grad_kernel = torch.zeros_like(kernel, dtype=wide)
        grad_characters = torch.zeros_like(characters)
        width, embedding = kernel.shape[0] // characters.shape[2], characters.shape[2]
        for words in _chunks(characters, kernel):
            windows = _windows(characters[words], kernel)
            values = windows @ kernel
            # Places that share the maximum share the gradient, as with amax.
            here = (values == values.amax(dim=1, keepdim=True)).to(grad.dtype)
            here *= (grad[words] / here.sum(dim=1))[:, None]
            flat = here.flatten(0, 1)
            grad_kernel += windows.flatten(0, 1).T @ flat
            grad_windows = (flat @ kernel.T).view(*windows.shape[:2], width, embedding)
            for offset in range(width):
                grad_characters[words, offset : offset + windows.shape[1]] += grad_windows[:, :, offset]
        return grad_characters, grad_kernel.to(kernel.dtype)


def pooled_convolution(characters: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """characters (U, C, E), weight (F, E, w), bias (F,) -> (U, F): the maximum over the C-w+1 places, plus bias.

    Equal to `F.conv1d(characters.transpose(1, 2), weight, bias).amax(2)`, in the autocast type where autocast is on.
    """
    device = characters.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    kernel = weight.permute(2, 1, 0).flatten(0, 1).to(dtype)  # (w * E, F)
    return _PooledProduct.apply(characters.to(dtype), kernel) + bias.to(dtype)  # type: ignore[no-any-return]
