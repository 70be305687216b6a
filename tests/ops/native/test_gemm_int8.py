"""Products of int8 against NumPy's, and int8 models against the exact one."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from backends import has_native
from example_text import example_sentences
from oracle import relu, sigmoid
from torch import Tensor

from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM
from elmokit.nn.inference import prepack as prepack_bilm
from elmokit.ops import reference
from elmokit.ops.dispatch import MAX_INT8_DEPTH, choose
from elmokit.ops.functional import Clips, LSTMState, LSTMSteps, LSTMWeights, prepack_lstm
from elmokit.ops.native.gemm import prepack, prepacked_highway, product
from elmokit.ops.packing import Packing, pack_sentences

CPU = torch.device("cpu")
UNTOUCHED = -12345.0
RAGGED = ([4, 1, 0, 3, 2, 5, 9, 1, 1, 2], [0, 1, 1, 3, 0, 1, 4, 5, 6, 7], 9)  # row 2 is empty, so is row 8
needs_int8 = pytest.mark.native(torch.int8)


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def quantised(rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """rows (N, K) -> their integers and their scales (N, 1), in float32's arithmetic."""
    values = rows.numpy()
    most = np.abs(values).max(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = np.where(most > 0, np.rint(values * (np.float32(127) / most)), 0)
    return numbers.astype(np.int64), most / np.float32(127)


def dequantised(weight: Tensor) -> Tensor:
    """(..., columns, depth) -> the nearest that int8 holds, float64."""
    numbers, scales = quantised(weight.reshape(-1, weight.shape[-1]))
    return torch.from_numpy(numbers * scales.astype(np.float64)).view(weight.shape)


def exactly(a: Tensor, weight: Tensor) -> np.ndarray:
    """a @ weight.T of quantised rows and columns, summed as integers, scaled in float32."""
    (numbers, scales), (of_weight, weight_scales) = quantised(a), quantised(weight)
    return ((numbers @ of_weight.T).astype(np.float32) * weight_scales.T) * scales


def float_product(a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return product(a, prepack(weight, torch.int8), bias, torch.empty(len(a), len(weight)))


# --- Products --------------------------------------------------------------------------------------------------------


@needs_int8
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 16, 31, 63, 130, 1030])
def test_products_of_any_size_are_exact(depth: int) -> None:
    for columns in (1, 15, 16, 63, 64, 65, 130):
        weight, bias = draw(columns, depth), draw(columns)
        for rows in (0, 1, 2, 5, 6, 7, 13, 64):
            a = draw(rows, depth, seed=1, scale=3)
            np.testing.assert_array_equal(float_product(a, weight).numpy(), exactly(a, weight))
            np.testing.assert_array_equal(float_product(a, weight, bias).numpy(), exactly(a, weight) + bias.numpy())


@needs_int8
def test_the_largest_sums_do_not_overflow() -> None:
    for sign in (-1, 1):
        a, weight = torch.ones(2, MAX_INT8_DEPTH), sign * torch.ones(3, MAX_INT8_DEPTH)
        torch.testing.assert_close(float_product(a, weight), torch.full((2, 3), sign * float(MAX_INT8_DEPTH)))
    assert not has_native(torch.int8, MAX_INT8_DEPTH + 1)


@needs_int8
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 70, 33), (20, 130, 512), (7, 64, 4096)])
def test_products_are_as_close_as_quantising_lets_them(rows: int, columns: int, depth: int) -> None:
    """A row and a column are each half a step off at most."""
    a, weight = draw(rows, depth), draw(columns, depth)
    wide_a, wide_weight = np.abs(a.double().numpy()), np.abs(weight.double().numpy())
    half_a, half_weight = wide_a.max(axis=1, keepdims=True) / 254, wide_weight.max(axis=1, keepdims=True) / 254
    bound = wide_a.sum(1, keepdims=True) * half_weight.T + half_a * (wide_weight.sum(1) + depth * half_weight[:, 0])
    exact = a.double().numpy() @ weight.double().numpy().T
    errors = np.abs(float_product(a, weight).numpy() - exact)
    assert (errors <= 1.00001 * bound).all() and np.linalg.norm(errors) < 0.02 * np.linalg.norm(exact)


@needs_int8
def test_rows_and_columns_of_any_size() -> None:
    a, weight = draw(7, 10), draw(70, 10)
    a *= torch.tensor([0.0, 1e-35, 1e-20, 1e-3, 1e20, -1e-10, 1.0])[:, None]
    weight[3], weight[64] = 0, weight[64] * 1e15
    found, expected = float_product(a, weight), exactly(a, weight)
    assert (found[:2] == 0).all() and (found[:, 3] == 0).all()
    np.testing.assert_array_equal(found[2:].numpy(), expected[2:])


@needs_int8
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_is_lost_with_its_row_or_column_alone(value: float) -> None:
    for place in range(0, 40, 3):
        a, weight = draw(7, 40), draw(70, 40)
        a[2, place], weight[69, place] = value, value
        found = float_product(a, weight)
        assert not found[2].isfinite().any() and not found[:, 69].isfinite().any()
        assert found[[0, 1, 3, 4, 5, 6], :69].isfinite().all()


@needs_int8
def test_results_in_bfloat16_are_rounded_as_torch_rounds() -> None:
    a, weight, bias = draw(30, 10), draw(70, 10), draw(70)
    a[3, 3], bias[1], bias[2] = torch.nan, 3.4e38, -torch.inf
    narrow = product(a, prepack(weight, torch.int8), bias)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow, float_product(a, weight, bias).bfloat16(), rtol=0, atol=0, equal_nan=True)


@needs_int8
@pytest.mark.parametrize("units", [1, 3, 16, 31, 32, 33, 100])
def test_highway_equals_its_definition(units: int) -> None:
    weight, bias = draw(2 * units, units, scale=units**-0.5), draw(2 * units)
    for rows in (0, 1, 6, 7, 50):
        x = draw(rows, units)
        gates, before = exactly(x, weight).astype(np.float64) + bias.numpy(), x.double().numpy()
        carry = sigmoid(gates[:, units:])
        found = prepacked_highway(x, prepack(weight, torch.int8, gates=2), bias)
        assert found.dtype == torch.float32
        expected = carry * relu(gates[:, :units]) + (1 - carry) * before
        np.testing.assert_allclose(found.numpy(), expected, rtol=3e-6, atol=3e-6)


# --- Layers ----------------------------------------------------------------------------------------------------------


class Layer:
    """Random weights of a layer, and a text."""

    def __init__(self, dim: int, cell: int, packing: Packing) -> None:
        self.packing, rows = packing, len(packing.row_order)
        self.x = draw(packing.num_slots, 12)
        self.state = LSTMState(draw(rows, dim), draw(rows, cell))
        projection = draw(dim, cell, scale=2 * cell**-0.5) if dim != cell else None
        self.weights = LSTMWeights(
            draw(4 * cell, 12, scale=0.4), draw(4 * cell, dim, scale=dim**-0.5), draw(4 * cell), projection
        )
        self.start = LSTMState(draw(1, dim, seed=1), draw(1, cell, seed=1))

    def by_kernel(self, clips: Clips) -> list[Tensor]:
        """Outputs, h, c."""
        run = prepack_lstm(self.weights, torch.int8)
        outputs, state = run(self.x, self.state, LSTMSteps(self.packing, clips, self.start))
        return [outputs, *state]

    def by_reference(self, clips: Clips) -> list[Tensor]:
        projection = None if self.weights.projection is None else dequantised(self.weights.projection)
        weights = LSTMWeights(
            dequantised(self.weights.input), dequantised(self.weights.recurrent), self.weights.bias.double(), projection
        )
        state, start = (LSTMState(part.h.double(), part.c.double()) for part in (self.state, self.start))
        steps = LSTMSteps(self.packing, clips, start)
        outputs, after = reference.lstm(self.x.double(), state, weights, steps, torch.float64)
        return [outputs, *after]


@needs_int8
@pytest.mark.parametrize("sizes", [(6, 20), (70, 34), (128, 260), (7, 19), (5, 130), (34, 34), (17, 17)])
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("clips", [Clips(None, None), Clips(0.7, 0.5)])
def test_a_layer_is_that_of_the_quantised_weights(sizes: tuple[int, int], reset: bool, clips: Clips) -> None:
    layer = Layer(*sizes, pack_sentences(*RAGGED, reset=reset).packing)
    for found, expected in zip(layer.by_kernel(clips), layer.by_reference(clips), strict=True):
        assert (found.double() - expected).norm() < 0.02 * expected.norm()


@needs_int8
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_a_layer_is_the_same_on_any_number_of_threads(threads: int, num_threads: Callable[[int], None]) -> None:
    layer = Layer(7, 19, Packing.rectangle(3, 130))
    num_threads(1)
    expected = layer.by_kernel(Clips(3.0, 3.0))
    num_threads(threads)
    assert all(map(torch.equal, layer.by_kernel(Clips(3.0, 3.0)), expected))


@needs_int8
@pytest.mark.parametrize("rows", [1, 5, 6, 7, 13, 64, 130])
def test_each_row_is_computed_as_it_would_be_alone(rows: int) -> None:
    together = Layer(7, 19, Packing.rectangle(3, rows))
    found = together.by_kernel(Clips(3.0, 3.0))
    for row in {0, rows // 2, rows - 1}:
        alone = Layer(7, 19, Packing.rectangle(3, 1))
        alone.x, alone.weights = together.x[row::rows].contiguous(), together.weights
        alone.state, alone.start = LSTMState(*(part[row : row + 1] for part in together.state)), together.start
        outputs, h, c = alone.by_kernel(Clips(3.0, 3.0))
        assert torch.equal(outputs, found[0][row::rows])
        assert torch.equal(h[0], found[1][row]) and torch.equal(c[0], found[2][row])


@needs_int8
def test_a_nan_stays_in_its_row() -> None:
    layer = Layer(6, 20, Packing.rectangle(3, 4))
    layer.x[5, 3] = torch.nan  # step 1, row 1
    outputs, _, c = layer.by_kernel(Clips(3.0, 3.0))
    lost = outputs.view(3, 4, 6).isnan()
    assert lost[1:, 1].all() and lost.sum() == 2 * 6
    assert c[1].isnan().all() and c.isnan().sum() == 20


# --- Models ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentences() -> list[list[str]]:
    return example_sentences()


@needs_int8
def test_every_word_of_real_sentences_is_near_the_exact_one(sentences: list[list[str]]) -> None:
    exact, found = (np.concatenate(Embedder.load(dtype=dtype).embed(sentences, "all"), axis=1)
                    for dtype in ("float32", "int8"))  # fmt: skip
    cosines = torch.cosine_similarity(*(torch.from_numpy(layers).double() for layers in (exact, found)), dim=-1)
    assert cosines.shape[1] > 700
    # By layer. How near the upper ones are depends on the model: that of 20 million words had 0.999 and 0.9999 in all.
    least, mean = torch.tensor([[0.999, 0.995, 0.995], [0.9998, 0.9995, 0.9992]])
    assert (cosines.min(dim=1).values > least).all() and (cosines.mean(dim=1) > mean).all()


@needs_int8
def test_a_sentence_is_the_same_to_the_last_bit_in_any_company(sentences: list[list[str]]) -> None:
    embedder = Embedder.load(dtype="int8")
    together = embedder.embed(sentences, "all")
    for number in (0, 12, 40):
        embedder.clear_word_cache()
        np.testing.assert_array_equal(embedder.embed([sentences[number]], "all")[0], together[number])
    embedder.clear_word_cache()
    for left, right in zip(embedder.embed(sentences[10:30], "all", batch_size=3), together[10:30], strict=True):
        np.testing.assert_array_equal(left, right)


@needs_int8
@pytest.mark.parametrize("characters", [CharCNNConfig(4, ((1, 3), (2, 34), (5, 4)), num_highway=2), None])
def test_models_of_odd_sizes(characters: CharCNNConfig | None) -> None:
    lstm = LSTMConfig(cell_dim=19, projection_dim=7, num_layers=3)
    bilm = BiLM(BiLMConfig(lstm, characters, num_words=None if characters else 30))
    prepacked, packing = prepack_bilm(bilm, torch.int8), Packing.rectangle(5, 3)
    ids = torch.randint(1, 200, (8, 12)) if characters else torch.arange(1, 9)
    tokens = torch.randint(0, 8, (2, 15))
    with torch.no_grad():
        exact = bilm.run(bilm.token_encoder(ids), tokens, packing)
    found = prepacked.run(prepacked.token_encoder(ids), tokens, packing)
    for layer, expected in zip([*found[0], found[1].h, found[1].c], [*exact[0], exact[1].h, exact[1].c], strict=True):
        assert (layer - expected).norm() < 0.03 * expected.norm()


def test_where_it_is_not_there_that_is_said(without_native: None) -> None:
    assert not has_native(torch.int8, 4)
    with pytest.raises(ValueError, match=r"no backend runs .* in int8"):
        choose("lstm", CPU, torch.int8, 4)
    with pytest.raises(ValueError, match=r"no backend runs .* in int8"):
        Embedder.load(dtype="int8")
