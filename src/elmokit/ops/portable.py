"""Ops in PyTorch for any device, with gradients of our own, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably
from elmokit.ops.functional import LSTMResult, LSTMState, LSTMSteps, LSTMWeights
from elmokit.ops.memory import allocate, allocate_like, converted, upload
from elmokit.ops.packing import Packing
from elmokit.runtime import accumulation_dtype
from elmokit.threads import parallel_rows

# --- Linear maps and highway layers ---------------------------------------------------------------

# of a GEMM's rows, each computed by one thread; a fixed number, whatever the number of threads
CHUNKS = 8
CHUNK_ROWS = 32  # rows per chunk of a highway layer: they stay in cache for several passes


def gemm(a: Tensor, b: Tensor, bias: Tensor | None = None, add_to: Tensor | None = None) -> Tensor:
    """a (M, K) @ b (K, N), plus a bias (N,), or added to a tensor (M, N) in place.

    It has the same bits on any number of threads, which BLAS alone does not promise.
    """
    out = allocate((len(a), b.shape[1]), a.dtype, a.device) if add_to is None else add_to

    def run(rows: slice) -> None:
        if add_to is None and bias is None:
            torch.mm(a[rows], b, out=out[rows])
        else:
            torch.addmm(out[rows] if bias is None else bias, a[rows], b, out=out[rows])

    parallel_rows(run, len(a), max(1, -(-len(a) // CHUNKS)), a.device)
    return out


def linear_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensors]:
    x, weight = converted(x, dtype), converted(weight, dtype)
    return gemm(x, weight.T, bias.to(dtype)), (x, weight)


def linear_backward(saved: Sequence[Tensor], grad: Tensor, dtype: torch.dtype) -> Tensors:
    x, weight = saved
    return gemm(grad, weight), gemm(grad.T, x), grad.sum(dim=0, dtype=accumulation_dtype(dtype))


linear = partial(differentiably, linear_forward, linear_backward)


def highway_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensors]:
    x, weight = x.to(dtype).contiguous(), converted(weight, dtype)
    gates, out = gemm(x, weight.T, bias.to(dtype)), allocate_like(x)

    def run(rows: slice) -> None:
        transform, carry = gates[rows].chunk(2, dim=1)
        torch.lerp(x[rows], transform.relu_(), carry.sigmoid_(), out=out[rows])

    parallel_rows(run, len(x), CHUNK_ROWS, x.device)
    return out, (gates, x, weight)


def highway_backward(saved: Sequence[Tensor], grad: Tensor, dtype: torch.dtype) -> Tensors:
    gates, x, weight = saved
    grad_x, grad_gates = allocate_like(x), allocate_like(gates)

    def run(rows: slice) -> None:
        # y = c t + (1 - c) x, with t = relu(..) and c = sigmoid(..), which the gates hold:
        # dt = c dy where t > 0,  dc = (t - x) dy c (1 - c),  dx = dy - c dy
        transform, carry = gates[rows].chunk(2, dim=1)
        grad_transform, grad_carry = grad_gates[rows].chunk(2, dim=1)
        through = grad[rows] * carry
        torch.mul(through, transform > 0, out=grad_transform)
        torch.mul(transform - x[rows], through, out=grad_carry).mul_(1 - carry)
        torch.sub(grad[rows], through, out=grad_x[rows])

    parallel_rows(run, len(x), CHUNK_ROWS, x.device)
    gemm(grad_gates, weight, add_to=grad_x)
    grad_bias = grad_gates.sum(dim=0, dtype=accumulation_dtype(dtype))
    return grad_x, gemm(grad_gates.T, x), grad_bias


highway = partial(differentiably, highway_forward, highway_backward)


# --- Prepacked weights ----------------------------------------------------------------------------
#
# In oneDNN's own layout, with which embedding in float32 takes a quarter less time on a CPU than
# with PyTorch's GEMM. PyTorch has these functions for its compiler only, so they are tried before
# they are used.

ROWS_OF_AN_OCTAVE = 8  # numbers of rows per power of two with which oneDNN is called


def _onednn_linear(x: Tensor, prepacked: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, prepacked, bias, "none", [], "")


def _in_onednn_layout(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)


@cache
def _has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN's GEMM of a dtype is there, and right for small integers."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    x = torch.arange(70 * 40, device="cpu").remainder(3).view(70, 40).to(dtype)
    try:
        return torch.equal(_onednn_linear(x, _in_onednn_layout(x), None), x @ x.T)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


class PrepackedLinear:
    """x @ weight.T, plus a bias if there is one, in one dtype; keeps a copy of `weight`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.dtype, self._bias = dtype, None if bias is None else bias.detach().to(dtype, copy=True)
        self._prepack(weight.detach().to(dtype, copy=True).contiguous())

    def _prepack(self, weight: Tensor) -> None:
        self._is_prepacked = weight.device.type == "cpu" and _has_onednn(self.dtype)
        self._weight = _in_onednn_layout(weight) if self._is_prepacked else weight

    def __call__(self, x: Tensor) -> Tensor:
        """x (M, K) -> (M, N)."""
        x, rows = x.to(self.dtype), len(x)
        if not self._is_prepacked:
            return F.linear(x, self._weight, self._bias)
        if rows == 0:
            return x.new_empty(0, len(self._weight))
        # oneDNN compiles, and keeps, a kernel for each number of rows: zeros are appended, so that
        # there are few: 17, 18, 20, 22, ... 32 rows, 36, 40, ... 64 rows.
        step = max(1, (1 << (rows - 1).bit_length()) // ROWS_OF_AN_OCTAVE)
        x = F.pad(x, (0, 0, 0, -rows % step)).contiguous()
        return _onednn_linear(x, self._weight, self._bias)[:rows]

    def __getstate__(self) -> dict[str, Any]:
        """The weight in PyTorch's layout: oneDNN's depends on the machine."""
        return {**vars(self), "_weight": self._weight.to_dense()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepack(self._weight)


prepack_linear = PrepackedLinear


def _run_prepacked_highway(gates: PrepackedLinear, x: Tensor) -> Tensor:
    transform, carry = gates(x).chunk(2, dim=1)
    return torch.lerp(x.to(gates.dtype), transform.relu_(), carry.sigmoid_())


def prepack_highway(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return partial(_run_prepacked_highway, PrepackedLinear(weight, bias, dtype))


# --- Log-sum-exp of a softmax's logits ------------------------------------------------------------
#
# One tile of logits at a time, computed again for the gradient:
#
#               classes   0 ..      8192 ..     16384 ..   V
#     rows   0 ..         tile      tile        tile
#          128 ..         tile      tile        tile

LOGITS_AT_ONCE = 1 << 20  # 4 MB in float32: a tile stays in cache between the product and the sum
MIN_ROWS = 64  # per tile, for any number of classes: with fewer, products are slow
# tiles are this much larger on a GPU, where launching a kernel costs more than memory
GPU_FACTOR = 64


def _slices(total: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, total)) for begin in range(0, total, size)]


def _tiles(hidden: Tensor, weight: Tensor) -> Iterator[tuple[slice, list[slice]]]:
    """Yield slices of the rows of `hidden`, each with the slices of the classes."""
    logits = LOGITS_AT_ONCE * (1 if hidden.device.type == "cpu" else GPU_FACTOR)
    rows = max(MIN_ROWS, logits // len(weight))
    classes = _slices(len(weight), max(1, logits // rows))
    for part in _slices(len(hidden), rows):
        yield part, classes


def _logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    excluded: Tensor | None,
    rows: slice,
    classes: slice,
) -> Tensor:
    logits = (hidden[rows] @ weight[classes].T).to(accumulation_dtype(bias.dtype))
    logits += bias[classes]
    if excluded is not None:
        # One write for each row, of the logit itself where none is excluded: to find these rows
        # would wait for a GPU. A tile of classes 4 to 7, where 5, none and 9 are excluded:
        #
        #     excluded         5   -1    9
        #     column           1   -5    5     5 - 4, -1 - 4, 9 - 4
        #     clamped column   1    0    3     the two last keep their logits
        column = excluded[rows, None].long() - classes.start
        clamped = column.clamp(0, logits.shape[1] - 1)
        values = logits.gather(1, clamped).masked_fill_(clamped == column, -torch.inf)
        logits.scatter_(1, clamped, values)
    return logits


def logsumexp_forward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    excluded: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensors]:
    hidden, weight = hidden.to(dtype), weight.to(dtype)
    result = torch.empty(len(hidden), dtype=accumulation_dtype(dtype), device=hidden.device)
    for rows, tiles in _tiles(hidden, weight):
        parts = [
            torch.logsumexp(_logits(hidden, weight, bias, excluded, rows, classes), dim=1)
            for classes in tiles
        ]
        result[rows] = torch.logsumexp(torch.stack(parts), dim=0)
    # finite, so that a row whose only class is excluded has a gradient of 0 and not NaN
    result.clamp_(min=torch.finfo(result.dtype).min)
    return result, (hidden, weight, bias, excluded, result)


def logsumexp_backward(saved: Any, grad: Tensor, dtype: torch.dtype) -> Tensors:
    hidden, weight, bias, excluded, result = saved
    grad_hidden, grad_weight, grad_bias = (
        torch.zeros_like(tensor, dtype=result.dtype) for tensor in (hidden, weight, bias)
    )
    for rows, tiles in _tiles(hidden, weight):
        for classes in tiles:
            # the gradient of the logits: e^(logit - result), a probability, times grad
            logits = _logits(hidden, weight, bias, excluded, rows, classes)
            grad_logits = logits.sub_(result[rows, None]).exp_().mul_(grad[rows, None])
            grad_bias[classes] += grad_logits.sum(dim=0)
            grad_logits = grad_logits.to(dtype)
            grad_hidden[rows] += grad_logits @ weight[classes]
            grad_weight[classes] += grad_logits.T @ hidden[rows]
    return grad_hidden, grad_weight, grad_bias, None


logsumexp = partial(differentiably, logsumexp_forward, logsumexp_backward)


# --- LSTM -----------------------------------------------------------------------------------------
#
# Step by step; the backward pass goes over the values that the forward pass saved for each slot.
# The gradient of a weight is one product over all steps.

# Without gradients the products of a layer's input are computed for about this many slots at a
# time: enough for a fast product, few enough that they stay in cache until the steps have used
# them. A GPU has no such cache.
CHUNK_SLOTS, CHUNK_SLOTS_ON_GPU = 512, 16_384


def _steps_with_resets(
    packing: Packing,
    device: torch.device,
) -> list[tuple[slice, int, Tensor | None]]:
    """For each step its slots, its number of rows, and the ranks that are reset (None: no row)."""
    steps = list(packing.steps())
    if packing.resets is None or not steps:
        return [(slots, rows, None) for slots, rows in steps]
    # Steps that start at slots 0, 2, 4, and resets at slots 0, 1 and 5:
    #
    #     slot    0  1   2  3   4  5        reset  0 1 5
    #     step    0  0   1  1   2  2        step   0 0 2
    #     rank    0  1   0  1   0  1        rank   0 1 1, split by step: 0 1 | - | 1
    starts, reset = np.array(packing.starts()), np.flatnonzero(packing.resets.cpu().numpy())
    step = np.searchsorted(starts, reset, side="right") - 1
    # One transfer for all steps: one for each would synchronize with the GPU every time.
    (ranks,) = upload([torch.from_numpy(reset - starts[step])], device)
    ranks_of_steps = ranks.split(np.bincount(step, minlength=len(steps)).tolist())
    return [
        (slots, rows, ranks if len(ranks) else None)
        for (slots, rows), ranks in zip(steps, ranks_of_steps, strict=True)
    ]


class _Trace(NamedTuple):
    """The values of each slot that the backward pass needs."""

    gates: Tensor  # (N, 4H), after the activation functions
    hidden: Tensor  # (N, H), the output before the projection
    cells: Tensor
    previous_c: Tensor
    previous_h: Tensor  # (N, D)


def _forward_steps(
    inputs: Tensor,
    state: LSTMState,
    recurrent: PrepackedLinear,
    projection: PrepackedLinear | None,
    steps: LSTMSteps,
    outputs: Tensor,
    trace: _Trace | None = None,
) -> None:
    """Fill `outputs`, and `trace` if given, from the products of the input; update the state."""
    packing, (cell_clip, projection_clip), reset_state = steps
    size, max_rows = state.c.shape[1], max(packing.batch_sizes, default=0)
    scratch = inputs.new_empty(max_rows, 4 * size), inputs.new_empty(max_rows, size)
    for slots, rows, resets in _steps_with_resets(packing, inputs.device):
        if resets is not None:
            state.h[resets], state.c[resets] = reset_state
        # The rows of a step are the first ones; the state of the others, which have ended, stays.
        h, c = state.h[:rows], state.c[:rows]
        gates, hidden = (part[:rows] for part in scratch)
        if trace is not None:
            gates, hidden = trace.gates[slots], trace.hidden[slots]
            trace.previous_h[slots], trace.previous_c[slots] = h, c
        torch.add(inputs[slots], recurrent(h), out=gates)
        # c <- clip(sigmoid(i) tanh(g) + sigmoid(f) c) and hidden <- sigmoid(o) tanh(c)
        wide = gates.to(c.dtype)
        i, g, f, o = wide.chunk(4, dim=1)
        i.sigmoid_()
        g.tanh_()
        wide[:, 2 * size :].sigmoid_()  # f and o lie side by side
        c.mul_(f).addcmul_(i, g)
        if cell_clip < math.inf:
            c.clamp_(-cell_clip, cell_clip)
        if trace is not None:
            trace.cells[slots] = c
            gates.copy_(wide)
        hidden.copy_(torch.tanh(c).mul_(o))
        if projection is not None:
            hidden = projection(hidden)
            if projection_clip < math.inf:
                hidden.clamp_(-projection_clip, projection_clip)
        h.copy_(hidden)
        outputs[slots] = h


def lstm_forward(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    *weights: Any,
    steps: LSTMSteps,
    dtype: torch.dtype,
) -> tuple[tuple[Tensor, ...], Tensors]:
    low: Any = [weight if weight is None else weight.to(dtype) for weight in weights]
    input, recurrent, bias, projection = low
    low_x, state = x.to(dtype), LSTMState(h, c).copy()

    def for_slots(size: int, of_type: torch.dtype) -> Tensor:
        return allocate((len(x), size), of_type, x.device)

    size, width = c.shape[1], h.shape[1]
    trace = _Trace(
        gates=for_slots(4 * size, dtype),
        hidden=for_slots(size, dtype),
        cells=for_slots(size, c.dtype),
        previous_c=for_slots(size, c.dtype),
        previous_h=for_slots(width, dtype),
    )
    outputs = for_slots(width, h.dtype)
    inputs = torch.addmm(bias, low_x, input.T)
    times_recurrent = PrepackedLinear(recurrent, None, dtype)
    times_projection = None if projection is None else PrepackedLinear(projection, None, dtype)
    _forward_steps(inputs, state, times_recurrent, times_projection, steps, outputs, trace)
    return (outputs, *state), (*trace, outputs, low_x, input, recurrent, projection)


def lstm_backward(saved: Any, *gradients: Tensor, steps: LSTMSteps, dtype: torch.dtype) -> Tensors:
    *of_trace, outputs, x, input, recurrent, projection = saved
    trace, (cell_clip, projection_clip) = _Trace(*of_trace), steps.clips
    grad_outputs, grad_h, grad_c = (
        part.clone(memory_format=torch.contiguous_format) for part in gradients
    )
    grad_gates = torch.empty_like(trace.gates)
    # rounded as in the clipped outputs
    projection_clip = torch.tensor(projection_clip, dtype=dtype, device="cpu").item()
    times_recurrent = PrepackedLinear(recurrent.T, None, dtype)
    times_projection = None if projection is None else PrepackedLinear(projection.T, None, dtype)
    for slots, rows, resets in reversed(_steps_with_resets(steps.packing, x.device)):
        # h is the output, and goes into the next step of the same row.
        grad_hidden = grad_outputs[slots].add_(grad_h[:rows])
        if times_projection is not None:
            if projection_clip < math.inf:
                grad_hidden *= outputs[slots].abs() < projection_clip
            grad_hidden = times_projection(grad_hidden)
        cells, previous_c = trace.cells[slots], trace.previous_c[slots]
        grad_hidden, grad_cell = grad_hidden.to(dtype).to(cells.dtype), grad_c[:rows]
        i, g, f, o = (gate.to(cells.dtype) for gate in trace.gates[slots].chunk(4, dim=1))
        tanh_c = torch.tanh(cells)
        grad_cell.addcmul_(grad_hidden * o, 1 - tanh_c * tanh_c)
        if cell_clip < math.inf:
            grad_cell *= cells.abs() < cell_clip
        grad_i, grad_g, grad_f, grad_o = grad_gates[slots].chunk(4, dim=1)
        grad_i.copy_(grad_cell * g * (i * (1 - i)))
        grad_g.copy_(grad_cell * i * (1 - g * g))
        grad_f.copy_(grad_cell * previous_c * (f * (1 - f)))
        grad_o.copy_(grad_hidden * tanh_c * (o * (1 - o)))
        grad_cell *= f  # from here on the gradient of the cell before the step
        grad_h[:rows] = times_recurrent(grad_gates[slots])
        if resets is not None:
            grad_h[resets], grad_c[resets] = 0, 0
    grad_projection = None if projection is None else grad_outputs.to(dtype).T @ trace.hidden
    return (
        grad_gates @ input,
        grad_h,
        grad_c,
        grad_gates.T @ x,
        grad_gates.T @ trace.previous_h,
        grad_gates.sum(dim=0, dtype=grad_c.dtype),
        grad_projection,
    )


lstm = partial(differentiably, lstm_forward, lstm_backward)


class StepwiseLSTM:
    """A layer with prepacked weights, step by step; see `functional.prepack`."""

    def __init__(self, weights: LSTMWeights, dtype: torch.dtype) -> None:
        self._input = PrepackedLinear(weights.input, weights.bias, dtype)
        self._recurrent = PrepackedLinear(weights.recurrent, None, dtype)
        self._projection = None
        if weights.projection is not None:
            self._projection = PrepackedLinear(weights.projection, None, dtype)

    def __call__(
        self,
        x: Tensor,
        state: LSTMState,
        steps: LSTMSteps,
        index: Tensor | None,
    ) -> LSTMResult:
        state, packing = state.copy(), steps.packing
        out = allocate((packing.num_slots, state.h.shape[1]), state.h.dtype, x.device)
        products: Any = None if index is None else self._input(x)
        chunk_slots = CHUNK_SLOTS if x.device.type == "cpu" else CHUNK_SLOTS_ON_GPU
        for slots, chunk in packing.windows(chunk_slots):
            inputs = self._input(x[slots]) if index is None else products[index[slots]]
            chunk_steps = steps._replace(packing=chunk)
            _forward_steps(
                inputs, state, self._recurrent, self._projection, chunk_steps, out[slots]
            )
        return out, state


prepack_lstm = StepwiseLSTM
