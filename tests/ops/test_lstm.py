"""The LSTM op on every backend against the specification in float64: values and all gradients; and
the layer on top.
"""

import math
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from backends import FAST_BACKENDS, each_native_dtype, each_native_or_int8_dtype
from torch import Tensor

from elmokit.nn.lstm import LSTMLayer
from elmokit.ops import portable, reference
from elmokit.ops.functional import LSTMState, LSTMSteps, LSTMWeights, lstm, prepack
from elmokit.ops.native import lstm as native_lstm
from elmokit.ops.packing import PackedText, Packing

RAGGED = (
    [4, 1, 0, 3, 2, 5, 9, 1, 1, 2],
    [0, 1, 1, 3, 0, 1, 4, 5, 6, 7],
    9,
)  # row 2 is empty, so is row 8
SIZES = [
    (6, 20),
    (70, 34),
    (128, 16),
    (2, 130),
]  # (D, H): fewer than a vector, a rest, more than a panel
UNPROJECTED = [(34, 34), (16, 16)]
ODD_SIZES = [(7, 20), (6, 19)]
CLIPS = ["none", "cell", "projection", "both"]
STARTS = ["carried", "reset", "reset to a state"]
# Every start with all sizes and with all clips.
CASES = [
    (sizes, CLIPS[(row + column) % len(CLIPS)], start)
    for row, sizes in enumerate([*SIZES, *UNPROJECTED, *ODD_SIZES])
    for column, start in enumerate(STARTS)
]


@pytest.fixture(params=FAST_BACKENDS)
def each_backend(request: pytest.FixtureRequest, backend: Callable[[str], None]) -> str:
    backend(request.param)
    return request.param


class Case:
    """Random inputs of one layer over a ragged stream, of values that `dtype` can hold, large
    enough for the clips.
    """

    def __init__(
        self,
        sizes: tuple[int, int],
        clipped: str,
        start: str,
        dtype: torch.dtype,
        input_dim: int = 10,
        seed: int = 0,
    ) -> None:
        self.packing = PackedText.of_sentences(*RAGGED, reset=start != "carried").packing
        (dim, cell), (slots, rows) = sizes, (sum(RAGGED[0]), RAGGED[2])
        generator = torch.Generator().manual_seed(dim + cell + seed)
        wide = torch.promote_types(dtype, torch.float32)

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            return (scale * torch.randn(shape, generator=generator)).to(dtype).to(wide)

        self.leaves = [
            draw(slots, input_dim),
            draw(rows, dim),
            draw(rows, cell),
            draw(4 * cell, input_dim, scale=1.5 * input_dim**-0.5),
            draw(4 * cell, dim, scale=dim**-0.5),
            draw(4 * cell),
            *([draw(dim, cell, scale=3 * cell**-0.5)] if dim != cell else []),
        ]
        self.start = LSTMState(draw(1, dim), draw(1, cell)) if start == "reset to a state" else None
        self.clips = (
            0.7 if clipped in ("cell", "both") else math.inf,
            0.5 if clipped in ("projection", "both") else math.inf,
        )
        self.upstream = [draw(slots, dim), draw(rows, dim), draw(rows, cell)]
        self.dtype = dtype

    def run(self, leaves: list[Tensor]) -> list[Tensor]:
        """Outputs, h and c."""
        x, h, c, *weights = leaves
        own = LSTMWeights(*weights, *([None] if len(weights) == 3 else []))
        low = self.dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            outputs, state = lstm(x, LSTMState(h, c), own, *self.steps())
        return [outputs, *state]

    def steps(self) -> LSTMSteps:
        zeros = LSTMState(*(part[:1] * 0 for part in self.leaves[1:3]))
        return LSTMSteps(self.packing, self.clips, self.start or zeros)

    def fresh(self, learning: list[int] | None = None) -> list[Tensor]:
        return [
            leaf.clone().requires_grad_(learning is None or number in learning)
            for number, leaf in enumerate(self.leaves)
        ]

    def values_and_gradients(self, passes: int = 1) -> list[Tensor]:
        leaves = self.fresh()
        found = self.run(leaves)
        for _ in range(passes - 1):
            torch.autograd.grad(found, leaves, self.upstream, retain_graph=True)
        return [*found, *torch.autograd.grad(found, leaves, self.upstream)]

    def by_reference(self) -> list[Tensor]:
        leaves = [leaf.double().requires_grad_() for leaf in self.leaves]
        x, h, c, *weights = leaves
        own = LSTMWeights(*weights, *([None] if len(weights) == 3 else []))
        steps = self.steps()
        steps = steps._replace(
            reset_state=LSTMState(*(part.double() for part in steps.reset_state))
        )
        found = reference.lstm(x, h, c, *own, steps=steps, dtype=torch.float64)
        return [
            *found,
            *torch.autograd.grad(found, leaves, [part.double() for part in self.upstream]),
        ]


def distance(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    return [
        ((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True)
    ]


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for left, right in zip(found, expected, strict=True):
        scale = max(1, right.abs().max().item())
        torch.testing.assert_close(left.double(), right, rtol=tolerance, atol=tolerance * scale)


# --- Values and gradients -------------------------------------------------------------------------


@pytest.mark.parametrize(("sizes", "clipped", "start"), CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_values_and_gradients_equal_the_reference(
    each_backend: str,
    sizes: tuple[int, int],
    clipped: str,
    start: str,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    case = Case(sizes, clipped, start, dtype)
    assert_close(case.values_and_gradients(), case.by_reference(), tolerance)


@pytest.mark.parametrize(("sizes", "clipped", "start"), CASES)
def test_lstm_in_bfloat16_is_as_close_as_rounding_lets_it(
    each_backend: str, sizes: tuple[int, int], clipped: str, start: str
) -> None:
    case = Case(sizes, clipped, start, torch.bfloat16)
    errors = distance(case.values_and_gradients(), case.by_reference())
    assert 1e-4 < max(errors[:3]) < 0.015, errors
    # a value that rounding takes over a clip loses its gradient; an output of two values has few
    assert max(errors[3:]) < (0.04 if clipped == "none" else 0.4), errors


def dequantised(weight: Tensor) -> Tensor:
    """(columns, depth) -> the nearest that int8 holds, float64."""
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    return (weight / scales).round().double() * scales.double()


@pytest.mark.native(torch.int8)
@pytest.mark.parametrize(
    ("sizes", "clipped", "start"), [*CASES, ((128, 260), "both", "reset to a state")]
)
def test_lstm_in_int8_is_that_of_the_quantised_weights(
    sizes: tuple[int, int], clipped: str, start: str
) -> None:
    case = Case(sizes, clipped, start, torch.float32)
    x, h, c, *weights = case.leaves
    own = LSTMWeights(*weights, *([None] if len(weights) == 3 else []))
    outputs, state = prepack("lstm", own, torch.int8)(x, LSTMState(h, c), *case.steps())
    case.leaves[3:] = [dequantised(weight) if weight.dim() == 2 else weight for weight in weights]
    errors = distance([outputs, *state], case.by_reference()[:3])
    assert max(errors) < 0.03, errors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lstm_gives_its_gradients_again_when_the_graph_is_retained(
    each_backend: str, dtype: torch.dtype
) -> None:
    """A last pass writes over what it no longer needs."""
    case = Case((70, 34), "both", "reset", dtype)
    for once, again in zip(
        case.values_and_gradients(), case.values_and_gradients(passes=3), strict=True
    ):
        assert torch.equal(once, again)


@pytest.mark.parametrize("learning", [[0], [1, 2], [3], [4], [0, 4], [5], [6, 2]])
def test_gradients_of_some_inputs_are_those_of_all(each_backend: str, learning: list[int]) -> None:
    case = Case((6, 20), "both", "reset", torch.float32)
    everything = case.values_and_gradients()[3:]
    leaves = case.fresh(learning)
    gradients = torch.autograd.grad(
        case.run(leaves), [leaves[number] for number in learning], case.upstream
    )
    for number, gradient in zip(learning, gradients, strict=True):
        assert torch.equal(gradient, everything[number])


@pytest.mark.parametrize("backend_name", ["reference", *FAST_BACKENDS])
def test_no_gradient_flows_to_the_state_of_a_reset(
    backend_name: str, backend: Callable[[str], None]
) -> None:
    backend(backend_name)
    case = Case((6, 20), "both", "reset to a state", torch.float32)
    for part in case.start:
        part.requires_grad_()
    assert not any(part.requires_grad for part in case.run(case.leaves))
    case.run(case.fresh())[0].sum().backward()
    assert case.start.h.grad is None
    assert case.start.c.grad is None


def test_memory_may_lie_in_any_order(each_backend: str) -> None:
    """Gradients and states come laid out as whoever made them chose."""
    case = Case((6, 20), "both", "reset to a state", torch.float32)
    expected = case.values_and_gradients()
    case.leaves = [leaf.mT.contiguous().mT if leaf.dim() == 2 else leaf for leaf in case.leaves]
    case.upstream = [part.T.contiguous().T for part in case.upstream]
    for left, right in zip(case.values_and_gradients(), expected, strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)


def test_the_caller_keeps_its_state(each_backend: str) -> None:
    case = Case((6, 20), "both", "reset", torch.float32)
    before = [leaf.clone() for leaf in case.leaves]
    case.values_and_gradients()
    case.run(case.leaves)
    assert all(map(torch.equal, case.leaves, before))


# --- Threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_values_without_gradients_are_the_same(each_backend: str, mode: type) -> None:
    case = Case((6, 20), "both", "reset to a state", torch.float32)
    expected = case.run(case.fresh())
    with mode():
        found = case.run(case.fresh())
    for left, right in zip(found, expected, strict=True):
        assert not left.requires_grad
        torch.testing.assert_close(left, right.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_computes_while_another_thread_takes_memory() -> None:
    code = """
import os, signal, torch
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
from elmokit.ops import memory
torch.set_num_threads(2)
bilm, ids = BiLM(BiLMConfig.preset("tiny")), torch.randint(1, 200, (2, 3, 10))
with torch.no_grad():
    bilm(ids)
    memory._allocator._lock.acquire()
    child = os.fork()
    if not child:
        signal.alarm(20)
        bilm(ids)
        memory.allocate((1 << 20,), torch.float32).fill_(3)
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- Prepacked weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("backend_name", ["reference", *FAST_BACKENDS])
@pytest.mark.parametrize("chunk_slots", [1, 5, 1000])
def test_an_index_reads_shared_rows(
    backend_name: str,
    chunk_slots: int,
    backend: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend(backend_name)
    for module in (native_lstm, portable):
        monkeypatch.setattr(module, "CHUNK_SLOTS", chunk_slots)
    case = Case((6, 20), "both", "reset to a state", torch.float32)
    x, h, c, *weights = case.leaves
    run = prepack("lstm", LSTMWeights(*weights), torch.float32)
    index = torch.randint(0, len(x), (len(x),))
    shared = run(x, LSTMState(h, c), *case.steps(), index)
    gathered = run(x[index], LSTMState(h, c), *case.steps())
    for left, right in zip((shared[0], *shared[1]), (gathered[0], *gathered[1]), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


@each_native_or_int8_dtype
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13, 64, 130])
def test_each_row_is_computed_as_it_would_be_alone(dtype: torch.dtype, rows: int) -> None:
    """To the last bit."""
    generator = torch.Generator().manual_seed(rows)
    x, h, c = (
        torch.randn(n, size, generator=generator)
        for n, size in ((2 * rows, 10), (rows, 6), (rows, 20))
    )
    shapes = (80, 10), (80, 6), (80,), (6, 20)
    weights = LSTMWeights(*(torch.randn(shape, generator=generator) for shape in shapes))
    run = prepack("lstm", weights, dtype)
    start = LSTMState(torch.zeros(1, 6), torch.zeros(1, 20))

    def outputs_of(chosen: slice) -> tuple[Tensor, ...]:
        count = len(range(rows)[chosen])
        own = x.view(2, rows, 10)[:, chosen].flatten(0, 1)
        packing = Packing.rectangle(2, count)
        state = LSTMState(h[chosen], c[chosen])
        out, final = run(own, state, packing, (3.0, 3.0), start)
        return out.view(2, count, 6), *final

    outputs, *final = outputs_of(slice(None))
    for row in {0, rows // 2, rows - 1}:
        alone, *final_alone = outputs_of(slice(row, row + 1))
        assert torch.equal(alone[:, 0], outputs[:, row])
        assert all(
            torch.equal(one[0], each[row]) for one, each in zip(final_alone, final, strict=True)
        )


@each_native_dtype
def test_an_index_out_of_bounds_is_refused(dtype: torch.dtype) -> None:
    case = Case((6, 20), "none", "carried", torch.float32)
    x, h, c, *weights = case.leaves
    run = prepack("lstm", LSTMWeights(*weights), dtype)
    for index in (
        torch.full((len(x),), -1),
        torch.full((len(x),), len(x)),
        torch.zeros(len(x), dtype=torch.int32),
    ):
        with pytest.raises(AssertionError):
            run(x, LSTMState(h, c), *case.steps(), index)


# --- Numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clip", [None, 3.0])
def test_a_nan_is_not_clipped_away(
    each_backend: str, dtype: torch.dtype, clip: float | None
) -> None:
    """From the slot where it comes in it stays in its row, and in no other."""
    generator = torch.Generator().manual_seed(0)
    packing = Packing.rectangle(3, 4)
    weights = LSTMWeights(
        *(torch.randn(shape, generator=generator) for shape in ((80, 10), (80, 6), (80,), (6, 20)))
    )
    x = torch.randn(12, 10, generator=generator)
    x[5, 3] = torch.nan  # step 1, row 1
    state = LSTMState(torch.zeros(4, 6), torch.zeros(4, 20))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        outputs, (h, c) = lstm(x, state, weights, packing, (clip, clip))
    lost = outputs.view(3, 4, 6).isnan()
    assert lost[1:, 1].all()
    assert lost.sum() == 2 * 6
    assert h[1].isnan().all()
    assert h.isnan().sum() == 6
    assert c[1].isnan().all()
    assert c.isnan().sum() == 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("learning", [False, True])
def test_gates_of_any_size(each_backend: str, dtype: torch.dtype, learning: bool) -> None:
    """Of infinite ones one side of each function is left. Each cell has another number."""
    sizes = torch.tensor([0.0, 1e-30, 1.0, 50.0, 1e4, 3e38, math.inf])
    bias = torch.cat([sizes, -sizes]).repeat(4).to(dtype).float().requires_grad_(learning)
    packing = Packing.rectangle(2, 2)
    state = LSTMState(torch.zeros(2, 14), torch.full((2, 14), 0.5))
    weights = LSTMWeights(torch.zeros(56, 4), torch.zeros(56, 14), bias, None)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found, _ = lstm(
            torch.zeros(4, 4),
            state,
            weights,
            packing,
            (3.0, None),
        )
    exact = LSTMWeights(*(weight.detach().double() for weight in weights[:3]), None)
    wide = LSTMState(*(part.double() for part in state))
    zeros = LSTMState(*(part[:1] * 0 for part in wide))
    steps = LSTMSteps(packing, (3.0, math.inf), zeros)
    x = torch.zeros(4, 4).double()
    expected, *_ = reference.lstm(x, *wide, *exact, steps=steps, dtype=torch.float64)
    tolerance = 2e-6 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(found.detach().double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_on_the_cpu_stay_there_where_another_device_is_the_default(
    each_backend: str, dtype: torch.dtype
) -> None:
    case = Case((6, 20), "both", "reset", dtype)
    expected = case.values_and_gradients()
    with torch.device("meta"):  # stands for a GPU
        found = case.values_and_gradients()
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(("steps", "rows"), [(0, 3), (0, 0)])
def test_nothing_to_do(each_backend: str, steps: int, rows: int) -> None:
    shapes = (0, 10), (rows, 6), (rows, 20), (80, 10), (80, 6), (80,), (6, 20)
    leaves = [torch.randn(shape).requires_grad_() for shape in shapes]
    x, h, c, *weights = leaves
    state = LSTMState(h, c)
    packing = Packing.rectangle(steps, rows)
    found, state = lstm(x, state, LSTMWeights(*weights), packing, (1.0, 1.0))
    assert found.shape == (0, 6)
    assert torch.equal(state.h, h)
    assert torch.equal(state.c, c)
    gradients = torch.autograd.grad(
        (found, *state), leaves, [torch.ones_like(part) for part in (found, *state)]
    )
    assert all(
        (gradient == (1 if number in (1, 2) else 0)).all()
        for number, gradient in enumerate(gradients)
    )


# --- The layer and the stack ----------------------------------------------------------------------


def test_initialisation_is_glorot_uniform_on_the_stacked_kernel() -> None:
    layer = LSTMLayer(64, 128, 64, forget_bias=0.0)
    bound = (6 / (2 * 64 + 4 * 128)) ** 0.5
    for weight in (layer.input_weight, layer.recurrent_weight):
        assert 0.99 * bound < weight.abs().max() <= bound
    assert 0.99 * (6 / 192) ** 0.5 < layer.projection_weight.abs().max() <= (6 / 192) ** 0.5


@pytest.mark.parametrize(
    "changed",
    [
        {"x": (5, 8)},
        {"x": (4, 10)},
        {"h": (2, 7)},
        {"c": (3, 20)},
        {"start h": (1, 5)},
        {"resets": (2,)},
    ],
)
@pytest.mark.parametrize("learns", [True, False])
def test_sizes_that_do_not_fit_are_refused(
    each_backend: str, learns: bool, changed: dict[str, tuple[int, ...]]
) -> None:
    """Compiled code would read past their ends."""
    sizes = {
        "x": (5, 10),
        "h": (2, 6),
        "c": (2, 20),
        "start h": (1, 6),
        "start c": (1, 20),
        "resets": (5,),
    } | changed
    x, h, c, start_h, start_c, resets = (torch.zeros(size) for size in sizes.values())
    layer = LSTMLayer(10, 20, 6, forget_bias=1.0).requires_grad_(learns)
    packing = Packing((2, 2, 1), torch.arange(2), resets.bool())
    with pytest.raises(ValueError, match="do not fit"):
        layer(x, packing, LSTMState(h, c), LSTMState(start_h, start_c))
