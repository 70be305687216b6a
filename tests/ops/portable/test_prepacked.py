"""Products with prepacked weights against NumPy in float64, and what happens where oneDNN is of no use."""

import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit.ops.portable.prepacked import PrepackedProduct, is_right


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


def test_the_weight_is_a_copy_and_its_memory_may_lie_in_any_order() -> None:
    weight, x = draw(30, 50).T, draw(4, 30)
    product, expected = PrepackedProduct(weight, torch.float32), x @ weight.T
    weight.zero_()
    torch.testing.assert_close(product(x), expected)


def test_a_product_can_be_sent_to_another_process() -> None:
    product, x = PrepackedProduct(draw(50, 30), torch.float32, draw(50)), draw(4, 30)
    torch.testing.assert_close(pickle.loads(pickle.dumps(product))(x), product(x))


def test_onednn_is_compared_with_pytorch() -> None:
    def wrong(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x.new_zeros(len(x), len(weight))

    def renamed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.ops.mkldnn.no_such_operation(x, weight, bias)

    def right(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x @ weight.to_dense().T + (0 if bias is None else bias)

    assert [is_right(each, torch.float32) for each in (wrong, renamed, right)] == [False, False, True]


def test_the_comparison_is_on_the_cpu_whatever_the_default_device() -> None:
    def right(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x @ weight.to_dense().T + (0 if bias is None else bias)

    with torch.device("meta"):  # stands for a GPU
        assert is_right(right, torch.float32)
