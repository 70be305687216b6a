"""The compiled LSTM cell against PyTorch's own steps."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from elmokit.ops.dispatch import available_backends
from elmokit.ops.native import lstm_cell as native
from elmokit.ops.portable import lstm as portable

pytestmark = pytest.mark.skipif("native" not in available_backends(), reason="no C compiler at installation")
WIDTHS = [1, 7, 16, 37]  # less than a vector, several, and a rest


def forward(cell: ModuleType, dtype: torch.dtype, width: int, clip: float | None, traced: bool) -> list[Tensor]:
    """c and out after a step of 5 rows, and with a trace also gates, c after and c before."""
    generator = torch.Generator().manual_seed(width)
    gates = (4 * torch.randn(5, 4 * width, generator=generator)).to(dtype)
    c, out = torch.randn(5, width, generator=generator), torch.zeros(5, width, dtype=dtype)
    trace = (torch.zeros_like(c), torch.zeros_like(c)) if traced else None
    cell.cell_forward(gates, c, out, clip, trace)
    return [c, out, *((gates, *trace) if trace else ())]


def backward(cell: ModuleType, dtype: torch.dtype, width: int, clip: float | None) -> list[Tensor]:
    _, _, gates, *trace = forward(cell, dtype, width, clip, traced=True)
    generator = torch.Generator().manual_seed(width)
    grad_out, grad_c = torch.randn(5, width, generator=generator).to(dtype), torch.randn(5, width, generator=generator)
    grad_gates = torch.zeros_like(gates)
    cell.cell_backward(gates, (trace[0], trace[1]), grad_out, grad_c, grad_gates, clip)
    return [grad_gates, grad_c]


def assert_close(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    tolerance = 2e-6 if dtype == torch.float32 else 0.02
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize("width", WIDTHS)
def test_compiled_cell_equals_steps(dtype: torch.dtype, clip: float | None, width: int) -> None:
    traced, plain = (forward(native, dtype, width, clip, traced) for traced in (True, False))
    gradients = backward(native, dtype, width, clip)
    expected = forward(portable, dtype, width, clip, True)
    assert_close(traced, expected, dtype)
    assert_close(plain, expected[:2], dtype)
    assert_close(gradients, backward(portable, dtype, width, clip), dtype)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-30, 50.0, -50.0, 1e4, -1e4, float("inf"), float("-inf"), float("nan")])
def test_compiled_cell_takes_any_number(value: float) -> None:
    def step(cell: ModuleType) -> list[Tensor]:
        c, out = torch.full((2, 5), 0.5), torch.zeros(2, 5)
        cell.cell_forward(torch.full((2, 20), value), c, out, 3.0, None)
        return [c, out]

    for left, right in zip(step(native), step(portable), strict=True):
        torch.testing.assert_close(left, right, atol=2e-6, rtol=0, equal_nan=True)
