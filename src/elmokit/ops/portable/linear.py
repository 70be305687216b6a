"""`linear` and `highway` with their gradients, and with prepacked weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably
from elmokit.ops.workspace import allocate, allocate_like, converted
from elmokit.threads import parallel_rows

# of a GEMM's rows, each computed by one thread; a fixed number, whatever the number of threads
CHUNKS = 8
CHUNK_ROWS = 32  # of a highway layer, which stay in cache for several passes
ROWS_OF_AN_OCTAVE = 8  # numbers of rows per power of two with which oneDNN is called


# --- With gradients: the same bits on any number of threads, which BLAS alone does not promise ----


def gemm(
    a: Tensor, b: Tensor, bias: Tensor | None = None, out: Tensor | None = None, add: bool = False
) -> Tensor:
    """a (M, K) @ b (K, N), plus a bias (N,), or with `add` plus the values of `out`."""
    result = allocate((len(a), b.shape[1]), a.dtype, a.device) if out is None else out

    def run(rows: slice) -> None:
        if add or bias is not None:
            torch.addmm(result[rows] if bias is None else bias, a[rows], b, out=result[rows])
        else:
            torch.mm(a[rows], b, out=result[rows])

    parallel_rows(run, len(a), max(1, -(-len(a) // CHUNKS)), a.device)
    return result


def _bias_gradient(grad: Tensor, dtype: torch.dtype) -> Tensor:
    return grad.sum(dim=0, dtype=torch.promote_types(dtype, torch.float32))


def linear_forward(
    x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype
) -> tuple[tuple[Tensor], Tensors]:
    x, weight = converted(x, dtype), converted(weight, dtype)
    return (gemm(x, weight.T, bias.to(dtype)),), (x, weight)


def linear_backward(
    saved: Sequence[Tensor], gradients: Sequence[Tensor], dtype: torch.dtype
) -> Tensors:
    (x, weight), grad = saved, gradients[0]
    return gemm(grad, weight), gemm(grad.T, x), _bias_gradient(grad, dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return differentiably(linear_forward, linear_backward, x, weight, bias, dtype=dtype)[0]


def highway_forward(
    x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype
) -> tuple[tuple[Tensor], Tensors]:
    x, weight = x.to(dtype).contiguous(), converted(weight, dtype)
    gates, out = gemm(x, weight.T, bias.to(dtype)), allocate_like(x)

    def run(rows: slice) -> None:
        transform, carry = gates[rows].chunk(2, dim=1)
        torch.lerp(x[rows], transform.relu_(), carry.sigmoid_(), out=out[rows])

    parallel_rows(run, len(x), CHUNK_ROWS, x.device)
    return (out,), (gates, x, weight)


def highway_backward(
    saved: Sequence[Tensor], gradients: Sequence[Tensor], dtype: torch.dtype
) -> Tensors:
    gates, x, weight = saved
    grad_x, grad_gates = allocate_like(x), allocate_like(gates)

    def run(rows: slice) -> None:
        transform, carry = gates[rows].chunk(2, dim=1)
        grad_transform, grad_carry = grad_gates[rows].chunk(2, dim=1)
        through = gradients[0][rows] * carry
        torch.mul(through, transform > 0, out=grad_transform)
        torch.mul(transform - x[rows], through, out=grad_carry).mul_(1 - carry)
        torch.sub(gradients[0][rows], through, out=grad_x[rows])

    parallel_rows(run, len(x), CHUNK_ROWS, x.device)
    gemm(grad_gates, weight, out=grad_x, add=True)
    return grad_x, gemm(grad_gates.T, x), _bias_gradient(grad_gates, dtype)


def highway(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return differentiably(highway_forward, highway_backward, x, weight, bias, dtype=dtype)[0]


# --- Prepacked weights ----------------------------------------------------------------------------
#
# In oneDNN's own layout, with which embedding in float32 takes a quarter less time on a CPU than
# with PyTorch's GEMM. PyTorch has these functions for its compiler only, so they are tried before
# they are used.


def _multiply(x: Tensor, prepacked: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, prepacked, bias, "none", [], "")


def _prepacked(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


@cache
def _has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN's GEMM of a dtype is there, and right for small integers."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    x = torch.arange(70 * 40, device="cpu").remainder(3).view(70, 40).to(dtype)
    try:
        return torch.equal(_multiply(x, _prepacked(x), None), x @ x.T)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


class PrepackedLinear:
    """x @ weight.T, plus a bias if there is one, in one dtype; keeps a copy of `weight`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.dtype, self._bias = dtype, None if bias is None else bias.detach().to(dtype, copy=True)
        self._prepack(weight.detach().to(dtype, copy=True).contiguous())

    def _prepack(self, weight: Tensor) -> None:
        self._is_prepacked = weight.device.type == "cpu" and _has_onednn(self.dtype)
        self._weight = _prepacked(weight) if self._is_prepacked else weight

    def __call__(self, x: Tensor) -> Tensor:
        """x (M, K) -> (M, N)."""
        x, rows = x.to(self.dtype), len(x)
        if not self._is_prepacked:
            return F.linear(x, self._weight, self._bias)
        if rows == 0:
            return x.new_empty(0, len(self._weight))
        # oneDNN compiles, and keeps, a kernel for each number of rows: zeros are appended, so that
        # there are few.
        step = max(1, (1 << (rows - 1).bit_length()) // ROWS_OF_AN_OCTAVE)
        return _multiply(F.pad(x, (0, 0, 0, -rows % step)).contiguous(), self._weight, self._bias)[
            :rows
        ]

    def __getstate__(self) -> dict[str, Any]:
        """The weight in PyTorch's layout: oneDNN's depends on the machine."""
        return {**vars(self), "_weight": self._weight.to_dense()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepack(self._weight)


prepack_linear = PrepackedLinear


def _run_prepacked_highway(gates: PrepackedLinear, x: Tensor) -> Tensor:
    transform, carry = gates(x).chunk(2, dim=1)
    return torch.lerp(x.to(gates.dtype), transform.relu_(), carry.sigmoid_())


def prepack_highway(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return partial(_run_prepacked_highway, PrepackedLinear(weight, bias, dtype))
