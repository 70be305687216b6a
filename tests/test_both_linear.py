"""A linear map of each direction's own, against float64."""

import pytest
import torch
from processors import WIDE_AND_LOW
from torch import Tensor

from elmokit.nn.kernels import products
from elmokit.nn.kernels.both_linear import both_linear

SHAPES = [(1, 1, 1), (7, 3, 5), (130, 70, 66), (0, 4, 6)]  # (N, D, M)


def leaves(shape: tuple[int, int, int], dtype: torch.dtype) -> list[Tensor]:
    """x, weight and bias of values that `dtype` can hold."""
    n, d, m = shape
    generator = torch.Generator().manual_seed(n)
    shapes = (2, n, d), (2, m, d), (2, m)
    return [torch.randn(size, generator=generator).to(dtype).float().requires_grad_() for size in shapes]


def by_definition(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.stack([x[d] @ weight[d].T + bias[d] for d in range(2)])


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", WIDE_AND_LOW)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(
    shape: tuple[int, int, int], dtype: torch.dtype, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(products, "_level", lambda: 0)
    ours = leaves(shape, dtype)
    exact = [leaf.detach().double().requires_grad_() for leaf in ours]
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = both_linear(*ours)
    expected = by_definition(*exact)
    assert found.dtype == dtype
    upstream = torch.randn(found.shape).to(dtype)
    pairs = [(found, expected)]
    gradients = torch.autograd.grad(found, ours, upstream), torch.autograd.grad(expected, exact, upstream.double())
    pairs += zip(*gradients, strict=True)
    for left, right in pairs:
        tolerance = (1e-5 if dtype == torch.float32 else 0.01) * (1 + right.abs().max().item() if right.numel() else 1)
        torch.testing.assert_close(left.double(), right, rtol=0, atol=tolerance)
    assert all(gradient.dtype == torch.float32 for gradient in gradients[0])


def test_one_input_for_both_directions() -> None:
    x, weight, bias = leaves((7, 3, 5), torch.float32)
    shared = x[0].detach().requires_grad_()
    both = shared.expand(2, 7, 3)
    (found,) = torch.autograd.grad(both_linear(both, weight, bias).sum(), shared)
    (expected,) = torch.autograd.grad(by_definition(both, weight, bias).sum(), shared)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_memory_may_lie_in_any_order() -> None:
    ours = [leaf.detach() for leaf in leaves((7, 3, 5), torch.float32)]
    expected = by_definition(*ours)
    turned = [leaf.transpose(0, -1).contiguous().transpose(0, -1).requires_grad_() for leaf in ours]
    found = both_linear(*turned)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn(5, 7, 2).permute(2, 1, 0)
    gradients = (torch.autograd.grad(result, turned, upstream) for result in (found, by_definition(*turned)))
    for left, right in zip(*gradients, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wanted", [[0], [1], [2], [1, 2]])
def test_gradients_of_some_inputs_are_those_of_all(wanted: list[int]) -> None:
    everything = leaves((7, 3, 5), torch.float32)
    expected = torch.autograd.grad(both_linear(*everything).square().sum(), everything)
    some = [leaf.detach().requires_grad_(number in wanted) for number, leaf in enumerate(everything)]
    found = torch.autograd.grad(both_linear(*some).square().sum(), [some[number] for number in wanted])
    for number, gradient in zip(wanted, found, strict=True):
        assert torch.equal(gradient, expected[number])


def test_a_second_derivative_is_refused() -> None:
    ours = leaves((7, 3, 5), torch.float32)
    (gradient,) = torch.autograd.grad(both_linear(*ours).square().sum(), ours[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
