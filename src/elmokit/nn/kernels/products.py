"""Matrix products with weights that are packed once, for processors with AVX-512 (avx512.c)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.nn.kernels.library import INT, POINTER, SIZE, address, compiled
from elmokit.nn.kernels.memory import HUGE_PAGE, in_huge_pages

PANEL = 64  # columns of a panel
NAMES = {torch.float32: "float", torch.bfloat16: "bfloat16", torch.int8: "int8"}
QUAD = 4  # whole numbers that are multiplied at once
MOST_WHOLE_NUMBERS = 1 << 16  # whose products, 255 * 127 at most, add up to 32 bits


@lru_cache(maxsize=1)
def _level() -> int:
    """0: no AVX-512 here, or none that was built; 1: float32 products; 2: bfloat16 ones too."""
    level = compiled("elmokit_avx512", result=INT)
    return 0 if level is None else level()


def _multiplies_int8() -> bool:
    function = compiled("elmokit_avx512_int8", result=INT)
    return function is not None and bool(function())


def has_products(dtype: torch.dtype, device: torch.device, *depths: int) -> bool:
    """Whether there are compiled products of this type, over so many values."""
    if device.type != "cpu" or dtype not in NAMES or _level() < 1:
        return False
    if dtype == torch.bfloat16:
        return _level() >= 2 and all(depth % 2 == 0 for depth in depths)  # they are multiplied in pairs
    return dtype == torch.float32 or (_multiplies_int8() and max(depths, default=0) <= MOST_WHOLE_NUMBERS)


def value_type(dtype: torch.dtype) -> torch.dtype:
    """Of what is multiplied in products of this type: rows become whole numbers within them."""
    return torch.float32 if dtype == torch.int8 else dtype


def result_type(dtype: torch.dtype) -> torch.dtype:
    """Of what products of this type write when float32 is not asked for."""
    return torch.bfloat16 if dtype == torch.int8 else dtype


def quantised_bytes(depth: int) -> int:
    """Of a row of whole numbers and their scale (avx512_int8.h)."""
    return -(-depth // QUAD) * QUAD + 4


def _quantised(values: Tensor) -> Tensor:
    """values (M, depth) float32 -> rows of bytes."""
    values = values.contiguous()
    rows = torch.empty(len(values), quantised_bytes(values.shape[1]), dtype=torch.uint8)
    function = compiled("elmokit_quantise", SIZE, SIZE, POINTER, POINTER)
    assert function is not None
    function(*values.shape, address(values), address(rows))
    return rows


def columns_in_panels(columns: int, gates: int) -> int:
    """Of whole panels, each with the same units of every gate."""
    across = PANEL // gates
    return -(-columns // gates // across) * PANEL


def in_panels(weight: Tensor, gates: int) -> Tensor:
    """weight (columns, ...) -> its columns as panels of so many gates have them, with zeros up to whole panels."""
    of_gate, across = len(weight) // gates, PANEL // gates
    units = F.pad(weight.detach().reshape(gates, of_gate, -1), (0, 0, 0, -of_gate % across))
    return units.view(gates, -1, across, units.shape[2]).transpose(0, 1).reshape(-1, *weight.shape[1:])


@dataclass(frozen=True)
class PackedWeight:
    """A weight (columns, depth) in the order in which a product reads it."""

    panels: Tensor
    columns: int
    depth: int

    def in_huge_pages(self) -> PackedWeight:
        """The same where it is read faster, if it is large: worth the copy for a weight that is used often."""
        size = self.panels.numel() * self.panels.itemsize
        if size < HUGE_PAGE:
            return self
        return replace(self, panels=in_huge_pages(size).view(self.panels.dtype).copy_(self.panels))


def pack(weight: Tensor, dtype: torch.dtype, gates: int = 1) -> PackedWeight:
    """weight (columns, depth), of any strides. With `gates` = 4 a panel holds the gates of 16 units side by side."""
    weight = weight.detach().float()
    columns, depth = weight.shape
    assert weight.stride(0) < 1 << 27, "columns that lie farther apart are not found by 32 bits"
    assert has_products(dtype, weight.device, depth) and columns % gates == 0, "ask has_products first"
    of_column = depth
    if dtype == torch.int8:  # and what a column's sum begins with, beside its scale
        weight, of_column = _quantised(weight), quantised_bytes(depth) + 4
    panels = torch.empty(columns_in_panels(columns, gates) * of_column, dtype=dtype)
    function = compiled(f"elmokit_pack_{NAMES[dtype]}", SIZE, SIZE, SIZE, POINTER, SIZE, SIZE, POINTER)
    assert function is not None
    function(columns, depth, gates, weight.data_ptr(), *weight.stride(), address(panels))
    return PackedWeight(panels, columns, depth)


def product(a: Tensor, weight: PackedWeight, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """a (M, depth) -> a @ weight.T + bias (M, columns), summed in float32; of the weight's type, or that of `out`.

    With a weight in int8 the rows of a are quantised too, and the result is of bfloat16, or of the type of `out`.
    Computed by the calling thread alone, so that two threads can do two products.
    """
    dtype = weight.panels.dtype
    a = a.to(value_type(dtype)).contiguous()
    if out is None:
        out = torch.empty(len(a), weight.columns, dtype=result_type(dtype))
    assert a.shape[1] == weight.depth and out.shape == (len(a), weight.columns), (a.shape, weight, out.shape)
    assert out.dtype in (result_type(dtype), torch.float32) and out.stride(1) == 1
    bias = None if bias is None else bias.float().contiguous()
    assert bias is None or bias.shape == (weight.columns,)
    function = compiled(
        f"elmokit_product_{NAMES[dtype]}", SIZE, SIZE, SIZE, POINTER, SIZE, POINTER, POINTER, POINTER, SIZE, INT
    )
    assert function is not None
    rows = _quantised(a) if dtype == torch.int8 else a
    function(
        len(a), weight.columns, weight.depth, address(rows), rows.shape[1], address(weight.panels), address(bias),
        out.data_ptr(), out.stride(0), out.dtype == torch.float32,
    )  # fmt: skip
    return out


def packed_highway(x: Tensor, gates: PackedWeight, bias: Tensor) -> Tensor:
    """x (M, F) -> carry * relu(transform) + (1 - carry) * x (M, F); `gates` packed as two, as `nn.char_cnn.Highway`'s.

    Computed by the calling thread alone.
    """
    dtype = gates.panels.dtype
    x, bias = x.to(value_type(dtype)).contiguous(), bias.float().contiguous()
    assert (gates.columns, gates.depth) == (2 * x.shape[1], x.shape[1]) and bias.shape == (gates.columns,)
    out = torch.empty_like(x)
    tensors = [x, gates.panels, bias, out, *([_quantised(x)] if dtype == torch.int8 else [])]
    function = compiled(f"elmokit_highway_{NAMES[dtype]}", SIZE, SIZE, *[POINTER] * len(tensors))
    assert function is not None
    function(*x.shape, *map(address, tensors))
    return out


def product_type(weight: Tensor) -> torch.dtype:
    """The type of products with this weight: that of autocast where it is on."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def multiply_into(out: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """out <- a @ weight.T + bias, of one type, by the fastest product there is for a weight that is used once."""
    if a.dtype == torch.float32 and has_products(a.dtype, a.device):  # in bfloat16 torch's own are as fast
        return product(a, pack(weight, a.dtype), bias, out)
    return torch.mm(a, weight.T, out=out) if bias is None else torch.addmm(bias, a, weight.T, out=out)
