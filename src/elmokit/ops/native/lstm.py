"""`lstm` on packed weights: all steps as one call for a range of rows, the cell computed on a product's sums
(csrc/gemm.c).

Rows are independent of each other, so threads take ranges of them. A panel of the recurrent weight holds the four
gates of 16 units. With gradients a step multiplies [x; h] by both weights at once, since what is read in the step that
makes it need not come from memory; without, the products of x are made before, of distinct rows or of a window of the
stream.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elmokit.ops.autograd import Tensors, differentiably
from elmokit.ops.lstm import Clips, LSTMState, LSTMWeights
from elmokit.ops.native.gemm import (
    PANEL,
    PackedWeight,
    pack,
    panel_order,
    product,
    quantized_bytes,
    result_dtype,
)
from elmokit.ops.native.library import native, require
from elmokit.ops.packing import Packing
from elmokit.ops.threads import num_threads, parallel_for, parallel_rows, run_side_by_side
from elmokit.ops.workspace import allocate, allocate_like

SLOTS_AT_ONCE = 256  # whose input products are still in cache when the steps read them
ROWS_OF_A_SUM = 32  # as in csrc/elmokit.h
MIN_ROWS = 16  # of a range: fewer would read the weights too often
CHUNKS = 4  # of a weight's gradient, always as many, so that it does not depend on the number of threads


def _row_ranges(rows: int, multiple: int = 1) -> list[tuple[int, int]]:
    """Ranges of about the same size, one for each thread where there are enough rows; multiples of so many rows."""
    size = max(MIN_ROWS, -(-rows // num_threads()))
    size = -(-size // multiple) * multiple
    return [(begin, min(begin + size, rows)) for begin in range(0, rows, size)]


def _of_packing(packing: Packing, clips: Clips) -> dict[str, Any]:
    """What every pass is told of the stream."""
    resets = None if packing.resets is None else packing.resets.contiguous()
    cell_clip, projection_clip = (math.inf if clip is None else clip for clip in clips)
    return {
        "steps": len(packing.batch_sizes), "batch_sizes": torch.tensor(packing.batch_sizes, dtype=torch.int64),
        "resets": resets, "cell_clip": cell_clip, "projection_clip": projection_clip,
    }  # fmt: skip


def _panels(weight: PackedWeight | None) -> Tensor | None:
    return None if weight is None else weight.panels


def _contiguous(state: LSTMState) -> LSTMState:
    """A copy in float32, row after row."""
    return LSTMState(*(part.to(torch.float32, copy=True, memory_format=torch.contiguous_format) for part in state))


# --- Without gradients -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedLSTM:
    """Of one number type. The input weight's columns are in the order of the recurrent weight's panels, so that what
    they make for 16 units lies in one place."""

    input: PackedWeight
    bias: Tensor
    recurrent: PackedWeight
    projection: PackedWeight | None

    @property
    def dtype(self) -> torch.dtype:
        return self.recurrent.panels.dtype

    def __call__(
        self,
        x: Tensor,
        packing: Packing,
        state: LSTMState,
        clips: Clips,
        start: LSTMState,
        index: Tensor | None = None,
        out: Tensor | None = None,
        slots_at_once: int = SLOTS_AT_ONCE,
    ) -> tuple[Tensor, LSTMState]:
        state, start = _contiguous(state), _contiguous(start)
        rows, width, x = len(state.h), state.h.shape[1], x.float()
        if out is None:
            out = allocate((packing.num_slots, width), torch.float32)
        self._check(x, packing, state, start, index, out)
        ranges = _row_ranges(rows) or [(0, 0)]
        if index is not None:
            whole = out
            table, index = self._table(x), index.contiguous()
            of_stream = _of_packing(packing, clips)
            run_side_by_side(
                [lambda own=own: self._run(of_stream, own, table, index, state, start, whole) for own in ranges]
            )
            return out, state

        def run_windows(own: tuple[int, int]) -> None:
            """Of a range of rows, window by window."""
            is_whole = len(ranges) == 1
            most = min(packing.num_slots, slots_at_once + rows)
            scratch = allocate((most, self.input.columns), result_dtype(self.dtype))
            for slots, window in packing.windows(slots_at_once):
                values, inputs_of = x[slots], None
                if not is_whole:
                    rank = torch.cat([torch.arange(size) for size in window.batch_sizes])
                    chosen = ((rank >= own[0]) & (rank < own[1])).nonzero().squeeze(1)
                    inputs_of = torch.zeros(len(rank), dtype=torch.int64).index_copy_(
                        0, chosen, torch.arange(len(chosen))
                    )
                    values = values[chosen]
                inputs = product(values, self.input, self.bias, scratch[: len(values)])
                self._run(_of_packing(window, clips), own, inputs, inputs_of, state, start, out[slots])

        run_side_by_side([lambda own=own: run_windows(own) for own in ranges])
        return out, state

    def _table(self, x: Tensor) -> Tensor:
        """The products of distinct rows (U, 4H), in panels."""
        table = allocate((len(x), self.input.columns), result_dtype(self.dtype))
        size = max(SLOTS_AT_ONCE, -(-len(x) // num_threads()))

        def chunk(rows: slice) -> None:
            product(x[rows], self.input, self.bias, table[rows])

        parallel_rows(chunk, len(x), size)
        return table

    def _run(
        self,
        of_stream: dict[str, Any],
        rows: tuple[int, int],
        inputs: Tensor,
        index: Tensor | None,
        state: LSTMState,
        start: LSTMState,
        out: Tensor,
    ) -> None:
        """A range of rows through all steps; their state runs on in place."""
        width, hidden, count = state.h.shape[1], state.c.shape[1], rows[1] - rows[0]
        if self.dtype == torch.int8:
            low_h = torch.empty(count, quantized_bytes(max(width, hidden)), dtype=torch.uint8)
            low_hidden = torch.empty(count, hidden)
        else:
            low_h, low_hidden = (torch.empty(count, size, dtype=self.dtype) for size in (width, hidden))
        native("lstm_forward", self.dtype)(
            **of_stream, first_row=rows[0], end_row=rows[1], hidden_size=hidden, width=width, input_width=0,
            recurrent=self.recurrent.panels, projection=_panels(self.projection), inputs=inputs, index=index,
            row_stride=inputs.shape[1], gate_stride=PANEL // 4, unit_stride=PANEL, outputs=out, h=state.h, c=state.c,
            start_h=start.h, start_c=start.c, gates=None, hidden=None, xh=None, cells=None, previous_c=None,
            low_h=low_h, low_hidden=low_hidden,
        )  # fmt: skip

    def _check(
        self, x: Tensor, packing: Packing, state: LSTMState, start: LSTMState, index: Tensor | None, out: Tensor
    ) -> None:
        """The compiled passes read and write what they are told to."""
        slots, (rows, width), hidden = packing.num_slots, state.h.shape, state.c.shape[1]
        require(out.shape == (slots, width) and out.dtype == torch.float32, out.shape)
        require(max(packing.batch_sizes, default=0) <= rows == len(state.c), (packing.batch_sizes[:1], rows))
        require(start.h.shape == (1, width) and start.c.shape == (1, hidden), start.h.shape)
        require((self.recurrent.columns, self.recurrent.depth) == (4 * hidden, width), (hidden, width))
        require(x.shape[1] == self.input.depth and len(x if index is None else index) == slots, x.shape)
        if index is not None and slots and not 0 <= index.min() <= index.max() < len(x):
            raise IndexError(f"a slot reads row {int(index.max())} of {len(x)}")


def prepack_lstm(weights: LSTMWeights, dtype: torch.dtype) -> PackedLSTM:
    projection = None if weights.projection is None else pack(weights.projection, dtype).in_huge_pages()
    return PackedLSTM(
        pack(panel_order(weights.input, gates=4), dtype).in_huge_pages(),
        panel_order(weights.bias, gates=4).float().contiguous(),
        pack(weights.recurrent, dtype, gates=4).in_huge_pages(),
        projection,
    )


# --- With gradients --------------------------------------------------------------------------------------------------


def forward(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    input: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    projection: Tensor | None,
    *,
    packing: Packing,
    clips: Clips,
    start: LSTMState,
    dtype: torch.dtype,
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensors]:
    (slots, input_width), (rows, width), hidden = x.shape, h.shape, c.shape[1]
    require(slots == packing.num_slots and max(packing.batch_sizes, default=0) <= rows, (slots, rows))
    state, start = _contiguous(LSTMState(h, c)), _contiguous(start)
    packed = pack(torch.cat([input.detach(), recurrent.detach()], dim=1), dtype, gates=4)
    packed_projection = None if projection is None else pack(projection, dtype)
    gates, units, xh = (allocate((slots, size), dtype) for size in (4 * hidden, hidden, input_width + width))
    cells, previous_c = (allocate((slots, hidden), torch.float32) for _ in range(2))
    outputs = allocate((slots, width), torch.float32)
    xh[:, :input_width] = x
    of_stream, ranges, inputs = _of_packing(packing, clips), _row_ranges(rows), bias.detach().to(dtype)

    def chunk(number: int) -> None:
        native("lstm_forward", dtype)(
            **of_stream, first_row=ranges[number][0], end_row=ranges[number][1], hidden_size=hidden, width=width,
            input_width=input_width, recurrent=packed.panels, projection=_panels(packed_projection), inputs=inputs,
            index=None, row_stride=0, gate_stride=hidden, unit_stride=PANEL // 4, outputs=outputs, h=state.h,
            c=state.c, start_h=start.h, start_c=start.c, gates=gates, hidden=units, xh=xh, cells=cells,
            previous_c=previous_c, low_h=None, low_hidden=None,
        )  # fmt: skip

    parallel_for(chunk, len(ranges))
    saved = (gates, units, xh, cells, previous_c, outputs, input, recurrent, projection)
    return (outputs, state.h, state.c), saved


def backward(
    saved: Tensors,
    gradients: Sequence[Tensor],
    last: bool,
    *,
    packing: Packing,
    clips: Clips,
    start: LSTMState,
    dtype: torch.dtype,
) -> Tensors:
    gates, units, xh, cells, previous_c, outputs, input, recurrent, projection = saved
    assert gates is not None and units is not None and xh is not None and input is not None and recurrent is not None
    grad_outputs, grad_h, grad_c = (
        part.to(torch.float32, copy=True, memory_format=torch.contiguous_format) for part in gradients
    )
    (rows, width), hidden, input_width = grad_h.shape, grad_c.shape[1], input.shape[1]
    packed_input, packed_recurrent = pack(input.T, dtype), pack(recurrent.T, dtype)
    packed_projection = None if projection is None else pack(projection.T, dtype)
    grad_gates = gates if last else allocate_like(gates)
    grad_x = allocate((len(gates), input_width), torch.float32)
    grad_bias = torch.zeros(-(-rows // ROWS_OF_A_SUM), 4 * hidden)
    of_stream, ranges = _of_packing(packing, clips), _row_ranges(rows, ROWS_OF_A_SUM)

    def steps(number: int) -> None:
        begin, end = ranges[number]
        native("lstm_backward", dtype)(
            **of_stream, first_row=begin, end_row=end, hidden_size=hidden, width=width, input_width=input_width,
            recurrent=packed_recurrent.panels, projection=_panels(packed_projection), input=packed_input.panels,
            outputs=outputs, gates=gates, cells=cells, previous_c=previous_c, grad_outputs=grad_outputs, grad_h=grad_h,
            grad_c=grad_c, grad_gates=grad_gates, low=torch.empty(end - begin, width, dtype=dtype), grad_x=grad_x,
            grad_bias=grad_bias,
        )  # fmt: skip

    parallel_for(steps, len(ranges))
    grad_input, grad_recurrent = allocate_like(input), allocate_like(recurrent)
    grad_projection = None if projection is None else allocate_like(projection)
    low_outputs = grad_outputs.to(dtype)

    def weights(number: int) -> None:
        """A chunk of each weight's gradient: a product over all slots."""
        own = slice(4 * hidden * number // CHUNKS, 4 * hidden * (number + 1) // CHUNKS)
        both = grad_gates[:, own].T @ xh
        grad_input[own], grad_recurrent[own] = both[:, :input_width], both[:, input_width:]
        if grad_projection is not None:
            own = slice(hidden * number // CHUNKS, hidden * (number + 1) // CHUNKS)
            grad_projection[:, own] = low_outputs.T @ units[:, own]

    parallel_for(weights, CHUNKS)
    return grad_x, grad_h, grad_c, grad_input, grad_recurrent, grad_bias.sum(dim=0), grad_projection


def lstm(
    x: Tensor,
    packing: Packing,
    state: LSTMState,
    weights: LSTMWeights,
    clips: Clips,
    start: LSTMState,
    dtype: torch.dtype,
) -> tuple[Tensor, LSTMState]:
    settings = {"packing": packing, "clips": clips, "start": start, "dtype": dtype}
    outputs, h, c = differentiably(sys.modules[__name__], x, *state, *weights, **settings)
    return outputs, LSTMState(h, c)
