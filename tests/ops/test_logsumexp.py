"""log(sum(exp(hidden @ weight.T + bias))) and its gradient against float64, by the compiled passes
and in pieces.
"""

from collections.abc import Callable

import pytest
import torch
from backends import each_native_dtype, has_native
from torch import Tensor

from elmokit.ops import portable
from elmokit.ops.functional import linear_logsumexp

DTYPES = [torch.float32, torch.bfloat16]


NATIVE = pytest.param("native", marks=pytest.mark.native)


@pytest.fixture(params=[NATIVE, "portable", "reference"], autouse=True)
def each_backend(
    request: pytest.FixtureRequest, backend: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend(request.param)
    monkeypatch.setattr(portable, "LOGITS_AT_ONCE", 1 << 15)


def case(
    positions: int, classes: int, depth: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """hidden, weight and bias: float32 numbers that `dtype` holds exactly."""
    generator = torch.Generator().manual_seed(positions + classes + depth)
    shapes = (positions, depth), (classes, depth), (classes,)
    hidden, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    hidden = hidden.to(dtype).float()
    weight = (3 * weight / depth**0.5).to(dtype).float()
    return [tensor.requires_grad_() for tensor in (hidden, weight, bias)]


def some_excluded(positions: int, classes: int) -> Tensor:
    return torch.randint(
        -1, classes, (positions,), generator=torch.Generator().manual_seed(classes)
    )


def by_definition(hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor | None) -> Tensor:
    logits = hidden @ weight.T + bias
    if excluded is not None:
        logits = logits.masked_fill(torch.arange(len(weight)) == excluded[:, None], -torch.inf)
    return torch.logsumexp(logits, dim=1)


def compute(inputs: list[Tensor], excluded: Tensor | None, dtype: torch.dtype) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        return linear_logsumexp(*inputs, excluded)  # type: ignore[arg-type]


def tolerances(dtype: torch.dtype, depth: int) -> tuple[float, float]:
    """Of values, and of gradients as parts of the largest one."""
    if dtype == torch.float32:
        return 1e-5, 1e-5
    # The compiled passes round only probabilities to bfloat16, PyTorch's products logits too.
    return (1e-5, 4e-3) if has_native(dtype, depth) else (5e-2, 5e-2)


def check(inputs: list[Tensor], excluded: Tensor | None, dtype: torch.dtype) -> None:
    of_values, of_gradients = tolerances(dtype, inputs[0].shape[1])
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    found = compute(inputs, excluded, dtype)
    expected = by_definition(*wide, excluded)
    torch.testing.assert_close(found.double(), expected, atol=of_values, rtol=0)
    upstream = torch.linspace(-1, 2, len(found))
    ours = torch.autograd.grad(found, inputs, upstream)
    theirs = torch.autograd.grad(expected, wide, upstream.double())
    for left, right in zip(ours, theirs, strict=True):
        assert left.dtype == torch.float32
        torch.testing.assert_close(
            left.double(), right, atol=float(right.abs().max()) * of_gradients, rtol=0
        )


def test_small_terms_after_a_large_one_are_not_lost() -> None:
    """50,000 unlikely classes after a likely one, which together have a probability of 5 %."""
    hidden, weight, bias = case(5, 50_000, 64)
    with torch.no_grad():
        bias[1:] -= torch.logsumexp(hidden[0] @ weight.T + bias, 0) + 3
        bias[0] = -(hidden[0] @ weight[0])
        expected = by_definition(*(tensor.double() for tensor in (hidden[:1], weight, bias)), None)
        assert compute([hidden[:1], weight, bias], None, torch.float32).double() == pytest.approx(
            expected, abs=3e-6
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("positions", "classes", "depth"),
    [
        (1, 1, 2),
        (1, 300, 8),
        (7, 5, 4),
        (64, 6, 64),
        (65, 257, 66),
        (257, 513, 34),
        (300, 1100, 130),
        (3, 3000, 128),
        (9, 20, 3),
        (9, 20, 5),
    ],
)
def test_values_and_gradients_are_those_of_float64(
    positions: int, classes: int, depth: int, dtype: torch.dtype
) -> None:
    inputs = case(positions, classes, depth, dtype)
    check(inputs, None, dtype)
    if classes > 1:
        check(inputs, some_excluded(positions, classes), dtype)


@pytest.mark.parametrize("place", [0, 1, 5, 6, 255, 256, 300, 301])
def test_a_class_is_left_out_wherever_it_stands(place: int) -> None:
    check(case(70, 302, 4), torch.full((70,), place), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_do_not_depend_on_strides(dtype: torch.dtype) -> None:
    hidden, weight, bias = (tensor.detach() for tensor in case(50, 40, 6, dtype))
    expected = compute([hidden, weight, bias], some_excluded(50, 40), dtype)
    spread = [
        hidden.T.contiguous().T,
        weight.T.contiguous().T,
        torch.stack([bias, bias], dim=1)[:, 0],
    ]
    excluded = some_excluded(50, 40).repeat_interleave(2)[::2]
    torch.testing.assert_close(
        compute(spread, excluded, dtype), expected, atol=0 if dtype == DTYPES[0] else 1e-6, rtol=0
    )


@pytest.mark.parametrize("scale", [1e4, -1e4, 1e15, -1e15])
def test_huge_logits_do_not_overflow(scale: float) -> None:
    hidden = torch.full((3, 2), abs(scale))
    weight = scale * torch.tensor([[1.0, 0], [0, 4], [2, 0]])
    inputs = [hidden.requires_grad_(), weight.requires_grad_(), torch.zeros(3, requires_grad=True)]
    found = linear_logsumexp(*inputs)
    expected = by_definition(*(tensor.detach().double() for tensor in inputs), None)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)
    assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(found.sum(), inputs))


def test_classes_of_no_probability() -> None:
    """A bias of minus infinity, in some classes, before others and after them."""
    hidden, weight, bias = case(70, 40, 4)
    with torch.no_grad():
        bias[:7] = bias[20] = bias[39] = -torch.inf
    found = linear_logsumexp(hidden, weight, bias)
    wide = by_definition(hidden, weight, bias, None)
    torch.testing.assert_close(found, wide)
    gradients = (
        torch.autograd.grad(result.sum(), [hidden, weight, bias]) for result in (found, wide)
    )
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_nan_passes_to_its_own_position() -> None:
    inputs = case(70, 40, 4)
    with torch.no_grad():
        inputs[0][66, 1] = torch.nan
    found = linear_logsumexp(*inputs)  # type: ignore[arg-type]
    assert found.isnan().nonzero().flatten().tolist() == [66]
    grad_hidden, grad_weight, grad_bias = torch.autograd.grad(found.sum(), inputs)
    assert grad_hidden.isnan().all(dim=1).nonzero().flatten().tolist() == [66]
    assert grad_weight.isnan().all()
    assert grad_bias.isnan().all()


def test_the_only_class_left_out_leaves_a_finite_value_and_no_gradient() -> None:
    inputs = case(3, 1, 4)
    found = linear_logsumexp(*inputs, torch.zeros(3, dtype=torch.int64))
    assert torch.isfinite(found).all()
    assert (found < -1e38).all()
    assert all(not grad.any() for grad in torch.autograd.grad(found, inputs, torch.ones(3)))


def test_no_positions() -> None:
    inputs = case(0, 7, 4)
    found = linear_logsumexp(*inputs)  # type: ignore[arg-type]
    assert found.shape == (0,)
    assert all(not grad.any() for grad in torch.autograd.grad(found.sum(), inputs))


@pytest.mark.parametrize("each_backend", [NATIVE], indirect=True)
@each_native_dtype
def test_native_gives_the_same_bits_on_any_number_of_threads(
    dtype: torch.dtype, num_threads: Callable[[int], None]
) -> None:
    inputs = case(200, 700, 10, dtype)
    excluded = some_excluded(200, 700)
    found = []
    for count in (1, 2, 3, 8):
        num_threads(count)
        result = compute(inputs, excluded, dtype)
        found.append([result, *torch.autograd.grad(result.sum(), inputs)])
    assert all(
        torch.equal(left, right)
        for each in found
        for left, right in zip(each, found[0], strict=True)
    )


def test_sizes_that_do_not_fit_are_refused() -> None:
    """Compiled code would read past their ends."""
    hidden = torch.randn(5, 6)
    weight = torch.randn(9, 6)
    bias = torch.randn(9)
    for arguments in (
        (hidden[:, :5], weight, bias),
        (hidden, weight, bias[:5]),
        (hidden, weight, bias, torch.full((4,), -1)),
        (hidden, weight[:0], bias[:0]),
        (hidden[:, :0], weight[:, :0], bias),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            linear_logsumexp(*arguments)
