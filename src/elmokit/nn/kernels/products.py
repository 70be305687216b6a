"""Matrix products with weights that are packed once, for processors with AVX-512 (avx512.c)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from elmokit.nn.kernels.library import INT, POINTER, SIZE, address, compiled

PANEL = 64  # columns of a panel
NAMES = {torch.float32: "float", torch.bfloat16: "bfloat16"}


@lru_cache(maxsize=1)
def _level() -> int:
    """0: no AVX-512 here, or none that was built; 1: float32 products; 2: bfloat16 ones too."""
    level = compiled("elmokit_avx512", result=INT)
    return 0 if level is None else level()


def has_products(dtype: torch.dtype, device: torch.device, *depths: int) -> bool:
    """Whether there are compiled products of this type, over so many values."""
    if device.type != "cpu" or dtype not in NAMES:
        return False
    # bfloat16 values are multiplied in pairs
    return _level() >= 1 if dtype == torch.float32 else _level() >= 2 and all(depth % 2 == 0 for depth in depths)


@dataclass(frozen=True)
class PackedWeight:
    """A weight (columns, depth) in the order in which a product reads it."""

    panels: Tensor
    columns: int
    depth: int


def pack(weight: Tensor, dtype: torch.dtype, gates: int = 1) -> PackedWeight:
    """weight (columns, depth), of any strides. With `gates` = 4 a panel holds the gates of 16 units side by side."""
    weight = weight.detach().float()
    columns, depth = weight.shape
    of_gate = columns // gates
    across = PANEL // gates
    panels = torch.empty(-(-of_gate // across) * PANEL * depth, dtype=dtype)
    function = compiled(f"elmokit_pack_{NAMES[dtype]}", SIZE, SIZE, SIZE, POINTER, SIZE, SIZE, POINTER)
    assert function is not None, "pack what has_products said"
    function(columns, depth, gates, weight.data_ptr(), *weight.stride(), address(panels))
    return PackedWeight(panels, columns, depth)


def product(a: Tensor, weight: PackedWeight, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """a (M, depth) -> a @ weight.T + bias (M, columns), summed in float32; of a's type, or that of `out`.

    Computed by the calling thread alone, so that two threads can do two products.
    """
    a = a.to(weight.panels.dtype).contiguous()
    if out is None:
        out = a.new_empty(len(a), weight.columns)
    assert out.dtype in (a.dtype, torch.float32) and out.stride(1) == 1
    bias = None if bias is None else bias.float().contiguous()
    function = compiled(
        f"elmokit_product_{NAMES[a.dtype]}", SIZE, SIZE, SIZE, POINTER, SIZE, POINTER, POINTER, POINTER, SIZE, INT
    )
    assert function is not None, "pack what has_products said"
    function(
        len(a), weight.columns, weight.depth, address(a), weight.depth, address(weight.panels), address(bias),
        out.data_ptr(), out.stride(0), out.dtype == torch.float32,
    )  # fmt: skip
    return out


def highway(x: Tensor, gates: PackedWeight, bias: Tensor) -> Tensor:
    """x (M, F) -> carry * relu(transform) + (1 - carry) * x (M, F); `gates` packed as two, as `nn.char_cnn.Highway`'s.

    Computed by the calling thread alone.
    """
    out = torch.empty_like(x)
    function = compiled(f"elmokit_highway_{NAMES[x.dtype]}", SIZE, SIZE, POINTER, POINTER, POINTER, POINTER)
    assert function is not None and x.dtype == gates.panels.dtype, "pack what has_products said"
    function(*x.shape, address(x), address(gates.panels), address(bias.float()), address(out))
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
