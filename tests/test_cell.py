"""The compiled LSTM cell against PyTorch's own steps, and both inside the kernel."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from elmokit.nn.kernels import cell, library
from elmokit.nn.kernels.cell import cell_backward, cell_forward
from elmokit.nn.kernels.packed import packed_lstm
from elmokit.nn.lstm import LSTMState, lstm_reference
from elmokit.nn.packing import Packing, pack_sentences

compiled = pytest.mark.skipif(not library.is_compiled(), reason="no compiled kernels: no C compiler at installation")
WIDTHS = [1, 7, 16, 37]  # less than a vector, several, and a rest


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, it takes the compiled cell away."""
    return lambda: monkeypatch.setattr(cell, "compiled", lambda *_: None)


def forward(dtype: torch.dtype, width: int, clip: float | None, traced: bool) -> list[Tensor]:
    """c and out after a step of 5 rows, and with a trace also gates, c after and c before."""
    generator = torch.Generator().manual_seed(width)
    gates = (4 * torch.randn(5, 4 * width, generator=generator)).to(dtype)
    c, out = torch.randn(5, width, generator=generator), torch.zeros(5, width, dtype=dtype)
    trace = (torch.zeros_like(c), torch.zeros_like(c)) if traced else None
    cell_forward(gates, c, out, clip, trace)
    return [c, out, *((gates, *trace) if trace else ())]


def backward(dtype: torch.dtype, width: int, clip: float | None) -> list[Tensor]:
    _, _, gates, *trace = forward(dtype, width, clip, traced=True)
    generator = torch.Generator().manual_seed(width)
    grad_out, grad_c = torch.randn(5, width, generator=generator).to(dtype), torch.randn(5, width, generator=generator)
    grad_gates = torch.zeros_like(gates)
    cell_backward(gates, (trace[0], trace[1]), grad_out, grad_c, grad_gates, clip)
    return [grad_gates, grad_c]


def assert_close(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    tolerance = 2e-6 if dtype == torch.float32 else 0.02
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, atol=tolerance, rtol=tolerance)


@compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize("width", WIDTHS)
def test_compiled_cell_equals_steps(
    in_steps: Callable[[], None], dtype: torch.dtype, clip: float | None, width: int
) -> None:
    traced, plain = (forward(dtype, width, clip, traced) for traced in (True, False))
    gradients = backward(dtype, width, clip)
    in_steps()
    expected = forward(dtype, width, clip, True)
    assert_close(traced, expected, dtype)
    assert_close(plain, expected[:2], dtype)
    assert_close(gradients, backward(dtype, width, clip), dtype)


@compiled
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-30, 50.0, -50.0, 1e4, -1e4, float("inf"), float("-inf"), float("nan")])
def test_compiled_cell_takes_any_number(in_steps: Callable[[], None], value: float) -> None:
    def step() -> list[Tensor]:
        c, out = torch.full((2, 5), 0.5), torch.zeros(2, 5)
        cell_forward(torch.full((2, 20), value), c, out, 3.0, None)
        return [c, out]

    found = step()
    in_steps()
    for left, right in zip(found, step(), strict=True):
        torch.testing.assert_close(left, right, atol=2e-6, rtol=0, equal_nan=True)


@pytest.mark.parametrize("way", [pytest.param("compiled", marks=compiled), "in steps"])
@pytest.mark.parametrize("projected", [True, False])
@pytest.mark.parametrize("clipped", [True, False])
def test_kernel_in_float32_equals_reference_in_float64(
    in_steps: Callable[[], None], way: str, projected: bool, clipped: bool
) -> None:
    if way == "in steps":
        in_steps()
    torch.manual_seed(2)
    width, dim = 19, 6 if projected else 19
    packing = pack_sentences([4, 1, 3, 2, 5], [0, 1, 1, 0, 2], 3, reset=True).packing
    shapes = [(2, 15, 4 * width), (2, 3, dim), (2, 3, width), (2, 4 * width, dim), (2, dim, width)]
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes[: 5 if projected else 4]]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    clips = {"cell_clip": 0.7, "proj_clip": 0.5} if clipped else {"cell_clip": None, "proj_clip": None}

    found = packed_lstm(leaves[0], packing, *leaves[1:4], leaves[4] if projected else None, **clips)
    outputs, state = lstm_reference(
        exact[0], packing, LSTMState(exact[1], exact[2]), exact[3], exact[4] if projected else None, **clips
    )
    upstream = [torch.randn(part.shape) for part in found]
    ours = torch.autograd.grad(found, leaves, upstream)
    theirs = torch.autograd.grad([outputs, state.h, state.c], exact, [part.double() for part in upstream])
    for left, right in zip([*found, *ours], [outputs, state.h, state.c, *theirs], strict=True):
        torch.testing.assert_close(left.double(), right, atol=3e-5, rtol=1e-5)


def test_memory_may_lie_in_any_order() -> None:
    """Gradients and states come laid out as whoever made them chose; the compiled cell wants row after row."""
    torch.manual_seed(0)
    packing, width = Packing.rectangle(3, 2), 5
    inputs, h, c, weight = torch.randn(2, 6, 20), torch.randn(2, 2, 5), torch.randn(2, 2, 5), torch.randn(2, 20, width)

    def gradients(*order: int) -> tuple[Tensor, ...]:
        """Of leaves whose memory lies in another order of dimensions, from a gradient that does too."""

        def laid(x: Tensor) -> Tensor:
            back = torch.argsort(torch.tensor(order)).tolist()
            return x.permute(order).contiguous().permute(back)

        leaves = [laid(x).detach().requires_grad_() for x in (inputs, h, c, weight)]
        parts = packed_lstm(leaves[0], packing, leaves[1], leaves[2], leaves[3], None, cell_clip=None, proj_clip=None)
        upstream = [laid(torch.linspace(-1, 1, part.numel()).view(part.shape)) for part in parts]
        return torch.autograd.grad(parts, leaves, upstream)

    expected = gradients(0, 1, 2)
    for order in [(1, 0, 2), (0, 2, 1), (2, 1, 0)]:
        for left, right in zip(gradients(*order), expected, strict=True):
            torch.testing.assert_close(left, right, atol=1e-6, rtol=0)
