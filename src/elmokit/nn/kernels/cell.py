"""The LSTM cell between two matrix products, forward and backward: compiled where it could be, else in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from elmokit.nn.kernels.library import FLOAT, POINTER, SIZE, address, compiled

TYPES = {torch.float32: "float", torch.bfloat16: "bfloat16"}


def _kernel(name: str, pointers: int, gates: Tensor, c: Tensor) -> Callable[..., None] | None:
    if gates.device.type != "cpu" or gates.dim() != 2 or gates.dtype not in TYPES or c.dtype != torch.float32:
        return None
    return compiled(f"elmokit_cell_{name}_{TYPES[gates.dtype]}", SIZE, SIZE, *[POINTER] * pointers, FLOAT)


def cell_forward(
    gates: Tensor, c: Tensor, out: Tensor, clip: float | None, trace: tuple[Tensor, Tensor] | None
) -> None:
    """c <- clip(sigmoid(i) tanh(g) + sigmoid(f) c) and out <- sigmoid(o) tanh(c), in place.

    gates (B, 4H): i, g, f, o before their functions; c (B, H), float32 at least; out (B, H). All rows contiguous. Or
    (2, B, .) of both directions, in any memory, which is not compiled.
    `trace`, two (B, H) like c, takes c after and before the step; then `gates` are left as their functions made them,
    else undefined.
    """
    cells, previous = trace or (None, None)
    if (kernel := _kernel("forward", 5, gates, c)) is not None:
        kernel(*c.shape, *map(address, (gates, c, out, cells, previous)), math.inf if clip is None else clip)
        return
    wide = gates.to(c.dtype)
    i, g, f, o = wide.chunk(4, dim=-1)
    i.sigmoid_()
    g.tanh_()
    wide[..., 2 * c.shape[-1] :].sigmoid_()  # f and o lie side by side
    if previous is not None:
        previous.copy_(c)
    c.mul_(f).addcmul_(i, g)
    if clip is not None:
        c.clamp_(-clip, clip)
    if cells is not None:
        cells.copy_(c)
        gates.copy_(wide)
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
    if (kernel := _kernel("backward", 6, gates, cells)) is not None:
        tensors = (gates, cells, previous, grad_out, grad_c, grad_gates)
        kernel(*cells.shape, *map(address, tensors), math.inf if clip is None else clip)
        return
    i, g, f, o = (gate.to(cells.dtype) for gate in gates.chunk(4, dim=-1))
    grad_i, grad_g, grad_f, grad_o = grad_gates.chunk(4, dim=-1)
    tanh_c, grad_out = torch.tanh(cells), grad_out.to(cells.dtype)
    grad_c.addcmul_(grad_out * o, 1 - tanh_c * tanh_c)
    if clip is not None:
        grad_c *= cells.abs() < clip
    grad_i.copy_(grad_c * g * (i * (1 - i)))
    grad_g.copy_(grad_c * i * (1 - g * g))
    grad_f.copy_(grad_c * previous * (f * (1 - f)))
    grad_o.copy_(grad_out * tanh_c * (o * (1 - o)))
    grad_c *= f
