"""The LSTM cell between two matrix products, forward and backward: compiled where it could be, else in PyTorch.

`cell.c` is built when elmokit is installed (hatch_build.py). Without a compiler everything works, only slower.
"""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

LIBRARY = Path(__file__).with_name("_cell.so")
TYPES = {torch.float32: "float", torch.bfloat16: "bfloat16"}


@lru_cache(maxsize=1)
def _loaded() -> ctypes.CDLL | None:
    size, pointer = ctypes.c_ssize_t, ctypes.c_void_p
    try:
        library = ctypes.CDLL(str(LIBRARY))
        for type_name in TYPES.values():
            for function, pointers in (("forward", 5), ("backward", 6)):
                entry = getattr(library, f"elmokit_cell_{function}_{type_name}")
                entry.argtypes, entry.restype = [size, size, *[pointer] * pointers, ctypes.c_float], None
    except (OSError, AttributeError):  # there is none, or one built from another cell.c
        return None
    return library


def _library(gates: Tensor, c: Tensor) -> ctypes.CDLL | None:
    fits = gates.device.type == "cpu" and gates.dtype in TYPES and c.dtype == torch.float32
    return _loaded() if fits else None


def _address(tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    assert tensor.is_contiguous(), "the compiled cell reads rows that lie one after the other"
    return tensor.data_ptr()


def cell_forward(
    gates: Tensor, c: Tensor, out: Tensor, clip: float | None, trace: tuple[Tensor, Tensor] | None
) -> None:
    """c <- clip(sigmoid(i) tanh(g) + sigmoid(f) c) and out <- sigmoid(o) tanh(c), in place.

    gates (B, 4H): i, g, f, o before their functions; c (B, H), float32 at least; out (B, H). All rows contiguous.
    `trace`, two (B, H) like c, takes c after and before the step; then `gates` are left as their functions made them,
    else undefined.
    """
    cells, previous = trace or (None, None)
    if (library := _library(gates, c)) is not None:
        function = getattr(library, f"elmokit_cell_forward_{TYPES[gates.dtype]}")
        function(*c.shape, *map(_address, (gates, c, out, cells, previous)), math.inf if clip is None else clip)
        return
    i, g, f, o = gates.chunk(4, dim=1)
    i.sigmoid_()
    g.tanh_()
    gates[:, 2 * c.shape[1] :].sigmoid_()  # f and o lie side by side
    if previous is not None:
        previous.copy_(c)
    c.mul_(f).addcmul_(i.to(c.dtype), g.to(c.dtype))
    if clip is not None:
        c.clamp_(-clip, clip)
    if cells is not None:
        cells.copy_(c)
    out.copy_(torch.tanh(c).mul_(o))


def cell_backward(
    gates: Tensor,
    trace: tuple[Tensor, Tensor],
    grad_out: Tensor,
    grad_c: Tensor,
    grad_gates: Tensor,
    clip: float | None,
) -> None:
    """From the trace and the gradient of `out`: fills `grad_gates`, turns `grad_c` into that of c before the step."""
    cells, previous = trace
    if (library := _library(gates, cells)) is not None:
        function = getattr(library, f"elmokit_cell_backward_{TYPES[gates.dtype]}")
        tensors = (gates, cells, previous, grad_out, grad_c, grad_gates)
        function(*cells.shape, *map(_address, tensors), math.inf if clip is None else clip)
        return
    i, g, f, o = (gate.to(cells.dtype) for gate in gates.chunk(4, dim=1))
    grad_i, grad_g, grad_f, grad_o = grad_gates.chunk(4, dim=1)
    tanh_c, grad_out = torch.tanh(cells), grad_out.to(cells.dtype)
    grad_c.addcmul_(grad_out * o, 1 - tanh_c * tanh_c)
    if clip is not None:
        grad_c *= cells.abs() < clip
    grad_i.copy_(grad_c * g * (i * (1 - i)))
    grad_g.copy_(grad_c * i * (1 - g * g))
    grad_f.copy_(grad_c * previous * (f * (1 - f)))
    grad_o.copy_(grad_out * tanh_c * (o * (1 - o)))
    grad_c *= f


def is_compiled() -> bool:
    """Whether the compiled cell is there."""
    return _loaded() is not None
