"""The packed kernel against the readable reference: values and gradients, whatever a layer may have or lack."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from elmokit.config import LSTMConfig
from elmokit.nn import lstm
from elmokit.nn.kernels import packed
from elmokit.nn.kernels.directions import BOTH, Direction, each_direction
from elmokit.nn.kernels.packed import packed_lstm
from elmokit.nn.lstm import BidirectionalLSTM, LSTMState, lstm_reference
from elmokit.nn.packing import Packing, pack_sentences

DIM, CELL = 3, 4
CASES = [
    case
    for case in product([True, False], ["none", "cell", "projection", "both"], [True, False], [True, False])
    if case[2] or not case[3]  # without resets there is no start
]


class Case:
    """Random inputs of one layer over a ragged stream, large enough for the clips to bind."""

    def __init__(
        self, projected: bool, clipped: str, reset: bool, started: bool, dtype: torch.dtype = torch.float64
    ) -> None:
        torch.manual_seed(3)
        self.packing = pack_sentences([4, 1, 0, 3, 2, 5], [0, 1, 1, 3, 0, 1], 4, reset).packing  # row 2 is empty
        dim = DIM if projected else CELL

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            return (scale * torch.randn(*shape, dtype=torch.float64)).to(dtype)

        self.inputs = draw(2, 15, 4 * CELL, scale=2)
        self.h, self.c = draw(2, 4, dim), draw(2, 4, CELL)
        self.recurrent = draw(2, 4 * CELL, dim)
        self.projection = draw(2, dim, CELL) if projected else None
        self.start = (draw(2, 1, dim), draw(2, 1, CELL)) if started else None
        self.clips = {
            "cell_clip": 0.7 if clipped in ("cell", "both") else None,
            "proj_clip": 0.4 if clipped in ("projection", "both") else None,
        }
        self.upstream = [draw(2, 15, dim), draw(2, 4, dim), draw(2, 4, CELL)]

    def leaves(self) -> list[Tensor]:
        leaves = [self.inputs, self.h, self.c, self.recurrent, self.projection]
        return [leaf.detach().clone().requires_grad_() for leaf in leaves if leaf is not None]

    def by_kernel(
        self, inputs: Tensor, h: Tensor, c: Tensor, recurrent: Tensor, projection: Tensor | None = None
    ) -> list[Tensor]:
        return list(packed_lstm(inputs, self.packing, h, c, recurrent, projection, **self.clips, start=self.start))

    def by_reference(
        self, inputs: Tensor, h: Tensor, c: Tensor, recurrent: Tensor, projection: Tensor | None = None
    ) -> list[Tensor]:
        start = None if self.start is None else LSTMState(*self.start)
        state = LSTMState(h, c)
        outputs, final = lstm_reference(inputs, self.packing, state, recurrent, projection, **self.clips, start=start)
        return [outputs, final.h, final.c]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.fixture(params=["a direction on each core", "both at once"])
def any_device(request: pytest.FixtureRequest) -> None:
    """As on a CPU, and as on a GPU."""
    if request.param == "both at once":
        request.getfixturevalue("both_at_once")


@pytest.mark.parametrize(("projected", "clipped", "reset", "started"), CASES)
def test_kernel_equals_reference(any_device: None, projected: bool, clipped: str, reset: bool, started: bool) -> None:
    case = Case(projected, clipped, reset, started)
    ours, theirs = case.leaves(), case.leaves()
    found, expected = case.by_kernel(*ours), case.by_reference(*theirs)
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, atol=1e-12, rtol=0)
    found_gradients = torch.autograd.grad(found, ours, case.upstream)
    for left, right in zip(found_gradients, torch.autograd.grad(expected, theirs, case.upstream), strict=True):
        torch.testing.assert_close(left, right, atol=1e-11, rtol=0)


def test_what_the_gradient_needs_may_lie_in_the_place_of_the_inputs(any_device: None) -> None:
    case = Case(True, "both", True, True)
    (inputs, *ours), theirs = case.leaves(), case.leaves()
    settings = {**case.clips, "start": case.start}
    found = packed_lstm(inputs.clone(), case.packing, *ours, **settings, overwrite=True)
    gradients = torch.autograd.grad(found, [inputs, *ours], case.upstream)
    for left, right in zip(
        gradients, torch.autograd.grad(case.by_reference(*theirs), theirs, case.upstream), strict=True
    ):
        torch.testing.assert_close(left, right, atol=1e-11, rtol=0)


def test_the_clips_of_these_cases_bind() -> None:
    outputs, _, c = Case(True, "both", True, False).by_kernel(*Case(True, "both", True, False).leaves())
    assert (outputs.abs() == 0.4).float().mean() > 0.1
    assert (c.abs() == 0.7).float().mean() > 0.1


def test_one_thread_and_two_give_the_same_bits(two_threads: None) -> None:
    def values_and_gradients(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        case = Case(True, "both", True, True, torch.float32)
        leaves = case.leaves()
        values = case.by_kernel(*leaves)
        return [*values, *torch.autograd.grad(values, leaves, case.upstream)]

    for left, right in zip(values_and_gradients(1), values_and_gradients(2), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_direction_has_a_core_or_both_are_one_run(device: str) -> None:
    asked: list[Direction] = []
    each_direction(asked.append, torch.device(device))
    assert sorted(asked, key=str) == ([0, 1] if device == "cpu" else [BOTH])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("threaded", [False, True])
def test_without_gradients_the_values_are_the_same(mode: type, threaded: bool, request: pytest.FixtureRequest) -> None:
    if threaded:
        request.getfixturevalue("two_threads")
    case = Case(True, "both", True, True)
    expected = case.by_kernel(*case.leaves())
    with mode():
        found = case.by_kernel(*case.leaves())
    for left, right in zip(found, expected, strict=True):
        assert not left.requires_grad
        assert torch.equal(left, right.detach())


def test_an_error_in_a_thread_is_seen(two_threads: None) -> None:
    case = Case(True, "none", False, False)
    inputs, h, c, _, projection = case.leaves()
    with pytest.raises(RuntimeError):
        case.by_kernel(inputs, h, c, torch.zeros(2, 4 * CELL, DIM + 1, dtype=torch.float64), projection)


def test_the_caller_keeps_its_state() -> None:
    case = Case(True, "both", True, True)
    before = case.h.clone(), case.c.clone()
    case.by_kernel(case.inputs, case.h, case.c, case.recurrent, case.projection)
    assert torch.equal(case.h, before[0]) and torch.equal(case.c, before[1])


@pytest.mark.parametrize("proj_clip", [0.4, 0.7])  # bfloat16 rounds the one up and the other down
def test_bfloat16_products_come_close_in_values_and_gradients(proj_clip: float) -> None:
    case = Case(True, "both", True, True)
    case.clips["proj_clip"] = proj_clip
    exact, low = case.leaves(), [leaf.detach().float().requires_grad_() for leaf in case.leaves()]
    expected, found = case.by_kernel(*exact), case.by_kernel(low[0].to(torch.bfloat16), *low[1:])
    assert all(part.dtype == torch.float32 for part in found)
    for left, right in zip(found, expected, strict=True):
        assert cosine(left, right) > 0.999
    gradients = torch.autograd.grad(expected, exact, case.upstream)
    close = torch.autograd.grad(found, low, [upstream.float() for upstream in case.upstream])
    for left, right in zip(close, gradients, strict=True):
        assert cosine(left, right) > 0.99


def cosine(left: Tensor, right: Tensor) -> float:
    return torch.cosine_similarity(left.double().flatten(), right.double().flatten(), dim=0).item()


def test_no_step_at_all_leaves_the_state_as_it_was() -> None:
    case = Case(True, "both", False, False)
    case.packing = Packing((), torch.arange(4))
    empty = case.inputs[:, :0]
    for run in (case.by_kernel, case.by_reference):
        outputs, h, c = run(empty, case.h, case.c, case.recurrent, case.projection)
        assert outputs.shape == (2, 0, DIM)
        assert torch.equal(h, case.h) and torch.equal(c, case.c)


def one_layer() -> tuple[BidirectionalLSTM, list[Tensor], Packing]:
    """With an input of its own, its state, and a ragged stream."""
    torch.manual_seed(2)
    layer = BidirectionalLSTM(LSTMConfig(cell_dim=20, projection_dim=6, cell_clip=0.7, proj_clip=0.4))
    packing = pack_sentences([4, 1, 0, 3, 2, 5], [0, 1, 1, 3, 0, 1], 4, True).packing
    return layer, [torch.randn(2, 15, 6), torch.randn(2, 4, 6), torch.randn(2, 4, 20)], packing


def test_a_layer_is_the_same_however_its_products_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, tensors, packing = one_layer()
    leaves = [*(tensor.requires_grad_() for tensor in tensors), *layer.parameters()]

    def values_and_gradients() -> list[Tensor]:
        outputs, state = layer.run(tensors[0], packing, LSTMState(*tensors[1:]))
        values = [outputs, state.h, state.c]
        return [*values, *torch.autograd.grad([value.square().sum() for value in values], leaves)]

    joined = values_and_gradients()
    monkeypatch.setattr(lstm, "joins_products", lambda *_: False)
    apart = values_and_gradients()
    with torch.no_grad():
        outputs, state = layer.run(tensors[0], packing, LSTMState(*tensors[1:]))
    for found, expected in [*zip(joined, apart, strict=True), *zip([outputs, state.h, state.c], apart, strict=False)]:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_layer_that_does_not_learn_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, (x, *state), packing = one_layer()
    expected, _ = layer.run(x, packing, LSTMState(*state))
    layer.requires_grad_(False)
    monkeypatch.setattr(packed, "empty_trace", None)
    found, _ = layer.run(x, packing, LSTMState(*state))
    assert not found.requires_grad
    torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)


def test_a_hook_sees_a_layer_that_learns() -> None:
    layer, (x, *state), packing = one_layer()
    seen: list[Tensor] = []
    layer.register_forward_hook(lambda _, __, output: seen.append(output[0]))
    outputs, _ = layer.run(x, packing, LSTMState(*state))
    assert len(seen) == 1 and seen[0] is outputs


def test_the_forget_bias_is_added_at_run_time_and_never_stored() -> None:
    torch.manual_seed(0)
    layer = BidirectionalLSTM(LSTMConfig(cell_dim=CELL, projection_dim=DIM, forget_bias=1.5))
    assert not layer.bias.any()
    products = layer.input_products(torch.zeros(2, 1, DIM))
    expected = torch.zeros(2, 1, 4, CELL)
    expected[:, :, 2] = 1.5  # gates: i, g, f, o
    assert torch.equal(products, expected.flatten(2))


def test_initialisation_is_glorot_uniform_on_the_stacked_kernel() -> None:
    torch.manual_seed(0)
    layer = BidirectionalLSTM(LSTMConfig(cell_dim=128, projection_dim=64))
    bound = (6 / (2 * 64 + 4 * 128)) ** 0.5
    for weight in (layer.input_weight, layer.recurrent_weight):
        assert 0.99 * bound < weight.abs().max() <= bound
    assert layer.projection_weight is not None
    assert 0.99 * (6 / 192) ** 0.5 < layer.projection_weight.abs().max() <= (6 / 192) ** 0.5


@pytest.mark.parametrize("cell_dim", [DIM, CELL])
def test_torch_without_clips_agrees(cell_dim: int) -> None:
    """torch.nn.LSTM has the same projected cell, less the clips: rows i, f, g, o, two biases."""
    torch.manual_seed(1)
    layer = BidirectionalLSTM(LSTMConfig(1, cell_dim, DIM, cell_clip=None, proj_clip=None)).double()
    theirs = torch.nn.LSTM(DIM, cell_dim, proj_size=DIM if cell_dim != DIM else 0).double()
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    state = LSTMState(torch.zeros(2, 1, DIM, dtype=torch.float64), torch.zeros(2, 1, cell_dim, dtype=torch.float64))
    outputs, _ = layer(layer.input_products(x), Packing.rectangle(5, 1), state)
    for d in range(2):
        with torch.no_grad():
            theirs.weight_ih_l0.copy_(_torch_order(layer.input_weight[d]))
            theirs.weight_hh_l0.copy_(_torch_order(layer.recurrent_weight[d]))
            theirs.bias_ih_l0.copy_(_torch_order(layer.input_products(torch.zeros_like(x[:, :1]))[d, 0]))
            theirs.bias_hh_l0.zero_()
            if layer.projection_weight is not None:
                theirs.weight_hr_l0.copy_(layer.projection_weight[d])
        torch.testing.assert_close(outputs[d], theirs(x[d].unsqueeze(1))[0][:, 0], atol=1e-12, rtol=0)


def _torch_order(rows: Tensor) -> Tensor:
    i, g, f, o = rows.chunk(4)
    return torch.cat([i, f, g, o])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_computes() -> None:
    code = """
import os, signal, torch
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
torch.set_num_threads(2)
bilm, ids = BiLM(BiLMConfig.preset("tiny")), torch.randint(1, 200, (2, 3, 10))
with torch.no_grad():
    bilm(ids)
    child = os.fork()
    if not child:
        signal.alarm(20)
        bilm(ids)
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
