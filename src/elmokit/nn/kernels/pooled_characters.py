"""Convolutions over the characters of words and their maxima over all places: tables where they are compiled.

A character is one of few, so what it adds to each filter at each of the filter's places is computed once for all words,
a table; a convolution is then a sum of rows (characters.c). Elsewhere it is the products of `pooled_convolution`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.nn.kernels.directions import on_both_cores
from elmokit.nn.kernels.library import POINTER, SIZE, address, compiled
from elmokit.nn.kernels.memory import large
from elmokit.nn.kernels.pooled_convolution import pooled_convolution
from elmokit.nn.kernels.products import product_type

LANES = 32  # filters of a block, as in characters.c
MOST_PLACES = 256  # a byte says where the maximum was
MOST_CHARACTERS = 1024  # distinct ones of a call: tables of more would take more memory than they save time
WORDS_WORTH_TWO_CORES = 200  # fewer are done before a second thread has started


class _Words(NamedTuple):
    """Words in the characters of one call."""

    ids: Tensor  # (U, C) int32: rows of the tables
    used: Tensor  # (U,) int32: how many come before the padding at the end, or whatever else repeats there
    distinct: Tensor  # the characters that have a row in the tables


def _kernel(name: str, pointers: int) -> Callable[..., None] | None:
    return compiled(f"elmokit_characters_{name}", *[SIZE] * 9, *[POINTER] * pointers)


def _check_characters(ids: Tensor, num_characters: int) -> None:
    if len(ids) > 0 and not 0 <= ids.min() <= ids.max() < num_characters:
        raise IndexError(f"characters must lie in 0..{num_characters - 1}, not {int(ids.min())}..{int(ids.max())}")


def _check_width(ids: Tensor, widest: int) -> None:
    if ids.shape[1] < widest:
        raise ValueError(f"rows of {ids.shape[1]} characters are too short for filters {widest} wide: pad them")


def _used(ids: Tensor) -> Tensor:
    before_the_end = torch.arange(1, ids.shape[1] + 1, dtype=torch.int32) * (ids != ids[:, -1:])
    return before_the_end.amax(dim=1)


def _words(ids: Tensor, num_characters: int) -> _Words:
    """With rows for the characters that occur."""
    _check_characters(ids, num_characters)
    present = torch.bincount(ids.flatten(), minlength=num_characters) > 0
    rows = torch.cumsum(present, dim=0, dtype=torch.int32) - 1
    return _Words(rows[ids].contiguous(), _used(ids), present.nonzero().squeeze(1))


def _table(characters: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """characters (n, E), weight (F, E, w), bias (F,) -> (blocks, n, w * LANES); a window's first row has the bias."""
    filters, dim, width = weight.shape
    blocks = -(-filters // LANES)
    fill = blocks * LANES - filters
    products = F.pad(weight, (0, 0, 0, 0, 0, fill)).view(blocks, LANES, dim, width).permute(0, 2, 3, 1)
    first = F.pad(F.pad(bias, (0, fill)).view(blocks, 1, LANES), (0, (width - 1) * LANES))
    return torch.baddbmm(first, characters.expand(blocks, -1, -1), products.reshape(blocks, dim, width * LANES))


def _tables(rows: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> list[Tensor]:
    return [_table(rows.float(), *(part.float() for part in pair)) for pair in zip(weights, biases, strict=True)]


def _run(
    name: str, ids: Tensor, filters: Sequence[int], tables: Sequence[Tensor], others: Sequence[Tensor | None]
) -> None:
    """Call the kernel for each table, half of the blocks on each core; `others` are what else it is given."""
    kernel, stride = _kernel(name, 2 + len(others)), sum(filters)
    assert kernel is not None, "has_tables asks for it"
    pointers = [address(tensor) for tensor in others]

    def run_half(half: int) -> None:
        column = 0
        for number, table in zip(filters, tables, strict=True):
            blocks, alphabet, row = table.shape
            middle = blocks // 2
            blocks_of_half = (middle, blocks) if half else (0, middle)
            sizes = (*ids.shape, alphabet, row // LANES, number, stride, column, *blocks_of_half)
            kernel(*sizes, address(ids), address(table), *pointers)
            column += number

    if len(ids) < WORDS_WORTH_TWO_CORES:
        run_half(0)
        run_half(1)
    else:
        on_both_cores(run_half, ids.device)


class _PooledSums(torch.autograd.Function):
    """For each word and filter the largest sum of rows over all places. Places that share it are of equal characters
    (but by chance), whose gradients are equal: the first one takes it."""

    @staticmethod
    def forward(ctx: Any, words: _Words, filters: tuple[int, ...], dtype: torch.dtype, *tables):
        values = large((len(words.ids), sum(filters)), torch.float32, words.ids.device)
        places = torch.empty_like(values, dtype=torch.uint8) if any(ctx.needs_input_grad) else None
        _run("forward", words.ids, filters, tables, [words.used, values, places])
        ctx.words, ctx.filters, ctx.places, ctx.shapes = words, filters, places, [table.shape for table in tables]
        return values if dtype == torch.float32 else large(values.shape, dtype, values.device).copy_(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients):
        grad = gradients[0].contiguous()
        if grad.dtype != torch.float32:
            grad = large(grad.shape, torch.float32, grad.device).copy_(grad)
        grad_tables = [torch.empty(shape) for shape in ctx.shapes]
        _run("backward", ctx.words.ids, ctx.filters, grad_tables, [ctx.places, grad])
        return None, None, None, *grad_tables


def has_tables(embedding: Tensor) -> bool:
    """Whether sums of rows are compiled for such characters."""
    exact = torch.promote_types(embedding.dtype, torch.float32) == torch.float32
    return embedding.device.type == "cpu" and exact and _kernel("forward", 5) is not None


def pooled_characters(ids: Tensor, embedding: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """Of each filter the maximum over a word's places, plus bias, for filters of several widths side by side.

    ids (U, C), not shifted; embedding (n, E); weights (F, E, w) and biases (F,) -> (U, sum of F), in the autocast type
    where autocast is on. IndexError for a character without a row in the embedding, ValueError for C less than a width.
    """
    device = ids.device.type
    _check_width(ids, max(weight.shape[2] for weight in weights))
    words = _words(ids, len(embedding)) if has_tables(embedding) and ids.shape[1] <= MOST_PLACES else None
    if words is None or len(words.distinct) > MOST_CHARACTERS:
        characters = F.embedding(ids, embedding)
        return torch.cat([pooled_convolution(characters, *each) for each in zip(weights, biases, strict=True)], dim=1)
    with torch.autocast(device, enabled=False):
        tables = _tables(F.embedding(words.distinct, embedding), weights, biases)
    dtype = product_type(embedding)
    return _PooledSums.apply(words, tuple(len(bias) for bias in biases), dtype, *tables)  # type: ignore[no-any-return]


class PooledCharacters:
    """`pooled_characters` for use, not for training: the tables of all characters, made once.

    So a word's sums are the same to the last bit whatever words are beside it; a product of few rows may round
    otherwise than one of many.
    """

    @torch.no_grad()
    def __init__(self, embedding: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        self._num_characters, self._widest = len(embedding), max(weight.shape[2] for weight in weights)
        self._filters = tuple(len(bias) for bias in biases)
        self._tables = _tables(embedding, weights, biases)

    def __call__(self, ids: Tensor) -> Tensor:
        """ids (U, C), not shifted -> (U, sum of F) float32. Errors as of `pooled_characters`."""
        _check_width(ids, self._widest)
        _check_characters(ids, self._num_characters)
        values, rows = torch.empty(len(ids), sum(self._filters)), ids.to(torch.int32).contiguous()
        _run("forward", rows, self._filters, self._tables, [_used(ids), values, None])
        return values
