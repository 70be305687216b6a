"""A linear map and a highway layer, and their gradients, against their equations in float64."""

import pickle
from collections.abc import Callable

import pytest
import torch
from backends import FLOAT_DTYPES
from torch import Tensor

from elmokit.ops.functional import highway, linear, prepack

BACKENDS = ["reference", "portable", pytest.param("native", marks=pytest.mark.native)]
SHAPES = [(5, 3, 4), (130, 70, 33), (0, 4, 2), (1, 64, 1)]  # (N, K, M)


def highway_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    transform, carry = (x @ weight.T + bias).chunk(2, dim=1)
    carry = 1 / (1 + torch.exp(-carry))
    return carry * transform.clamp(min=0) + (1 - carry) * x


EQUATIONS = {linear: lambda x, weight, bias: x @ weight.T + bias, highway: highway_layer}
each_operation = pytest.mark.parametrize("operation", EQUATIONS)


def leaves(operation: Callable, shape: tuple[int, int, int], dtype: torch.dtype) -> list[Tensor]:
    """x, weight and bias of values that `dtype` can hold."""
    rows, depth, columns = shape
    columns = 2 * depth if operation is highway else columns
    generator = torch.Generator().manual_seed(depth)
    sizes = (rows, depth), (columns, depth), (columns,)
    x, weight, bias = (torch.randn(size, generator=generator) for size in sizes)
    return [leaf.to(dtype).float().requires_grad_() for leaf in (x, weight * depth**-0.5, bias)]


def values_and_gradients(
    operation: Callable, tensors: list[Tensor], dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """The result, and twice the gradients of x, weight and bias, for an upstream gradient that its
    shape determines.
    """
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = operation(*tensors)
    upstream = (
        torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
        .to(dtype)
        .to(found.dtype)
    )
    kept = torch.autograd.grad(found, tensors, upstream, retain_graph=True)
    gradients = torch.autograd.grad(found, tensors, upstream)
    assert all(map(torch.equal, kept, gradients))
    return [found.detach(), *gradients]


@each_operation
@pytest.mark.parametrize("backend_name", ["reference", "portable"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(
    operation: Callable,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    backend_name: str,
    backend: Callable[[str], None],
) -> None:
    backend(backend_name)
    ours = leaves(operation, shape, dtype)
    exact = [leaf.detach().double().requires_grad_() for leaf in ours]
    found = values_and_gradients(operation, ours, dtype)
    expected = EQUATIONS[operation](*exact)
    upstream = (
        torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(dtype).double()
    )
    for left, right in zip(
        found, [expected, *torch.autograd.grad(expected, exact, upstream)], strict=True
    ):
        largest = right.abs().max().item() if right.numel() else 0
        tolerance = (1e-5 if dtype == torch.float32 else 0.02) * (1 + largest)
        torch.testing.assert_close(left.double(), right, rtol=0, atol=tolerance)
    assert all(gradient.dtype == torch.float32 for gradient in found[1:])


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("dtype", [*FLOAT_DTYPES, torch.float64])
@pytest.mark.parametrize("shape", [*SHAPES, (1, 40, 96), (7, 2, 1), (64, 512, 64)])
def test_a_prepacked_map_is_a_copy_that_can_be_sent_to_another_process(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    backend_name: str,
    backend: Callable[[str], None],
) -> None:
    backend(backend_name)
    x, weight, bias = (leaf.detach() for leaf in leaves(linear, shape, dtype))
    expected = x.double() @ weight.double().T + bias.double()
    weight = weight.T.contiguous().T  # its memory may lie in any order
    run = prepack("linear", (weight, bias), dtype)
    weight.zero_(), bias.zero_()
    found = run(x)
    tolerance = 0.02 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(pickle.loads(pickle.dumps(run))(x), found)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_the_number_of_threads_does_not_change_a_bit(
    threads: int, num_threads: Callable[[int], None], without_native: None
) -> None:
    found = []
    for number in (1, threads):
        num_threads(number)
        found.append(
            values_and_gradients(
                linear, leaves(linear, (1030, 200, 90), torch.float32), torch.float32
            )
        )
    assert all(map(torch.equal, *found))


@each_operation
def test_memory_may_lie_in_any_order(operation: Callable) -> None:
    ours = [leaf.detach() for leaf in leaves(operation, (130, 70, 33), torch.float32)]
    turned = [
        leaf.mT.contiguous().mT.requires_grad_() if leaf.dim() == 2 else leaf.requires_grad_()
        for leaf in ours
    ]
    straight = [leaf.detach().contiguous().requires_grad_() for leaf in ours]
    pairs = zip(
        *(values_and_gradients(operation, leaves, torch.float32) for leaves in (turned, straight)),
        strict=True,
    )
    for left, right in pairs:
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


@each_operation
@pytest.mark.parametrize("backend_name", ["reference", "portable"])
def test_a_nan_is_not_lost(
    operation: Callable, backend_name: str, backend: Callable[[str], None]
) -> None:
    backend(backend_name)
    x, weight, bias = (leaf.detach() for leaf in leaves(operation, (5, 3, 4), torch.float32))
    x[2, 1] = torch.nan
    found = operation(x, weight, bias)
    assert bool(found[2].isnan().all())
    assert not found[[0, 1, 3, 4]].isnan().any()
