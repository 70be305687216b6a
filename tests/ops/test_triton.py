"""The Triton LSTM against the reference and its gradients: interpreted where there is no GPU, else
compiled.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elmokit.checkpoints.loading import load
from elmokit.config import LSTMConfig
from elmokit.nn.bidirectional import BiLMState
from elmokit.nn.inference import prepack
from elmokit.nn.lstm import BidirectionalLSTM
from elmokit.ops import functional, reference
from elmokit.ops.autograd import differentiably
from elmokit.ops.dispatch import choose, explain
from elmokit.ops.functional import LSTMState, LSTMSteps, LSTMWeights
from elmokit.ops.packing import PackedText, Packing

triton = pytest.importorskip(
    "triton", reason="NO TRITON: its kernels are not tested (pip install triton)"
)
from elmokit.ops.triton import lstm as kernels  # noqa: E402

# Slow where it is interpreted. Triton 3.9 announces another default at its first compilation.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.any_backend,
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]
HIDDEN, WIDTH, INPUT = 64, 32, 10  # two blocks of cells
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
LENGTHS = [4, 1, 0, 3, 2, 5, 1, 1, 2]
ROWS = [0, 1, 1, 3, 0, 1, 4, 5, 6]
PACKINGS = {
    "a window": replace(
        Packing.rectangle(3, 18), resets=torch.arange(54) % 7 == 3
    ),  # more rows than a program has
    "reset": PackedText.of_sentences(LENGTHS, ROWS, 8, reset=True).packing,
    "carried": PackedText.of_sentences(LENGTHS, ROWS, 8, reset=False).packing,
    "one row": Packing.rectangle(3, 1),
    "no slots": Packing.rectangle(0, 3),
}
CLIPS = {"free": (math.inf, math.inf), "clipped": (0.7, 0.5)}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    if request.param == "cuda":
        yield torch.device("cuda:0")
        return
    if not triton.knobs.runtime.interpret:
        pytest.skip("compiled, not interpreted, where there is a GPU")
    torch.use_deterministic_algorithms(True)  # fills what is allocated with NaN
    yield torch.device("cpu")
    torch.use_deterministic_algorithms(False)


def transposed(tensor: Tensor) -> Tensor:
    """The same values, and those of a matrix column after column: memory may lie in any order."""
    return tensor.mT.contiguous().mT if tensor.dim() == 2 else tensor


class Case:
    """Random inputs of a layer."""

    def __init__(
        self, packing: Packing, clips: tuple[float, float], hidden: int = HIDDEN, width: int = WIDTH
    ) -> None:
        self.packing = packing
        self.clips = clips
        slots, rows = (
            packing.num_slots,
            max(packing.batch_sizes, default=0) + 1,
        )  # a row has nothing to read
        generator = torch.Generator().manual_seed(slots)

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            return scale * torch.randn(shape, generator=generator)

        self.leaves = [
            draw(slots, INPUT),
            draw(rows, width),
            draw(rows, hidden),
            draw(4 * hidden, INPUT, scale=INPUT**-0.5),
            draw(4 * hidden, width, scale=width**-0.5),
            draw(4 * hidden),
            draw(width, hidden, scale=2 * hidden**-0.5),
        ]
        self.start = LSTMState(draw(1, width), draw(1, hidden))
        self.upstream = [draw(slots, width), draw(rows, width), draw(rows, hidden)]

    def run(self, implementation: Any, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
        """Outputs, h, c and the gradients of all leaves."""
        leaves, start, upstream = (
            [transposed(part.to(device)) for part in parts]
            for parts in (self.leaves, self.start, self.upstream)
        )
        for leaf in leaves:
            leaf.requires_grad_()
        (x, h, c, *weights), start = leaves, LSTMState(*start)
        steps = LSTMSteps(self.packing, self.clips, start)
        found = implementation.lstm(x, h, c, *weights, steps=steps, dtype=dtype)
        gradients = torch.autograd.grad(found, leaves, upstream, materialize_grads=True)
        return [each.detach().cpu() for each in (*found, *gradients)]


def by_reference(case: Case, dtype: torch.dtype, cells: Tensor, outputs: Tensor) -> list[Tensor]:
    """The reference, which takes those values for clipped that the kernel has clipped.

    A value that is clipped has no gradient. One that lies on the clip but for its rounding is
    clipped by one of two implementations and not by the other, and a single one changes gradients
    by several percent. So this checks that they disagree within rounding of the clip alone, and
    compares the gradients of the same decisions.
    """
    clamp = Tensor.clamp
    tolerance = TOLERANCE[dtype]
    values = iter([each[slots] for slots, _ in case.packing.steps() for each in (cells, outputs)])

    def decided(value: Tensor, low: float, high: float) -> Tensor:
        is_clipped = next(values).abs() >= torch.tensor(high)
        disagrees = is_clipped != (value.abs() >= high)
        assert ((value.abs() - high).abs()[disagrees] < tolerance).all()
        return torch.where(is_clipped, clamp(value.detach(), low, high), value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "clamp", decided)
        return case.run(reference, dtype, torch.device("cpu"))


def assert_equal_to_reference(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    saved: list[Tensor] = []
    forward = kernels.forward

    def keep(*inputs: Tensor, **settings: Any) -> Any:
        results, trace = forward(*inputs, **settings)
        saved.extend(trace)
        return results, trace

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "lstm", partial(differentiably, keep, kernels.backward))
        found = case.run(kernels, dtype, device)
    cells = saved[2].cpu()[max(case.packing.batch_sizes, default=0) :]
    expected = by_reference(case, dtype, cells, saved[4].cpu())
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        error = (ours - theirs).norm() / max(theirs.norm(), 1e-6)
        assert error <= TOLERANCE[dtype], f"result {number}: {error}"


# --- Values and gradients -------------------------------------------------------------------------


# The interpreter multiplies bfloat16 wrongly: NumPy has no such numbers.
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize(("packing", "clips"), [*zip(PACKINGS, cycle(CLIPS), strict=False)])
def test_values_and_gradients_equal_those_of_the_reference(
    device: torch.device, dtype: torch.dtype, packing: str, clips: str
) -> None:
    assert_equal_to_reference(Case(PACKINGS[packing], CLIPS[clips]), dtype, device)


@settings(max_examples=8)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 18)), max_size=12),
    st.booleans(),
    st.sampled_from([*CLIPS]),
)
def test_any_packing(sentences: list[tuple[int, int]], reset: bool, clips: str) -> None:
    if not triton.knobs.runtime.interpret:
        pytest.skip("compiled, not interpreted, where there is a GPU")
    packing = PackedText.of_sentences(
        [n for n, _ in sentences], [row for _, row in sentences], 19, reset
    ).packing
    assert_equal_to_reference(
        Case(packing, CLIPS[clips], 32, 16), torch.float32, torch.device("cpu")
    )


@pytest.mark.gpu
def test_the_sizes_of_the_bundled_model() -> None:
    case = Case(
        replace(Packing.rectangle(5, 40), resets=torch.arange(200) % 9 == 3),
        (0.7, 0.5),
        1024,
        256,
    )
    assert_equal_to_reference(case, torch.bfloat16, torch.device("cuda:0"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("packing", ["a window", "reset", "no slots"])
def test_prepacked_weights_and_an_index(
    device: torch.device, dtype: torch.dtype, packing: str
) -> None:
    case = Case(PACKINGS[packing], CLIPS["clipped"])
    slots = case.packing.num_slots
    x, h, c, *weights = case.leaves
    index = torch.arange(slots) * 7 % max(slots - 3, 1)
    steps = LSTMSteps(case.packing, case.clips, case.start)
    expected = reference.lstm(x[index], h, c, *weights, steps=steps, dtype=dtype)
    run = kernels.prepack_lstm(
        LSTMWeights(*(transposed(weight.to(device)) for weight in weights)), dtype
    )
    state_there, start = (
        LSTMState(*(part.to(device) for part in parts)) for parts in (LSTMState(h, c), case.start)
    )
    for source, rows in ((x, index.to(device)), (x[index], None)):
        outputs, final = run(
            source.to(device), state_there, steps._replace(reset_state=start), rows
        )
        for ours, theirs in zip((outputs, *final), expected, strict=True):
            assert (ours.cpu() - theirs).norm() <= TOLERANCE[dtype] * theirs.norm()
    assert torch.equal(state_there.h.cpu(), h)
    assert torch.equal(state_there.c.cpu(), c)


def test_a_nan_stays_in_its_row(device: torch.device) -> None:
    case = Case(Packing.rectangle(3, 4), CLIPS["clipped"])
    case.leaves[0][5, 3] = torch.nan  # step 1, row 1
    outputs, h, c, *_ = case.run(kernels, torch.float32, device)
    lost = outputs.view(3, 4, WIDTH).isnan()
    assert lost[1:, 1].all()
    assert lost.sum() == 2 * WIDTH
    assert h[1].isnan().all()
    assert h.isnan().sum() == WIDTH
    assert c[1].isnan().all()
    assert c.isnan().sum() == HIDDEN


def test_a_model_equals_allennlp(
    goldens: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interpreted; on a GPU, tests/golden/test_goldens.py runs these kernels."""
    if not triton.knobs.runtime.interpret:
        pytest.skip("compiled, not interpreted, where there is a GPU")
    monkeypatch.setattr(
        functional, "choose", lambda op, *request: kernels if op == "lstm" else choose(op, *request)
    )
    bilm = load(goldens("clips-bind-3layer-tanh")).bilm
    ids = torch.from_numpy(np.load(goldens("char_ids.npz"))["ids"].astype(np.int64))
    with np.load(goldens("clips-bind-3layer-tanh/allennlp.npz")) as file:
        golden = {key: torch.from_numpy(file[key]) for key in file.files}
    rows = golden["mask"].sum(dim=1).argsort()[:3]  # the shortest sentences
    with torch.no_grad():
        for model in (bilm, prepack(bilm, torch.float32)):
            out = model(ids[rows][:, : golden["mask"][rows].sum(dim=1).max()])
            for number, layer in enumerate(out.layers):
                expected = golden[f"zeros/layer{number}"][rows, : layer.shape[1]]
                torch.testing.assert_close(layer[out.mask], expected[out.mask], atol=5e-6, rtol=0)


# --- On a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_directions_on_two_streams(dtype: torch.dtype, tolerance: float) -> None:
    """Values and gradients are those of a single stream, while memory is allocated and released."""
    torch.manual_seed(0)
    encoder = BidirectionalLSTM(LSTMConfig(2, HIDDEN, WIDTH, cell_clip=3.0, proj_clip=3.0)).cuda()
    tokens = torch.randint(50, (2, 30 * 40), device="cuda")
    batches = torch.randn(6, 50, WIDTH, device="cuda")

    def results(batch: Tensor) -> list[Tensor]:
        packing = Packing.rectangle(30, 40)
        leaf = batch.clone().requires_grad_()
        others = tokens, packing, BiLMState.zeros(encoder.config, 40, batch), None, 0.0
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            layers, state = encoder(2 * leaf, *others)
            with torch.no_grad():
                alone, _ = encoder(2 * batch, *others)
        ((layers * layers).sum() + state.c.sum()).backward()
        gradients = [leaf.grad, *(weight.grad for weight in encoder.parameters())]
        encoder.zero_grad(set_to_none=True)
        return [layers.detach(), alone, state.h.detach(), state.c.detach(), *gradients]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "elmokit.nn.bidirectional.run_on_streams", lambda tasks, _: [task() for task in tasks]
        )
        expected = [results(batch) for batch in batches]
    found = [results(batch) for batch in batches]  # nothing waits for the GPU before all are issued
    for one, other in zip(found, expected, strict=True):
        for ours, theirs in zip(one, other, strict=True):
            assert (ours - theirs).norm() <= tolerance * theirs.norm()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_gpu() -> None:
    case = Case(PACKINGS["reset"], CLIPS["clipped"])
    device = torch.device("cuda:0")
    assert choose("lstm", device, torch.bfloat16, INPUT, WIDTH, HIDDEN) is kernels
    leaves = [leaf.to(device).requires_grad_() for leaf in case.leaves]
    start = LSTMState(*(part.to(device) for part in case.start))
    (x, h, c, *weights), packing = leaves, replace(case.packing)  # not on the GPU yet
    torch.cuda.set_sync_debug_mode("error")
    try:
        steps = LSTMSteps(packing, case.clips, start)
        outputs, _, c = kernels.lstm(x, h, c, *weights, steps=steps, dtype=torch.bfloat16)
        torch.autograd.grad(outputs.sum() + c.sum(), leaves)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- Where it runs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "major", "shared", "reason"),
    [
        (("cuda", torch.bfloat16, 10, 256, 1024), 9, 227, None),
        (("cuda", torch.float32, 10, 512, 4096), 8, 163, "shared memory"),
        (("cuda", torch.bfloat16, 10, 256, 1024), 7, 64, "capability"),
        (("cuda", torch.bfloat16, 10, 96, 1024), 9, 227, "power of two"),
        (("cuda", torch.bfloat16, 10, 256, 1000), 9, 227, "multiple of 32"),
        (("cpu", torch.bfloat16, 10, 256, 1024), 9, 227, "on a GPU"),
    ],
)
def test_where_it_runs(
    request_: tuple[Any, ...],
    major: int,
    shared: int,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
    backend: Callable[[str], None],
) -> None:
    properties = SimpleNamespace(major=major, shared_memory_per_block_optin=shared << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    backend("triton")
    reasons = explain("lstm", *request_)
    assert reasons["native"] == "only triton is allowed"
    if reason is None:
        assert list(reasons) == ["native", "triton"]
        assert reasons["triton"] is None
    else:
        assert reason in str(reasons["triton"])
        assert reasons["portable"] is None
    backend("portable")
    assert explain("lstm", *request_)["triton"] == "only portable is allowed"


def test_kernels_fit_in_the_registers_and_the_shared_memory_of_an_h100(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    script = Path(__file__).parents[1] / "support" / "compile_triton.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path], env=environment, check=True, stdout=subprocess.PIPE
    )
    for name, used in json.loads(done.stdout).items():
        assert used["stack"] == used["local"] == 0, (name, used)
        assert used["shared"] <= used["estimate"] <= 227 << 10, (name, used)
