"""Products with prepacked weights against NumPy: any size, any strides, nothing out of bounds; int8
vectors.
"""

from collections.abc import Callable
from itertools import product as all_pairs

import numpy as np
import pytest
import torch
from backends import each_native_dtype, each_native_or_int8_dtype, has_native
from example_text import example_sentences
from oracle import relu, sigmoid
from torch import Tensor

from elmokit.embed.embedder import Embedder
from elmokit.nn.token_encoders import Highway
from elmokit.ops.dispatch import MAX_INT8_DEPTH
from elmokit.ops.native.gemm import prepack, prepacked_highway, product

ROWS = [0, *range(1, 20), 63, 64, 127, 130]
COLUMNS = [1, 15, 16, 63, 64, 65, 130]
DEPTHS = {torch.float32: [1, 2, 5, 16, 63, 130], torch.bfloat16: [2, 6, 18, 62, 130]}
UNTOUCHED = -12345.0
needs_int8 = pytest.mark.native(torch.int8)


def draw(*shape: int, seed: int = 0, terms: int = 1) -> Tensor:
    return (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))) / terms**0.5
    )


def exact(a: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> np.ndarray:
    """a @ weight.T + bias in float64, of factors that `dtype` can hold."""
    low_a, low_weight = (factor.to(dtype).double().numpy() for factor in (a, weight))
    return low_a @ low_weight.T + (0 if bias is None else bias.double().numpy())


def assert_close(found: Tensor, expected: np.ndarray) -> None:
    """Sums are made in float32; what is written in bfloat16 is rounded to eight bits."""
    assert found.shape == expected.shape
    tolerance = 3e-6 if found.dtype == torch.float32 else 2**-8
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=tolerance, atol=3e-6)


@each_native_dtype
@pytest.mark.parametrize(("biased", "wide"), [(True, False), (False, True)])
def test_products_of_any_size(dtype: torch.dtype, biased: bool, wide: bool) -> None:
    for columns, depth in all_pairs(COLUMNS, DEPTHS[dtype]):
        weight = draw(columns, depth, terms=depth)
        bias = draw(columns) if biased else None
        packed = prepack(weight, dtype)
        for rows in ROWS:
            a = draw(rows, depth, seed=1)
            out = None if wide else torch.empty(rows, columns, dtype=dtype)
            found = product(a, packed, bias, out)
            assert found.dtype == (torch.float32 if wide else dtype)
            assert_close(found, exact(a, weight, bias, dtype))


@each_native_dtype
@pytest.mark.parametrize("depth", [2046, 2048, 2050, 4098, 5000])
def test_a_depth_that_is_summed_in_parts(dtype: torch.dtype, depth: int) -> None:
    weight = draw(70, depth, terms=depth)
    bias = draw(70)
    a = draw(13, depth, seed=1)
    for out_dtype in {dtype, torch.float32}:
        found = product(
            a, prepack(weight, dtype), bias, torch.full((13, 70), torch.nan, dtype=out_dtype)
        )
        assert_close(found, exact(a, weight, bias, dtype))


@each_native_dtype
def test_only_the_result_is_written(dtype: torch.dtype) -> None:
    for out_dtype, rows, columns in all_pairs({dtype, torch.float32}, [1, 7, 64], COLUMNS):
        weight = draw(columns, 6, terms=6)
        a = draw(rows, 6)
        around = torch.full((rows + 2, columns + 40), UNTOUCHED, dtype=out_dtype)
        product(a, prepack(weight, dtype), out=around[1:-1, 20:-20])
        assert_close(around[1:-1, 20:-20], exact(a, weight, None, dtype))
        around[1:-1, 20:-20] = UNTOUCHED
        assert (around == torch.tensor(UNTOUCHED, dtype=out_dtype)).all()


@each_native_dtype
def test_factors_of_any_strides(dtype: torch.dtype) -> None:
    whole, a = draw(40, 150), draw(10, 14, seed=1).T  # (14, 10)
    for weight in (
        whole[:10, :70].T,
        whole[3:33:3, 5:75].T,
        whole.T[::2, 20:30],
        whole[:33, 40:60:2],
    ):
        found = product(a, prepack(weight, dtype), out=torch.empty(14, len(weight)))
        torch.testing.assert_close(
            found, torch.from_numpy(exact(a, weight, None, dtype)).float(), rtol=1e-5, atol=2e-5
        )


@each_native_or_int8_dtype
def test_a_row_is_the_same_to_the_last_bit_beside_any_others(dtype: torch.dtype) -> None:
    packed = prepack(draw(70, 2050), dtype)
    a = draw(50, 2050, seed=1)
    together = product(a, packed)
    for begin, end in [(0, 1), (3, 10), (17, 50), (49, 50)]:
        assert torch.equal(product(a[begin:end], packed), together[begin:end])


@each_native_or_int8_dtype
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_is_lost_with_its_row_or_column_alone(
    dtype: torch.dtype, value: float
) -> None:
    for place in range(0, 40, 3):
        a = draw(7, 40)
        weight = draw(70, 40)
        a[2, place], weight[69, place] = value, value
        found = product(a, prepack(weight, dtype))
        assert not found[2].isfinite().any()
        assert not found[:, 69].isfinite().any()
        assert found[[0, 1, 3, 4, 5, 6], :69].isfinite().all()


@pytest.mark.native
def test_packing_rounds_as_torch_does() -> None:
    bits = torch.tensor(
        [0x7F800001, 0x7FFFFFFF, -1, 0x7F7FFFFF, 0x3F808000, 0x3F818000, 0x3F808001],
        dtype=torch.int32,
    )
    values = torch.cat([bits.view(torch.float32), draw(64 * 2 - len(bits))]).view(64, 2)
    for column in (0, 1):
        only = torch.zeros(64, 2)
        only[:, column] = values[:, column]
        found = product(torch.eye(2)[column : column + 1], prepack(only, torch.bfloat16))[0]
        torch.testing.assert_close(
            found, values[:, column].bfloat16().float(), rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.native(torch.float32)
def test_what_does_not_fit_is_refused() -> None:
    """Addresses go to the kernel: it would read and write out of bounds."""
    packed = prepack(draw(5, 4), torch.float32)
    for call in (
        lambda: product(draw(3, 5), packed),
        lambda: product(draw(3, 4), packed, bias=draw(4)),
        lambda: product(draw(3, 4), packed, out=torch.empty(2, 5)),
        lambda: product(draw(3, 4), packed, out=torch.empty(3, 5, dtype=torch.float64)),
        lambda: product(draw(3, 4), packed, out=torch.empty(5, 3).T),
        lambda: prepacked_highway(draw(3, 4), packed, draw(8)),
        lambda: prepack(draw(64, 5), torch.bfloat16),  # multiplied in pairs
    ):
        with pytest.raises(AssertionError):
            call()


@each_native_dtype
@pytest.mark.parametrize("units", [2, 16, 30, 32, 34, 64, 100])
def test_highway_equals_its_definition(dtype: torch.dtype, units: int) -> None:
    layer = Highway(units)
    weight = layer.gates.weight.detach()
    bias = draw(2 * units)
    packed = prepack(weight, dtype, gates=2)
    for rows in (0, 1, 6, 7, 50):
        x = draw(rows, units).to(dtype)
        gates = exact(x, weight, bias, dtype)
        carry = sigmoid(gates[:, units:])
        before = x.double().numpy()
        found = prepacked_highway(x, packed, bias)
        assert found.dtype == dtype
        assert_close(found, carry * relu(gates[:, :units]) + (1 - carry) * before)
        if rows and dtype == torch.float32:
            layer.gates.bias.data = bias
            torch.testing.assert_close(found, layer(x), rtol=1e-5, atol=1e-5)


@each_native_dtype
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e30, -1e30])
def test_highway_of_anything(dtype: torch.dtype, value: float) -> None:
    """Of a gate without bounds one side is left; a NaN passes."""
    x = torch.ones(3, 4, dtype=dtype)
    bias = torch.zeros(8)
    bias[5] = value  # the carry gate of unit 1
    found = prepacked_highway(x, prepack(torch.zeros(8, 4), dtype, gates=2), bias)
    expected = torch.full((3, 4), 0.5)
    expected[:, 1] = torch.nan if value != value else float(value < 0)
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=1e-6, equal_nan=True)


@each_native_or_int8_dtype
def test_threads_that_share_a_weight_give_the_same_bits(
    dtype: torch.dtype, num_threads: Callable[[int], None]
) -> None:
    """One weight of 2 MB at least, so that eight threads get a range of its panels each."""
    units = 720 if dtype == torch.float32 else 1440
    x = draw(3, units)
    bias = draw(2 * units)
    results = []
    weight = draw(2 * units, units, terms=units)
    for threads in (1, 2, 3, 8):
        num_threads(threads)
        gates = prepack(weight, dtype, gates=2)
        results.append(
            [product(x, prepack(weight, dtype), bias), prepacked_highway(x, gates, bias)]
        )
    assert all(
        torch.equal(*pair) for found in results for pair in zip(found, results[0], strict=True)
    )


# --- int8 -----------------------------------------------------------------------------------------


def quantised(rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """rows (N, K) -> their integers and their scales (N, 1), in float32's arithmetic."""
    values = rows.numpy()
    most = np.abs(values).max(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = np.where(most > 0, np.rint(values * (np.float32(127) / most)), 0)
    return numbers.astype(np.int64), most / np.float32(127)


def exactly(a: Tensor, weight: Tensor) -> np.ndarray:
    """a @ weight.T of quantised rows and columns, summed as integers, scaled in float32."""
    (numbers, scales), (of_weight, weight_scales) = quantised(a), quantised(weight)
    return ((numbers @ of_weight.T).astype(np.float32) * weight_scales.T) * scales


def float_product(a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return product(a, prepack(weight, torch.int8), bias)


@needs_int8
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 16, 31, 63, 130, 1030])
def test_int8_products_of_any_size_are_exact(depth: int) -> None:
    for columns in (1, 15, 16, 63, 64, 65, 130):
        weight = draw(columns, depth)
        bias = draw(columns)
        for rows in (0, 1, 2, 5, 6, 7, 13, 64):
            a = 3 * draw(rows, depth, seed=1)
            np.testing.assert_array_equal(float_product(a, weight).numpy(), exactly(a, weight))
            np.testing.assert_array_equal(
                float_product(a, weight, bias).numpy(), exactly(a, weight) + bias.numpy()
            )


@needs_int8
def test_the_largest_sums_do_not_overflow() -> None:
    for sign in (-1, 1):
        a = torch.ones(2, MAX_INT8_DEPTH)
        weight = sign * torch.ones(3, MAX_INT8_DEPTH)
        torch.testing.assert_close(
            float_product(a, weight), torch.full((2, 3), sign * float(MAX_INT8_DEPTH))
        )
    assert not has_native(torch.int8, MAX_INT8_DEPTH + 1)


@needs_int8
def test_rows_and_columns_of_any_size() -> None:
    a = draw(7, 10)
    weight = draw(70, 10)
    a *= torch.tensor([0.0, 1e-35, 1e-20, 1e-3, 1e20, -1e-10, 1.0])[:, None]
    weight[3], weight[64] = 0, weight[64] * 1e15
    found = float_product(a, weight)
    expected = exactly(a, weight)
    assert (found[:2] == 0).all()
    assert (found[:, 3] == 0).all()
    np.testing.assert_array_equal(found[2:].numpy(), expected[2:])


@needs_int8
def test_results_in_bfloat16_are_rounded_as_torch_rounds() -> None:
    a = draw(30, 10)
    weight = draw(70, 10)
    bias = draw(70)
    a[3, 3], bias[1], bias[2] = torch.nan, 3.4e38, -torch.inf
    narrow = torch.empty(30, 70, dtype=torch.bfloat16)
    product(a, prepack(weight, torch.int8), bias, narrow)
    torch.testing.assert_close(
        narrow, float_product(a, weight, bias).bfloat16(), rtol=0, atol=0, equal_nan=True
    )


@needs_int8
@pytest.mark.parametrize("units", [1, 3, 16, 31, 32, 33, 100])
def test_highway_in_int8_equals_its_definition(units: int) -> None:
    weight = draw(2 * units, units, terms=units)
    bias = draw(2 * units)
    for rows in (0, 1, 6, 7, 50):
        x = draw(rows, units)
        gates = exactly(x, weight).astype(np.float64) + bias.numpy()
        before = x.double().numpy()
        carry = sigmoid(gates[:, units:])
        found = prepacked_highway(x, prepack(weight, torch.int8, gates=2), bias)
        assert found.dtype == torch.float32
        expected = carry * relu(gates[:, :units]) + (1 - carry) * before
        np.testing.assert_allclose(found.numpy(), expected, rtol=3e-6, atol=3e-6)


@pytest.mark.slow
@needs_int8
def test_every_word_of_real_sentences_is_near_the_exact_one() -> None:
    sentences = example_sentences()
    exact, found = (np.concatenate(Embedder(dtype=dtype).embed(sentences, "all"), axis=1)
                    for dtype in ("float32", "int8"))  # fmt: skip
    cosines = torch.cosine_similarity(
        *(torch.from_numpy(layers).double() for layers in (exact, found)), dim=-1
    )
    assert cosines.shape[1] > 700
    # By layer. How near the upper ones are depends on the model: that of 20 million words had 0.999
    # and 0.9999 in all.
    least, mean = torch.tensor([[0.999, 0.995, 0.995], [0.9998, 0.9995, 0.9992]])
    assert (cosines.min(dim=1).values > least).all()
    assert (cosines.mean(dim=1) > mean).all()


def test_where_it_is_not_there_that_is_said(without_native: None) -> None:
    assert not has_native(torch.int8, 4)
    with pytest.raises(ValueError, match=r"no backend runs .* in int8"):
        Embedder(dtype="int8")
