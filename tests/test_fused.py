"""The recurrence as one compiled call, against the readable reference in float64: values and all gradients."""

import math
from collections.abc import Callable
from itertools import product
from types import ModuleType

import pytest
import torch
from processors import each_product_type, needs_products
from torch import Tensor

from elmokit.nn.kernels import fused, packed, stepwise
from elmokit.nn.kernels.packed import packed_lstm, packed_lstm_in_pieces
from elmokit.nn.kernels.passes import Run, Steps, Weights
from elmokit.nn.kernels.products import in_panels
from elmokit.nn.lstm import LSTMState, lstm_reference
from elmokit.nn.packing import Packing, pack_sentences

RAGGED = ([4, 1, 0, 3, 2, 5, 9, 1, 1, 2], [0, 1, 1, 3, 0, 1, 4, 5, 6, 7], 9)  # row 2 is empty, so is row 8
SIZES = [(6, 20), (70, 34), (128, 16), (2, 130)]  # (D, H): fewer than a vector, a rest, more than a panel
UNPROJECTED = [(34, 34), (16, 16)]
ODD_SIZES = [(7, 20), (6, 19)]
CLIPS = ["none", "cell", "projection", "both"]
STARTS = ["carried", "reset", "reset to a state"]


class Case:
    """Random inputs of one layer, of values that `dtype` can hold, large enough for the clips to bind.

    With a width `beside`, so many values are multiplied beside h, and the inputs are the same for every slot.
    """

    def __init__(self, sizes: tuple[int, int], clipped: str, start: str, dtype: torch.dtype, beside: int = 0) -> None:
        self.packing = pack_sentences(*RAGGED, reset=start != "carried").packing
        (dim, cell), (slots, rows) = sizes, (sum(RAGGED[0]), RAGGED[2])
        generator = torch.Generator().manual_seed(dim + cell)

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            return (scale * torch.randn(shape, generator=generator)).to(dtype).float()

        self.leaves = [
            draw(2, 1 if beside else slots, 4 * cell, scale=1.5),
            draw(2, rows, dim),
            draw(2, rows, cell),
            draw(2, 4 * cell, dim, scale=dim**-0.5),
            *([draw(2, dim, cell, scale=3 * cell**-0.5)] if dim != cell else []),
            *([draw(2, slots, beside), draw(2, 4 * cell, beside)] if beside else []),
        ]
        self.is_projected, self.has_beside = dim != cell, beside > 0
        self.start = (draw(2, 1, dim), draw(2, 1, cell)) if start == "reset to a state" else None
        self.clips = {
            "cell_clip": 0.7 if clipped in ("cell", "both") else None,
            "proj_clip": 0.5 if clipped in ("projection", "both") else None,
        }
        self.upstream = [draw(2, slots, dim), draw(2, rows, dim), draw(2, rows, cell)]
        self.dtype = dtype

    def by_kernel(self, overwrite: bool = False, passes: int = 1) -> list[Tensor]:
        """Outputs, h, c, and the gradients of all leaves, the last time that they are asked for."""
        leaves = [leaf.clone().requires_grad_() for leaf in self.leaves]
        (inputs, h, c, recurrent), rest = leaves[:4], leaves[4:]
        found = packed_lstm(
            inputs.to(self.dtype, copy=True),
            self.packing,
            h,
            c,
            recurrent,
            rest[0] if self.is_projected else None,
            **self.clips,
            start=self.start,
            overwrite=overwrite,
            beside=(rest[-2], rest[-1]) if self.has_beside else None,
        )
        for _ in range(passes - 1):
            torch.autograd.grad(found, leaves, self.upstream, retain_graph=True)
        return [*found, *torch.autograd.grad(found, leaves, self.upstream)]

    def by_reference(self) -> list[Tensor]:
        leaves = [leaf.double().requires_grad_() for leaf in self.leaves]
        (inputs, h, c, recurrent), rest = leaves[:4], leaves[4:]
        start = None if self.start is None else LSTMState(*(part.double() for part in self.start))
        outputs, state = lstm_reference(
            inputs + rest[-2] @ rest[-1].mT if self.has_beside else inputs,
            self.packing,
            LSTMState(h, c),
            recurrent,
            rest[0] if self.is_projected else None,
            **self.clips,
            start=start,
        )
        found = [outputs, state.h, state.c]
        return [*found, *torch.autograd.grad(found, leaves, [part.double() for part in self.upstream])]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Which kernels ran."""
    ran: set[str] = set()

    def note(module: ModuleType, name: str) -> None:
        function = getattr(module, name)

        def noted(*arguments) -> None:
            ran.add(module.__name__.rpartition(".")[2])
            function(*arguments)

        monkeypatch.setattr(module, name, noted)

    for kernel, name in product((fused, stepwise), ("forward_steps", "backward_steps")):
        note(kernel, name)
    return ran


@needs_products(torch.float32)
@pytest.mark.parametrize("sizes", [*SIZES, *UNPROJECTED, *ODD_SIZES])
@pytest.mark.parametrize("clipped", CLIPS)
@pytest.mark.parametrize("start", STARTS)
def test_float32_equals_the_reference(sizes: tuple[int, int], clipped: str, start: str, calls: set[str]) -> None:
    case = Case(sizes, clipped, start, torch.float32)
    for found, expected in zip(case.by_kernel(), case.by_reference(), strict=True):
        scale = expected.abs().max().item()
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5 * max(1, scale))
    assert calls == {"fused"}


@each_product_type
@pytest.mark.parametrize("sizes", [*SIZES, *UNPROJECTED])
@pytest.mark.parametrize("clipped", CLIPS)
@pytest.mark.parametrize("start", STARTS)
def test_values_beside_h(sizes: tuple[int, int], clipped: str, start: str, dtype: torch.dtype, calls: set[str]) -> None:
    case = Case(sizes, clipped, start, dtype, beside=10)
    errors = distance(case.by_kernel(), case.by_reference())
    within = 1e-5 if dtype == torch.float32 else 0.01
    assert max(errors[:3]) < within, errors
    # a value that rounding takes over a clip loses its gradient; an output of two values has few
    loosely = 0.03 if clipped == "none" else 0.3
    assert max(errors[3:]) < (within if dtype == torch.float32 else loosely), errors
    assert calls == {"fused"}


@pytest.mark.parametrize("start", STARTS)
def test_values_beside_h_step_by_step(start: str, monkeypatch: pytest.MonkeyPatch, calls: set[str]) -> None:
    monkeypatch.setattr(fused, "has_passes", lambda *_: False)
    case = Case((6, 20), "both", start, torch.float32, beside=10)
    assert max(distance(case.by_kernel(), case.by_reference())) < 1e-5
    assert calls == {"stepwise"}


@each_product_type
@pytest.mark.parametrize(("beside", "overwrite"), [(10, False), (0, False), (0, True)])
def test_a_graph_that_is_kept_gives_its_gradients_again(beside: int, overwrite: bool, dtype: torch.dtype) -> None:
    """A last pass writes over what it no longer needs."""
    case = Case((70, 34), "both", "reset", dtype, beside)
    for once, again in zip(case.by_kernel(overwrite), case.by_kernel(overwrite, passes=3), strict=True):
        assert torch.equal(once, again)


def test_an_odd_number_of_values_beside_h(calls: set[str]) -> None:
    case = Case((6, 20), "both", "reset", torch.bfloat16, beside=7)
    assert max(distance(case.by_kernel(), case.by_reference())) < 0.2
    assert calls == {"stepwise"}


def distance(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True)]


@needs_products(torch.bfloat16)
@pytest.mark.parametrize("sizes", [*SIZES, *UNPROJECTED])
@pytest.mark.parametrize("clipped", CLIPS)
@pytest.mark.parametrize("start", STARTS)
def test_bfloat16_is_as_close_as_rounding_lets_it(
    sizes: tuple[int, int], clipped: str, start: str, calls: set[str]
) -> None:
    case = Case(sizes, clipped, start, torch.bfloat16)
    errors = distance(case.by_kernel(), case.by_reference())
    assert max(errors[:3]) < 0.01, errors
    # a value that rounding takes over a clip loses its gradient
    assert max(errors[3:]) < (0.02 if clipped == "none" else 0.2), errors
    assert calls == {"fused"}


@needs_products(torch.bfloat16)
def test_bfloat16_is_no_further_off_than_steps_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case((128, 260), "none", "reset", torch.bfloat16)
    exact = case.by_reference()
    ours = distance(case.by_kernel(), exact)
    monkeypatch.setattr(packed.fused, "has_passes", lambda *_: False)
    for found, in_steps in zip(ours, distance(case.by_kernel(), exact), strict=True):
        assert found <= 1.2 * in_steps


@needs_products(torch.bfloat16)
@pytest.mark.parametrize("sizes", ODD_SIZES)
def test_odd_sizes_go_step_by_step_in_bfloat16(sizes: tuple[int, int], calls: set[str]) -> None:
    case = Case(sizes, "none", "reset", torch.bfloat16)
    assert max(distance(case.by_kernel(), case.by_reference())) < 0.03
    assert calls == {"stepwise"}


def test_other_types_go_step_by_step(calls: set[str]) -> None:
    zeros = torch.zeros(2, 3, 4, dtype=torch.float64)
    packed_lstm(zeros.repeat(1, 1, 4), Packing.rectangle(1, 3), zeros, zeros, zeros.repeat(1, 6, 1)[:, :16], None,
                cell_clip=None, proj_clip=None)  # fmt: skip
    assert calls == {"stepwise"}


@each_product_type
@pytest.mark.parametrize("rows", [*range(1, 14), 64, 130])
def test_any_number_of_rows(dtype: torch.dtype, rows: int) -> None:
    """Each row is computed as it would be alone, to the last bit."""
    generator = torch.Generator().manual_seed(rows)
    inputs, h, c = (torch.randn(2, n, size, generator=generator) for n, size in ((2 * rows, 80), (rows, 6), (rows, 20)))
    weights = torch.randn(2, 80, 6, generator=generator), torch.randn(2, 6, 20, generator=generator)

    def run(chosen: slice) -> tuple[Tensor, ...]:
        count = len(range(rows)[chosen])
        parts = inputs.view(2, 2, rows, 80)[:, :, chosen].flatten(1, 2).to(dtype)
        packing = Packing.rectangle(2, count)
        out, *final = packed_lstm(parts, packing, h[:, chosen], c[:, chosen], *weights, cell_clip=3.0, proj_clip=3.0)
        return out.view(2, 2, count, 6), *final

    outputs, *final = run(slice(None))
    for row in {0, rows // 2, rows - 1}:
        alone, *final_alone = run(slice(row, row + 1))
        assert torch.equal(alone[:, :, 0], outputs[:, :, row])
        assert all(torch.equal(one[:, 0], each[:, row]) for one, each in zip(final_alone, final, strict=True))


@each_product_type
def test_a_stream_in_pieces_gives_what_the_whole_does(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its weights are packed but once, those of each direction."""
    case, packed_weights = Case((6, 20), "both", "reset to a state", dtype), []
    pack_layer = fused.pack_layer
    monkeypatch.setattr(fused, "pack_layer", lambda *given: packed_weights.append(given) or pack_layer(*given))
    inputs, *others = case.leaves
    arguments = {**case.clips, "start": case.start}
    pieces = [(inputs[:, window].to(dtype), piece) for window, piece in case.packing.pieces(5)]
    found = packed_lstm_in_pieces(pieces, *others, **arguments)
    assert len(pieces) > 2 and len(packed_weights) == 2
    for left, right in zip(found, packed_lstm(inputs.to(dtype), case.packing, *others, **arguments), strict=True):
        assert torch.equal(left, right)


@each_product_type
def test_a_traced_pass_gives_what_an_untraced_one_does(dtype: torch.dtype) -> None:
    case = Case((6, 20), "both", "reset to a state", dtype)
    inputs, h, c, recurrent, projection = case.leaves
    arguments = {**case.clips, "start": case.start}
    untraced = packed_lstm(inputs.to(dtype), case.packing, h, c, recurrent, projection, **arguments)
    for left, right in zip(case.by_kernel()[:3], untraced, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("sizes", [(6, 20), (20, 20)])
def test_gates_in_the_place_of_the_inputs_change_no_bit(dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    case = Case(sizes, "both", "reset to a state", dtype)
    for left, right in zip(case.by_kernel(overwrite=True), case.by_kernel(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_inputs_that_were_overwritten_have_no_other_use(dtype: torch.dtype) -> None:
    case = Case((6, 20), "both", "carried", dtype)
    inputs, *others = [leaf.clone().requires_grad_() for leaf in case.leaves]
    made = inputs.to(dtype, copy=True)
    squared, before = made.square().sum(), made.detach().clone()
    outputs = packed_lstm(made, case.packing, *others, **case.clips, overwrite=True)[0]
    assert not torch.equal(made, before)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (outputs.sum() + squared).backward()


def one_direction(dtype: torch.dtype, slots: int) -> tuple[fused.PackedLayer, Callable[[Tensor], Run]]:
    """A layer of D 6 and H 20, and a run of it from the same state each time."""
    generator = torch.Generator().manual_seed(0)
    weights = Weights(torch.randn(80, 6, generator=generator), torch.randn(6, 20, generator=generator))
    h, c = torch.randn(4, 6, generator=generator), torch.randn(4, 20, generator=generator)
    start = torch.zeros(1, 6), torch.zeros(1, 20)
    return fused.pack_layer(weights, dtype), lambda inputs: Run(
        inputs, torch.empty(slots, 6), h.clone(), c.clone(), *start
    )


@each_product_type
def test_slots_may_share_rows_of_a_table(dtype: torch.dtype) -> None:
    layer, run_of = one_direction(dtype, slots=12)
    table, which = torch.randn(5, 80).to(dtype), torch.randint(0, 5, (12,))
    steps = Steps(Packing.rectangle(3, 4), 3.0, 3.0)
    shared, gathered = run_of(table), run_of(table[which].contiguous())
    fused.forward_steps(steps, layer, shared, None, which)
    fused.forward_steps(steps, layer, gathered, None)
    assert all(torch.equal(getattr(shared, name), getattr(gathered, name)) for name in ("outputs", "h", "c"))


@each_product_type
@pytest.mark.parametrize("shared", [True, False])
def test_inputs_may_lie_as_panels_do(dtype: torch.dtype, shared: bool) -> None:
    layer, run_of = one_direction(dtype, slots=12)
    inputs, which = torch.randn(12, 80).to(dtype), torch.randint(0, 12, (12,)) if shared else None
    steps = Steps(Packing.rectangle(3, 4), 3.0, 3.0)
    by_gate, by_panel = run_of(inputs), run_of(in_panels(inputs.T, gates=4).T.contiguous())
    fused.forward_steps(steps, layer, by_gate, None, which)
    fused.forward_steps(steps, layer, by_panel, None, which, inputs_in_panels=True)
    assert all(torch.equal(getattr(by_gate, name), getattr(by_panel, name)) for name in ("outputs", "h", "c"))
    with pytest.raises(AssertionError):
        fused.forward_steps(steps, layer, by_gate, None, which, inputs_in_panels=True)


@each_product_type
def test_what_the_kernel_cannot_read_is_refused(dtype: torch.dtype) -> None:
    layer, run_of = one_direction(dtype, slots=4)
    steps, inputs = Steps(Packing.rectangle(1, 4), None, None), torch.randn(4, 80).to(dtype)
    fused.forward_steps(steps, layer, run_of(inputs), None)
    for run, which in [
        (run_of(inputs.double()), None),
        (run_of(inputs)._replace(c=torch.zeros(4, 20, dtype=torch.float64)), None),
        (run_of(inputs)._replace(start_h=torch.zeros(1, 6, dtype=torch.bfloat16)), None),
        (run_of(inputs)._replace(outputs=torch.empty(6, 4).T), None),
        (run_of(inputs), torch.zeros(4, dtype=torch.int32)),
    ]:
        with pytest.raises(AssertionError):
            fused.forward_steps(steps, layer, run, None, which)


@each_product_type
@pytest.mark.parametrize("clip", [None, 3.0])
def test_a_nan_is_not_clipped_away(dtype: torch.dtype, clip: float | None) -> None:
    """From the slot where it comes in it stays in its row, and in no other."""
    torch.manual_seed(0)
    inputs, packing = torch.randn(2, 12, 80), Packing.rectangle(3, 4)
    weights = torch.randn(2, 80, 6), torch.randn(2, 6, 20)
    inputs[:, 5, 3] = torch.nan  # step 1, row 1
    state = torch.zeros(2, 4, 6), torch.zeros(2, 4, 20)
    outputs, h, c = packed_lstm(inputs.to(dtype), packing, *state, *weights, cell_clip=clip, proj_clip=clip)
    lost = outputs.view(2, 3, 4, 6).isnan()
    assert lost[:, 1:, 1].all() and lost.sum() == 2 * 2 * 6
    assert h[:, 1].isnan().all() and h.isnan().sum() == 2 * 6
    assert c[:, 1].isnan().all() and c.isnan().sum() == 2 * 20


@each_product_type
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-30, 50.0, -50.0, 1e4, -1e4, 3e38, -3e38, math.inf, -math.inf])
def test_gates_of_any_size(dtype: torch.dtype, value: float) -> None:
    def run(inputs: Tensor, h: Tensor, c: Tensor, weight: Tensor) -> Tensor:
        clips = {"cell_clip": 3.0, "proj_clip": None}
        if inputs.dtype == torch.float64:
            return lstm_reference(inputs, packing, LSTMState(h, c), weight, None, **clips)[0]
        return packed_lstm(inputs, packing, h, c, weight, None, **clips)[0]

    packing, zeros = Packing.rectangle(2, 2), torch.zeros(2, 2, 6)
    inputs = torch.full((2, 4, 24), value).to(dtype)
    arguments = zeros, zeros + 0.5, torch.zeros(2, 24, 6)
    expected = run(inputs.double(), *(part.double() for part in arguments))
    found = run(inputs, *arguments).double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 2**-8)


@each_product_type
@pytest.mark.parametrize("wanted", [[0], [1, 2], [3], [4], [0, 4], [2, 3]])
def test_gradients_of_some_inputs_are_those_of_all(dtype: torch.dtype, wanted: list[int]) -> None:
    case = Case((6, 20), "both", "reset", dtype)
    everything = case.by_kernel()[3:]
    leaves = [leaf.clone().requires_grad_(number in wanted) for number, leaf in enumerate(case.leaves)]
    inputs, *others = leaves
    found = packed_lstm(inputs.to(dtype), case.packing, *others, **case.clips)
    gradients = torch.autograd.grad(found, [leaves[number] for number in wanted], case.upstream)
    for number, gradient in zip(wanted, gradients, strict=True):
        assert torch.equal(gradient, everything[number])


@each_product_type
def test_gradients_of_some_outputs(dtype: torch.dtype) -> None:
    """Of what is not used the gradient is zero."""
    case = Case((6, 20), "both", "carried", dtype)
    case.upstream[1:] = [torch.zeros_like(part) for part in case.upstream[1:]]
    leaves = [leaf.clone().requires_grad_() for leaf in case.leaves]
    inputs, *others = leaves
    outputs = packed_lstm(inputs.to(dtype), case.packing, *others, **case.clips)[0]
    expected = case.by_kernel()[3:]
    for left, right in zip(torch.autograd.grad(outputs, leaves, case.upstream[0]), expected, strict=True):
        assert torch.equal(left, right)


def test_a_second_derivative_is_refused() -> None:
    case = Case((6, 20), "none", "carried", torch.float32)
    leaves = [leaf.clone().requires_grad_() for leaf in case.leaves]
    inputs, *others = leaves
    outputs = packed_lstm(inputs, case.packing, *others, **case.clips)[0]
    (gradient,) = torch.autograd.grad(outputs.square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@each_product_type
@pytest.mark.parametrize(("steps", "rows"), [(0, 3), (0, 0)])
def test_nothing_to_do(dtype: torch.dtype, steps: int, rows: int) -> None:
    leaves = [torch.randn(shape).requires_grad_() for shape in ((2, 0, 80), (2, rows, 6), (2, rows, 20), (2, 80, 6))]
    inputs, h, c, recurrent = leaves
    packing, projection = Packing.rectangle(steps, rows), torch.randn(2, 6, 20)
    found = packed_lstm(inputs.to(dtype), packing, h, c, recurrent, projection, cell_clip=1.0, proj_clip=1.0)
    assert found[0].shape == (2, 0, 6) and torch.equal(found[1], h) and torch.equal(found[2], c)
    gradients = torch.autograd.grad(found, leaves, [torch.ones_like(part) for part in found])
    assert all((gradient == (0 if number in (0, 3) else 1)).all() for number, gradient in enumerate(gradients))


@each_product_type
def test_two_cores_give_what_one_does(dtype: torch.dtype) -> None:
    case, threads = Case((6, 20), "both", "reset", dtype), torch.get_num_threads()
    torch.set_num_threads(1)
    alone = case.by_kernel()
    torch.set_num_threads(2)
    together = case.by_kernel()
    torch.set_num_threads(threads)
    for left, right in zip(together, alone, strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(("clipped", "number"), [("cell", 2), ("projection", 1)])
def test_the_clips_of_these_tests_bind_here_and_there(clipped: str, number: int) -> None:
    free, bound = (Case((6, 20), clips, "reset", torch.float32).by_reference()[number] for clips in ("none", clipped))
    assert 0 < (free == bound).double().mean() < 1
