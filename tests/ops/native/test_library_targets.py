"""Every target of the library that this processor runs: the same results, but for rounding."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from oracle import sigmoid
from torch import Tensor

from elmokit.ops.functional import LSTMState, linear_logsumexp, lstm
from elmokit.ops.native import library
from elmokit.ops.native.gemm import prepack, prepacked_highway, product
from elmokit.ops.packing import Packing

pytestmark = pytest.mark.native
DTYPES = [torch.float32, torch.bfloat16, torch.int8]


@pytest.fixture(params=library.targets())
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(library, "target", lambda: request.param)
    return request.param


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_integers_are_exact_on_each_target(target: str, dtype: torch.dtype) -> None:
    for rows, columns, depth in [(1, 70, 6), (2, 64, 256), (3, 5, 258), (13, 200, 770)]:
        a = torch.arange(rows * depth) % 7 - 3.0
        weight = torch.arange(columns * depth) % 5 - 2.0
        a = a.view(rows, depth)
        weight = weight.view(columns, depth)
        a[:, 0], weight[:, 1] = 127, 127  # so that the scales of int8 are 1
        found = product(a, prepack(weight, dtype), out=torch.empty(rows, columns))
        np.testing.assert_array_equal(found.numpy(), a.numpy() @ weight.numpy().T)


def test_gates_are_those_of_float64_on_each_target(target: str) -> None:
    """A highway layer of weights 0 shows its sigmoid: of any number, from x = 0 and a transform of
    1.
    """
    values = torch.cat([torch.linspace(-30, 30, 1199), torch.tensor([-80.0, 80.0, 0.0])])
    units = len(values)
    x = torch.zeros(1, units)
    bias = torch.cat([torch.ones(units), values])
    found = prepacked_highway(
        x, prepack(torch.zeros(2 * units, units), torch.float32, gates=2), bias
    )
    np.testing.assert_allclose(
        found[0].double(), sigmoid(values.double().numpy()), atol=3e-7, rtol=0
    )


def layer(x: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> list[Tensor]:
    leaves = [tensor.requires_grad_() for tensor in (x, h, c, *weights)]
    packing = Packing.rectangle(5, len(h))
    outputs, state = lstm(x, LSTMState(h, c), weights, packing, (1.0, 0.8))
    return [outputs, *state, *torch.autograd.grad([outputs.sum(), state.c.square().sum()], leaves)]


def softmax(hidden: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    leaves = [tensor.requires_grad_() for tensor in (hidden, weight, bias)]
    found = linear_logsumexp(hidden, weight, bias, torch.arange(len(hidden)) % len(weight) - 1)
    return [found, *torch.autograd.grad(found.sum(), leaves)]


LAYER = (185, 20), (37, 34), (37, 50), (200, 20), (200, 34), (200,), (34, 50)


@pytest.mark.parametrize(
    ("run", "shapes"), [(layer, LAYER), (softmax, [(300, 34), (513, 34), (513,)])]
)
def test_values_and_gradients_are_those_of_float64_on_each_target(
    target: str, run: Callable[..., list[Tensor]], shapes: list[tuple[int, ...]]
) -> None:
    inputs = [
        draw(*shape) * (0.25 if run is layer and number > 2 else 1)
        for number, shape in enumerate(shapes)
    ]
    exact = run(*(tensor.double() for tensor in inputs))
    for found, expected in zip(run(*inputs), exact, strict=True):
        largest = float(expected.detach().abs().max())
        torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-6 * largest)


def test_prepacked_weights_are_refused_where_another_target_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order within a panel is that of the target's registers."""
    weight = draw(70, 6)
    a = draw(3, 6)
    monkeypatch.setattr(library, "target", lambda: "baseline")
    prepacked = prepack(weight, torch.float32)
    sent = pickle.dumps(prepacked)
    expected = product(a, prepacked)
    assert torch.equal(product(a, pickle.loads(sent)), expected)
    for other in (*library.targets()[:1], None):
        monkeypatch.setattr(library, "target", lambda other=other: other)
        if other != "baseline":
            with pytest.raises(ValueError, match="prepacked for baseline"):
                pickle.loads(sent)
    monkeypatch.setattr(library, "target", lambda: "baseline")
    monkeypatch.setattr(library, "source_digest", lambda: b"of other sources")
    with pytest.raises(ValueError, match="load the model here"):
        pickle.loads(sent)


def test_the_environment_names_the_target_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMOKIT_ISA", "baseline")
    assert library.target.__wrapped__() == "baseline"
