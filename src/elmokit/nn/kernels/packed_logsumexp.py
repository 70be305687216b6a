"""linear_logsumexp as compiled passes (avx512_softmax.h), each in two halves on two cores."""

from __future__ import annotations

import ctypes
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.nn.kernels.directions import on_both_cores
from elmokit.nn.kernels.library import POINTER, SIZE, address, compiled
from elmokit.nn.kernels.products import NAMES, PANEL, pack

PIECE = 256  # classes and positions of a piece of the gradient, as in avx512.c


class _Backward(ctypes.Structure):
    """The structure of avx512.c."""

    _fields_ = (
        *((name, SIZE) for name in ("positions", "classes", "depth")),
        *(
            (name, POINTER)
            for name in (
                "panels", "across", "weight", "bias", "excluded", "result", "grad",
                "grad_hidden", "grad_weight", "grad_bias", "room",
            )
        ),
    )  # fmt: skip


def _halves(total: int, whole: int) -> list[slice]:
    """Two slices of about the same size, the first of whole pieces."""
    middle = min(total, -(-total // (2 * whole)) * whole)
    return [slice(0, middle), slice(middle, total)]


def forward(hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor | None) -> Tensor:
    """As `linear_logsumexp`, in float32: products of the weight's type, bias in float32, `excluded` in int32."""
    count, (classes, depth) = len(hidden), weight.shape
    function = compiled(f"elmokit_logsumexp_{NAMES[weight.dtype]}", *[SIZE] * 3, *[POINTER] * 6)
    assert function is not None, "ask has_products first"
    most, total = torch.empty(2, count, dtype=torch.float32)
    halves = _halves(count, PANEL)

    def half(which: int) -> None:
        part = halves[which]
        panels = pack(hidden[part], weight.dtype).panels
        left_out = None if excluded is None else excluded[part]
        tensors = (panels, weight, bias, left_out, most[part], total[part])
        function(part.stop - part.start, classes, depth, *map(address, tensors))

    on_both_cores(half, hidden.device)
    return most.add_(total.log2_()).mul_(math.log(2))


def backward(
    hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor | None, result: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of hidden, weight and bias in float32. Each half of the classes is a core's."""
    count, (classes, depth) = len(hidden), weight.shape
    function = compiled(f"elmokit_logsumexp_backward_{NAMES[weight.dtype]}", POINTER)
    assert function is not None, "ask has_products first"
    packed: list[Tensor] = [hidden] * 2
    sides = [hidden, F.pad(hidden, (0, 0, 0, count % 2)).T]  # bfloat16 values are multiplied in pairs

    def pack_side(which: int) -> None:
        packed[which] = pack(sides[which], weight.dtype).panels

    on_both_cores(pack_side, hidden.device)
    shapes = (2, depth, count), (classes, depth), (classes,)
    grad_hidden, grad_weight, grad_bias = (torch.zeros(shape, dtype=torch.float32) for shape in shapes)
    halves = _halves(classes, PIECE)

    def half(which: int) -> None:
        part = halves[which]
        room = weight.new_empty(PIECE * (2 * PIECE + depth))
        left_out = None if excluded is None else excluded - part.start
        tensors = (
            *packed, weight[part], bias[part], left_out, result, grad,
            grad_hidden[which], grad_weight[part], grad_bias[part], room,
        )  # fmt: skip
        function(ctypes.byref(_Backward(count, part.stop - part.start, depth, *map(address, tensors))))

    on_both_cores(half, hidden.device)
    return grad_hidden.sum(dim=0).T.contiguous(), grad_weight, grad_bias
