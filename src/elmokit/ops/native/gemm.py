"""Matrix products with prepacked weights (csrc/kernels.c)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.ops.memory import HUGE_PAGE, allocate, huge_pages
from elmokit.ops.native import library
from elmokit.ops.native.library import Strided, native, require
from elmokit.threads import num_threads, parallel_for

PANEL = 64  # columns of a panel
QUAD = 4  # int8 values that are multiplied at once
CHUNK_PANELS = 16  # panels that a thread prepacks at a time
# of a weight: a smaller one is multiplied before a second thread has started
BYTES_WORTH_A_THREAD = 1 << 18


def value_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a product's input rows; int8 quantizes float32 ones."""
    return torch.float32 if dtype == torch.int8 else dtype


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a product's result, unless float32 is asked for."""
    return torch.bfloat16 if dtype == torch.int8 else dtype


def quantized_bytes(depth: int) -> int:
    """The size in bytes of a row of int8 values and its scale (csrc/dtype.h)."""
    return -(-depth // QUAD) * QUAD + 4


def quantize(values: Tensor) -> Tensor:
    """values (M, depth) float32 -> (M, quantized_bytes(depth)) uint8, each row with its scale."""
    values = values.contiguous()
    rows = torch.empty(
        len(values), quantized_bytes(values.shape[1]), dtype=torch.uint8, device="cpu"
    )
    native("quantize", torch.int8)(
        rows=len(values), depth=values.shape[1], values=values, quantized=rows
    )
    return rows


def panel_order(weight: Tensor, gates: int) -> Tensor:
    """Reorder a weight (columns, ...) as in panels of `gates` gates, padded with zeros."""
    # Four gates of 20 units each, 16 to a panel; the second panel has 12 columns of zeros a gate:
    #     i0 .. i19 g0 .. g19 ..   ->   i0 .. i15 g0 .. g15 ..   i16 .. i19 0 .. 0 g16 .. g19 0 ..
    units, across = len(weight) // gates, PANEL // gates
    padded = F.pad(weight.detach().reshape(gates, units, -1), (0, 0, 0, -units % across))
    panels = padded.view(gates, -1, across, padded.shape[2]).transpose(0, 1)
    return panels.reshape(-1, *weight.shape[1:])


@dataclass(frozen=True)
class PrepackedWeight:
    """A weight (columns, depth) in the order in which a product reads it."""

    panels: Tensor
    num_panels: int
    columns: int
    depth: int

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, with the instruction set and sources that determine their layout."""
        return {**vars(self), "made_for": (library.target(), library.source_digest())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        target, sources = state.pop("made_for")
        if (target, sources) != (library.target(), library.source_digest()):
            raise ValueError(
                f"these weights were prepacked for {target} or by another elmokit: load the model "
                f"here"
            )
        vars(self).update(state)

    def in_huge_pages(self) -> PrepackedWeight:
        """A copy in huge pages, which read faster; the weight itself if it is small."""
        if self.panels.nbytes < HUGE_PAGE:
            return self
        pages = huge_pages(self.panels.nbytes).view(self.panels.dtype)
        return replace(self, panels=pages.copy_(self.panels))

    def for_each_range(self, work: Callable[[int, int], None]) -> None:
        """Call work(first_panel, end_panel) on as many threads as the caller may use and the weight
        is worth.

        With few rows a product takes as long as reading the weight, so each thread reads only a
        part of it.
        """
        ranges = max(1, min(num_threads(), self.panels.nbytes // BYTES_WORTH_A_THREAD))
        bounds = [self.num_panels * number // ranges for number in range(ranges + 1)]
        if ranges == 1:
            work(*bounds)
        else:
            parallel_for(lambda number: work(bounds[number], bounds[number + 1]), ranges)


def prepack(weight: Tensor, dtype: torch.dtype, gates: int = 1) -> PrepackedWeight:
    """Prepack a weight for products of one dtype.

    Args:
        weight: (columns, depth), of any strides.
        dtype: float32, bfloat16 or int8.
        gates: 1, 2 or 4: each panel holds the same units of all gates, which lie one after another
            in the weight.

    Returns:
        The weight in panels, for the running target.
    """
    weight = weight.detach().float()
    columns, depth = weight.shape
    require(columns % gates == 0, (weight.shape, gates))
    require(
        dtype != torch.bfloat16 or depth % 2 == 0,
        f"bfloat16 is multiplied in pairs, and {depth} is odd",
    )
    values_of_column = depth
    if dtype == torch.int8:  # with the column's scale, and the value at which its sum begins
        weight, values_of_column = quantize(weight), quantized_bytes(depth) + 4
    num_panels = -(-columns // gates // (PANEL // gates))  # each has the same units of every gate
    panels = allocate((num_panels * PANEL * values_of_column,), dtype)
    function = native("prepack", dtype)

    def run(number: int) -> None:
        first = number * CHUNK_PANELS
        function(
            columns=columns,
            depth=depth,
            gates=gates,
            first_panel=first,
            end_panel=min(first + CHUNK_PANELS, num_panels),
            weight=Strided(weight),
            column_stride=weight.stride(0),
            depth_stride=weight.stride(1),
            panels=panels,
        )

    parallel_for(run, -(-num_panels // CHUNK_PANELS))
    return PrepackedWeight(panels, num_panels, columns, depth)


def product(
    a: Tensor,
    weight: PrepackedWeight,
    bias: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Multiply rows by a prepacked weight.

    A row's result is the same, to the last bit, in any batch and on any number of threads.

    Args:
        a: (M, depth); its rows are quantized if the weight is int8.
        weight: See `prepack`.
        bias: (columns,), or None.
        out: Where to write the result (M, columns), in float32 or in the type of `result_dtype`;
            None: a new tensor in float32.

    Returns:
        a @ weight.T + bias (M, columns), summed in float32; for int8 summed exactly, then scaled in
        float32.
    """
    dtype = weight.panels.dtype
    a = a.to(value_dtype(dtype)).contiguous()
    if out is None:
        out = torch.empty(len(a), weight.columns, dtype=torch.float32, device="cpu")
    require(
        a.shape[1] == weight.depth and out.shape == (len(a), weight.columns), (a.shape, out.shape)
    )
    require(
        out.dtype in (result_dtype(dtype), torch.float32) and out.stride(1) == 1,
        (out.dtype, out.stride()),
    )
    bias = None if bias is None else bias.float().contiguous()
    require(bias is None or bias.shape == (weight.columns,), bias)
    rows = quantize(a) if dtype == torch.int8 else a

    def run(first_panel: int, end_panel: int) -> None:
        native("product", dtype)(
            rows=len(a),
            columns=weight.columns,
            depth=weight.depth,
            first_panel=first_panel,
            end_panel=end_panel,
            a=rows,
            stride=rows.shape[1],
            panels=weight.panels,
            bias=bias,
            out=Strided(out),
            out_stride=out.stride(0),
            wide=out.dtype == torch.float32,
        )

    weight.for_each_range(run)
    return out


def prepacked_highway(x: Tensor, gates: PrepackedWeight, bias: Tensor) -> Tensor:
    """Run x (M, F) through a highway layer whose weight is prepacked as two gates."""
    dtype = gates.panels.dtype
    x, bias = x.to(value_dtype(dtype)).contiguous(), bias.float().contiguous()
    require(
        (gates.columns, gates.depth) == (2 * x.shape[1], x.shape[1])
        and bias.shape == (gates.columns,),
        x.shape,
    )
    out = torch.empty_like(x)
    quantized = quantize(x) if dtype == torch.int8 else None

    def run(first_panel: int, end_panel: int) -> None:
        native("highway", dtype)(
            rows=len(x),
            units=x.shape[1],
            first_panel=first_panel,
            end_panel=end_panel,
            x=x,
            quantized=quantized,
            panels=gates.panels,
            bias=bias,
            out=out,
        )

    gates.for_each_range(run)
    return out


def prepack_linear(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    columns = prepack(weight, dtype).in_huge_pages()
    return partial(product, weight=columns, bias=bias.detach().float().clone())


def prepack_highway(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    gates = prepack(weight, dtype, gates=2).in_huge_pages()
    return partial(prepacked_highway, gates=gates, bias=bias.detach().float().clone())
