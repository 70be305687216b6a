"""Products with prepacked weights against NumPy in float64, and what happens where oneDNN is of no use."""

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit.ops.portable import prepacked
from elmokit.ops.portable.prepacked import PrepackedProduct, is_usable


@pytest.fixture
def fresh_check() -> Iterator[None]:
    """Lets oneDNN be tried anew in the test, and after it."""
    is_usable.cache_clear()
    yield
    is_usable.cache_clear()


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(1, 40, 96), (7, 3, 1), (130, 70, 33), (0, 4, 5), (64, 512, 64)])
@pytest.mark.parametrize("biased", [True, False])
def test_product_equals_float64(shape: tuple[int, int, int], dtype: torch.dtype, biased: bool) -> None:
    rows, depth, columns = shape
    x, weight, bias = draw(rows, depth), draw(columns, depth), draw(columns)
    found = PrepackedProduct(weight, dtype, bias if biased else None)(x)
    exact = [part.to(dtype).double().numpy() for part in (x, weight, bias)]
    expected = exact[0] @ exact[1].T + (exact[2] if biased else 0)
    assert found.dtype == dtype and found.shape == (rows, columns)
    tolerance = 0.01 if dtype == torch.bfloat16 else 1e-5
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=tolerance, atol=tolerance * depth**0.5)


@pytest.mark.parametrize("rows", [1, 5, 8, 20])
def test_first_rows_are_those_of_the_whole_product(rows: int) -> None:
    x, product = draw(20, 30), PrepackedProduct(draw(50, 30), torch.float32)
    torch.testing.assert_close(product.first(x, rows), product(x)[:rows])


def test_the_weight_is_a_copy_and_its_memory_may_lie_in_any_order() -> None:
    weight, x = draw(30, 50).T, draw(4, 30)
    product, expected = PrepackedProduct(weight, torch.float32), x @ weight.T
    weight.zero_()
    torch.testing.assert_close(product(x), expected)


def test_a_product_can_be_sent_to_another_process() -> None:
    product, x = PrepackedProduct(draw(50, 30), torch.float32, draw(50)), draw(4, 30)
    torch.testing.assert_close(pickle.loads(pickle.dumps(product))(x), product(x))


@pytest.mark.parametrize("failure", [RuntimeError("no such operation"), AttributeError("renamed"), "wrong numbers"])
def test_pytorch_multiplies_where_onednn_fails_or_is_wrong(
    failure: Any, fresh_check: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def multiply(x: Tensor, *others: Any) -> Tensor:
        if isinstance(failure, Exception):
            raise failure
        return x.new_zeros(len(x), 96)

    monkeypatch.setattr(prepacked, "_multiply", multiply)
    x, weight = draw(9, 40), draw(96, 40)
    product = PrepackedProduct(weight, torch.float32)
    assert not is_usable(torch.float32)
    torch.testing.assert_close(product(x), x @ weight.T)
