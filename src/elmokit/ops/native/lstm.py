"""`lstm` on prepacked weights: one call runs all steps of a range of rows and applies the cell
directly to a product's sums (csrc/lstm_forward.h and lstm_backward.h).

Rows are independent of each other, so threads take ranges of them. A panel of the recurrent weight
holds the four gates of 16 units:

    gates of the weight   i0 .. i15 i16 ..   g0 .. g15 g16 ..   f0 .. f15 f16 ..   o0 .. o15 o16 ..
    panel 0               i0 .. i15 g0 .. g15 f0 .. f15 o0 .. o15
    panel 1               i16 .. i31 g16 .. g31 f16 .. f31 o16 .. o31

With gradients a step multiplies [x; h] by both weights at once; without, the products of x are
computed beforehand, for distinct rows or for a chunk of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably
from elmokit.ops.functional import LSTMResult, LSTMState, LSTMSteps, LSTMWeights
from elmokit.ops.memory import allocate, allocate_like
from elmokit.ops.native.gemm import (
    PANEL,
    PrepackedWeight,
    panel_order,
    prepack,
    product,
    quantized_bytes,
    result_dtype,
    value_dtype,
)
from elmokit.ops.native.library import native, require
from elmokit.threads import num_threads, parallel_for, parallel_rows

# slots per thread: their input products are still in cache when the steps read them
CHUNK_SLOTS = 256
ROWS_OF_A_SUM = 32  # rows whose bias gradients are summed together, as in csrc/elmokit.h
MIN_ROWS = 16  # per range: with fewer, the weights would be read too often
# of a weight's gradient: a fixed number, so that it does not depend on the number of threads
WEIGHT_CHUNKS = 4


def _row_ranges(rows: int, multiple: int = 1) -> list[tuple[int, int]]:
    """Ranges of rows for the threads, of about the same size, each a multiple of `multiple`."""
    # 100 rows on 3 threads: 0..34, 34..68, 68..100; in multiples of 32: 0..64, 64..100
    size = max(MIN_ROWS, -(-rows // num_threads()))
    size = -(-size // multiple) * multiple
    return [(begin, min(begin + size, rows)) for begin in range(0, rows, size)]


def _stream(steps: LSTMSteps) -> dict[str, Any]:
    """The arguments of forward and backward functions that describe the stream."""
    packing, (cell_clip, projection_clip), _ = steps
    return {
        "steps": len(packing.batch_sizes),
        "batch_sizes": torch.tensor(packing.batch_sizes, dtype=torch.int64, device="cpu"),
        "resets": None if packing.resets is None else packing.resets.contiguous(),
        "cell_clip": cell_clip,
        "projection_clip": projection_clip,
    }


def _panels(weight: PrepackedWeight | None) -> Tensor | None:
    return None if weight is None else weight.panels


def _forward_steps(
    dtype: torch.dtype,
    state: LSTMState,
    steps: LSTMSteps,
    scratch: tuple[Tensor, Tensor] | None,
    **arguments: Any,
) -> None:
    """Run all steps of a layer, ranges of its rows on each thread; the state is updated in place.

    `scratch`, needed only without gradients, has a row for each row of the state: h as it is
    multiplied, and the hidden values.
    """
    stream, ranges = _stream(steps), _row_ranges(len(state.h))

    def run(number: int) -> None:
        first, end = ranges[number]
        low_h, low_units = (
            (None, None) if scratch is None else (part[first:end] for part in scratch)
        )
        native("lstm_forward", dtype)(
            **stream,
            first_row=first,
            end_row=end,
            hidden=state.c.shape[1],
            width=state.h.shape[1],
            h=state.h,
            c=state.c,
            start_h=steps.reset_state.h,
            start_c=steps.reset_state.c,
            low_h=low_h,
            low_units=low_units,
            **arguments,
        )

    parallel_for(run, len(ranges))


# --- Without gradients ----------------------------------------------------------------------------


@dataclass(frozen=True)
class FusedLSTM:
    """A layer with prepacked weights of one dtype; see `functional.prepack`.

    The input weight's columns are in the order of the recurrent weight's panels, so that the
    products of 16 units lie side by side.
    """

    input: PrepackedWeight
    bias: Tensor
    recurrent: PrepackedWeight
    projection: PrepackedWeight | None

    def __call__(
        self,
        x: Tensor,
        state: LSTMState,
        steps: LSTMSteps,
        index: Tensor | None,
    ) -> LSTMResult:
        state, packing = state.copy(), steps.packing
        out = allocate((packing.num_slots, state.h.shape[1]), torch.float32)
        if index is not None:
            require(
                len(index) == 0 or bool(0 <= index.min() <= index.max() < len(x)),
                f"the index is not one of {len(x)} rows",
            )
            products = self._input_products(x, self._products_of(len(x)))
            self._run_steps(state, steps, products, index.contiguous(), out)
            return out, state
        # A chunk of the stream at a time: the products of its inputs, then its steps, which read
        # them from cache. The state goes on from chunk to chunk; all write to the same memory.
        #
        #     slots      0 ..       256 ..     512 ..     N
        #     products   |          |          |
        #     steps       ->         ->         ->
        chunk_slots = CHUNK_SLOTS * num_threads()
        memory = self._products_of(min(packing.num_slots, chunk_slots + len(state.h)))
        for slots, chunk in packing.windows(chunk_slots):
            products = self._input_products(x[slots], memory)
            self._run_steps(state, steps._replace(packing=chunk), products, None, out[slots])
        return out, state

    def _products_of(self, rows: int) -> Tensor:
        return allocate((rows, self.input.columns), result_dtype(self.input.panels.dtype))

    def _input_products(self, x: Tensor, out: Tensor) -> Tensor:
        """x (M, K) -> (M, 4H) in the order of panels, written to the first rows of `out`."""

        def run(rows: slice) -> None:
            product(x[rows], self.input, self.bias, out[rows])

        parallel_rows(run, len(x), max(CHUNK_SLOTS, -(-len(x) // num_threads())))
        return out[: len(x)]

    def _run_steps(
        self,
        state: LSTMState,
        steps: LSTMSteps,
        products: Tensor,
        index: Tensor | None,
        out: Tensor,
    ) -> None:
        dtype, (rows, width), hidden = self.input.panels.dtype, state.h.shape, state.c.shape[1]
        if dtype == torch.int8:
            low_h = torch.empty(
                rows, quantized_bytes(max(width, hidden)), dtype=torch.uint8, device="cpu"
            )
        else:
            low_h = torch.empty(rows, width, dtype=dtype, device="cpu")
        scratch = low_h, torch.empty(rows, hidden, dtype=value_dtype(dtype), device="cpu")
        _forward_steps(
            dtype,
            state,
            steps,
            scratch,
            input_width=0,
            recurrent=self.recurrent.panels,
            projection=_panels(self.projection),
            inputs=products,
            index=index,
            row_stride=products.shape[1],
            gate_stride=PANEL // 4,
            unit_stride=PANEL,
            outputs=out,
            gates=None,
            units=None,
            xh=None,
            cells=None,
            previous_c=None,
        )


def prepack_lstm(weights: LSTMWeights, dtype: torch.dtype) -> FusedLSTM:
    projection = (
        None if weights.projection is None else prepack(weights.projection, dtype).in_huge_pages()
    )
    return FusedLSTM(
        prepack(panel_order(weights.input, gates=4), dtype).in_huge_pages(),
        panel_order(weights.bias, gates=4).float().contiguous(),
        prepack(weights.recurrent, dtype, gates=4).in_huge_pages(),
        projection,
    )


# --- With gradients -------------------------------------------------------------------------------


def forward(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    *weights: Any,
    steps: LSTMSteps,
    dtype: torch.dtype,
) -> tuple[tuple[Tensor, ...], Tensors]:
    (slots, input_width), width, hidden = x.shape, h.shape[1], c.shape[1]
    (input, recurrent, bias, projection), state = weights, LSTMState(h, c).copy()
    prepacked = prepack(torch.cat([input.detach(), recurrent.detach()], dim=1), dtype, gates=4)
    prepacked_projection = None if projection is None else prepack(projection, dtype)
    gates, units, xh = (
        allocate((slots, size), dtype) for size in (4 * hidden, hidden, input_width + width)
    )
    cells, previous_c = (allocate((slots, hidden), torch.float32) for _ in range(2))
    outputs = allocate((slots, width), torch.float32)
    xh[:, :input_width] = x
    _forward_steps(
        dtype,
        state,
        steps,
        None,
        input_width=input_width,
        recurrent=prepacked.panels,
        projection=_panels(prepacked_projection),
        inputs=bias.detach().to(dtype),
        index=None,
        row_stride=0,
        gate_stride=hidden,
        unit_stride=PANEL // 4,
        outputs=outputs,
        gates=gates,
        units=units,
        xh=xh,
        cells=cells,
        previous_c=previous_c,
    )
    saved = (gates, units, xh, cells, previous_c, outputs, input, recurrent, projection)
    return (outputs, state.h, state.c), saved


def backward(saved: Any, *gradients: Tensor, steps: LSTMSteps, dtype: torch.dtype) -> Tensors:
    gates, units, xh, cells, previous_c, outputs, input, recurrent, projection = saved
    grad_outputs, grad_h, grad_c = (
        part.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        for part in gradients
    )
    (rows, width), hidden = grad_h.shape, grad_c.shape[1]
    input_width = input.shape[1]
    transposed = [
        None if weight is None else prepack(weight.T, dtype)
        for weight in (input, recurrent, projection)
    ]
    grad_x = allocate((len(gates), input_width), torch.float32)
    grad_bias = torch.zeros(
        -(-rows // ROWS_OF_A_SUM), 4 * hidden, dtype=torch.float32, device="cpu"
    )
    low = torch.empty(rows, width, dtype=dtype, device="cpu")
    stream, ranges = _stream(steps), _row_ranges(rows, ROWS_OF_A_SUM)

    def run(number: int) -> None:
        begin, end = ranges[number]
        native("lstm_backward", dtype)(
            **stream,
            first_row=begin,
            end_row=end,
            hidden=hidden,
            width=width,
            input_width=input_width,
            input=_panels(transposed[0]),
            recurrent=_panels(transposed[1]),
            projection=_panels(transposed[2]),
            outputs=outputs,
            gates=gates,
            cells=cells,
            previous_c=previous_c,
            grad_outputs=grad_outputs,
            grad_h=grad_h,
            grad_c=grad_c,
            grad_gates=gates,  # in place
            low=low[begin:end],
            grad_x=grad_x,
            grad_bias=grad_bias,
        )

    parallel_for(run, len(ranges))
    grad_input, grad_recurrent = allocate_like(input), allocate_like(recurrent)
    grad_projection = None if projection is None else allocate_like(projection)
    low_outputs = grad_outputs.to(dtype)

    def weights(number: int) -> None:
        """A chunk of each weight's gradient: a product over all slots."""
        begin, end = (4 * hidden * bound // WEIGHT_CHUNKS for bound in (number, number + 1))
        grad_xh = gates[:, begin:end].T @ xh
        grad_input[begin:end] = grad_xh[:, :input_width]
        grad_recurrent[begin:end] = grad_xh[:, input_width:]
        if grad_projection is not None:
            begin, end = (hidden * bound // WEIGHT_CHUNKS for bound in (number, number + 1))
            grad_projection[:, begin:end] = low_outputs.T @ units[:, begin:end]

    parallel_for(weights, WEIGHT_CHUNKS)
    return grad_x, grad_h, grad_c, grad_input, grad_recurrent, grad_bias.sum(dim=0), grad_projection


lstm = partial(differentiably, forward, backward)
