"""`char_conv` from tables (csrc/characters.c).

There are few characters, so the product of each with every filter at every offset is computed once
for all words, as a table; a convolution is then a sum of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.ops import reference
from elmokit.ops.autograd import Tensors, differentiably
from elmokit.ops.dispatch import MAX_ALPHABET
from elmokit.ops.functional import CharFilters
from elmokit.ops.memory import allocate, converted
from elmokit.ops.native.library import native
from elmokit.threads import parallel_for

BLOCK = 32  # filters of a block, as in csrc/characters.c
MAX_PLACES = 256  # the position of a maximum is stored in a byte
CHUNK_BLOCKS = 4  # blocks of filters that a thread computes at a time
WORDS_WORTH_THREADS = 200  # fewer are finished before a second thread has started


def _used(ids: Tensor) -> Tensor:
    """The characters of each word (U,) int32 before its padding, which repeats the last one."""
    # ids 5 7 2 0 0 0: differ from the last one at positions 1 2 3, so 3 are used
    numbers = torch.arange(1, ids.shape[1] + 1, dtype=torch.int32, device="cpu")
    return (numbers * (ids != ids[:, -1:])).amax(dim=1)


def _table(characters: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """characters (n, E), weight (F, E, w), bias (F,) -> (blocks, n, w * BLOCK)."""
    filters, dim, width = weight.shape
    blocks = -(-filters // BLOCK)
    fill = blocks * BLOCK - filters
    # The row of a character in a block: what its filters add at offset 0, then at offset 1, ...;
    # at offset 0 with the bias. A filter of width 2 over the characters a b c:
    #
    #     at a b    row of a, offset 0  +  row of b, offset 1
    #     at b c                           row of b, offset 0  +  row of c, offset 1
    weight = F.pad(weight, (0, 0, 0, 0, 0, fill)).view(blocks, BLOCK, dim, width)
    weight = weight.permute(0, 2, 3, 1).reshape(blocks, dim, width * BLOCK)
    bias = F.pad(F.pad(bias, (0, fill)).view(blocks, 1, BLOCK), (0, (width - 1) * BLOCK))
    return torch.baddbmm(bias, characters.expand(blocks, -1, -1), weight)


def _tables(
    characters: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
) -> list[Tensor]:
    pairs = zip(weights, biases, strict=True)
    return [_table(characters.float(), weight.float(), bias.float()) for weight, bias in pairs]


def _for_each_block(
    name: str,
    ids: Tensor,
    filters: Sequence[int],
    tables: Sequence[Tensor],
    **arguments: Any,
) -> None:
    """Call a native function with `arguments` for chunks of each table's blocks."""
    function, jobs, column = native(name), [], 0
    for table, number in zip(tables, filters, strict=True):
        jobs += [(table, number, column, first) for first in range(0, len(table), CHUNK_BLOCKS)]
        column += number
    table_name = "table" if name == "characters_forward" else "grad_table"

    def chunk(number: int) -> None:
        table, count, at, first = jobs[number]
        blocks, alphabet, row = table.shape
        function(
            words=len(ids),
            characters=ids.shape[1],
            alphabet=alphabet,
            width=row // BLOCK,
            filters=count,
            stride=column,
            column=at,
            first=first,
            end=min(first + CHUNK_BLOCKS, blocks),
            ids=ids,
            **{table_name: table},
            **arguments,
        )

    if len(ids) < WORDS_WORTH_THREADS:
        for number in range(len(jobs)):
            chunk(number)
    else:
        parallel_for(chunk, len(jobs))


def _pooled(
    ids: Tensor,
    filters: Sequence[int],
    tables: Sequence[Tensor],
    places: Tensor | None,
) -> Tensor:
    """Each filter's maximum over all positions (U, sum of F) float32; its position, to `places`."""
    values = allocate((len(ids), sum(filters)), torch.float32)
    _for_each_block(
        "characters_forward", ids, filters, tables, used=_used(ids), values=values, places=places
    )
    return values


# --- In training: tables of the characters that occur ---------------------------------------------


def forward(
    embedding: Tensor,
    *weights_and_biases: Tensor,
    rows: Tensor,
    distinct: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensors]:
    """rows (U, C): the characters of each word, as indices into `distinct`."""
    half = len(weights_and_biases) // 2
    weights, biases = weights_and_biases[:half], weights_and_biases[half:]
    places = torch.empty(len(rows), sum(map(len, biases)), dtype=torch.uint8, device="cpu")
    tables = _tables(F.embedding(distinct, embedding), weights, biases)
    values = _pooled(rows, [len(bias) for bias in biases], tables, places)
    return converted(values, dtype), (places, embedding, *weights, *biases)


def backward(
    saved: Sequence[Tensor],
    grad: Tensor,
    rows: Tensor,
    distinct: Tensor,
    dtype: torch.dtype,
) -> Tensors:
    """The first position with the maximum gets the gradient; others have the same characters."""
    places, *inputs = saved
    grad = converted(grad.contiguous(), torch.float32)
    half = len(inputs) // 2
    with torch.enable_grad():  # a table is a small product, which PyTorch differentiates
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        tables = _tables(F.embedding(distinct, leaves[0]), leaves[1 : 1 + half], leaves[1 + half :])
    filters = [len(bias) for bias in leaves[1 + half :]]
    grad_tables = [torch.empty_like(table) for table in tables]
    _for_each_block("characters_backward", rows, filters, grad_tables, places=places, grad=grad)
    return torch.autograd.grad(tables, leaves, grad_tables)


def char_conv(ids: Tensor, filters: CharFilters, dtype: torch.dtype) -> Tensor:
    embedding, weights, biases = filters
    present = torch.bincount(ids.flatten(), minlength=len(embedding)) > 0
    distinct = present.nonzero().squeeze(1)
    if ids.shape[1] > MAX_PLACES or len(distinct) > MAX_ALPHABET:
        return reference.char_conv(ids, filters, dtype)
    rows = (torch.cumsum(present, dim=0, dtype=torch.int32) - 1)[ids].contiguous()
    settings = {"rows": rows, "distinct": distinct, "dtype": dtype}
    return differentiably(forward, backward, embedding, *weights, *biases, **settings)


# --- Without gradients: tables of all characters, once --------------------------------------------


def _sums(ids: Tensor, tables: Sequence[Tensor], filters: Sequence[int]) -> Tensor:
    """ids (U, C) -> (U, sum of F) float32: the same bits for a word in any batch."""
    return _pooled(ids.to(torch.int32).contiguous(), filters, tables, None)


def prepack_char_conv(filters: CharFilters, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    tables = _tables(filters.embedding.detach(), filters.weights, filters.biases)
    return partial(_sums, tables=tables, filters=[len(bias) for bias in filters.biases])
