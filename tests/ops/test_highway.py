"""A highway layer and its gradients against the equation in float64."""

from collections.abc import Callable

import pytest
import torch
from backends import FLOAT_DTYPES
from torch import Tensor

from elmokit.ops.functional import highway

SHAPES = [(5, 3), (130, 70), (0, 4), (1, 64)]  # (M, F)


def leaves(shape: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    """x, weight and bias of values that `dtype` can hold."""
    count, units = shape
    generator = torch.Generator().manual_seed(units)
    shapes = (count, units), (2 * units, units), (2 * units,)
    x, weight, bias = (torch.randn(size, generator=generator) for size in shapes)
    return [leaf.to(dtype).float().requires_grad_() for leaf in (x, weight * units**-0.5, bias)]


def by_definition(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    transform, carry = (x @ weight.T + bias).chunk(2, dim=1)
    carry = 1 / (1 + torch.exp(-carry))
    return carry * transform.clamp(min=0) + (1 - carry) * x


def run(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        return highway(*tensors)


@pytest.mark.parametrize("backend_name", ["reference", "portable"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(
    shape: tuple[int, int], dtype: torch.dtype, backend_name: str, backend: Callable[[str], None]
) -> None:
    backend(backend_name)
    ours = leaves(shape, dtype)
    exact = [leaf.detach().double().requires_grad_() for leaf in ours]
    found, expected = run(ours, dtype), by_definition(*exact)
    upstream = torch.randn(found.shape).to(dtype)
    pairs = [(found, expected)]
    gradients = (
        torch.autograd.grad(found, ours, upstream.to(found.dtype)),
        torch.autograd.grad(expected, exact, upstream.double()),
    )
    pairs += zip(*gradients, strict=True)
    for left, right in pairs:
        tolerance = (1e-5 if dtype == torch.float32 else 0.02) * (1 + right.abs().max().item() if right.numel() else 1)
        torch.testing.assert_close(left.double(), right, rtol=0, atol=tolerance)
    assert all(gradient.dtype == torch.float32 for gradient in gradients[0])


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_a_graph_that_is_kept_gives_its_gradients_again(dtype: torch.dtype) -> None:
    ours = leaves((130, 70), dtype)
    found = run(ours, dtype).float().square().sum()
    first, second = (torch.autograd.grad(found, ours, retain_graph=True) for _ in range(2))
    last = torch.autograd.grad(found, ours)
    for left, middle, right in zip(first, second, last, strict=True):
        assert torch.equal(left, middle) and torch.equal(left, right)


def test_memory_may_lie_in_any_order() -> None:
    ours = [leaf.detach() for leaf in leaves((130, 70), torch.float32)]
    turned = [leaf.mT.contiguous().mT.requires_grad_() if leaf.dim() == 2 else leaf.requires_grad_() for leaf in ours]
    found, expected = highway(*turned), by_definition(*turned)
    upstream = torch.randn(70, 130).mT
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    gradients = (torch.autograd.grad(result, turned, upstream) for result in (found, expected))
    for left, right in zip(*gradients, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend_name", ["reference", "portable"])
def test_a_nan_is_not_lost(backend_name: str, backend: Callable[[str], None]) -> None:
    backend(backend_name)
    x, weight, bias = (leaf.detach() for leaf in leaves((5, 3), torch.float32))
    x[2, 1] = torch.nan
    found = highway(x, weight, bias)
    assert bool(found[2].isnan().all()) and not found[[0, 1, 3, 4]].isnan().any()
