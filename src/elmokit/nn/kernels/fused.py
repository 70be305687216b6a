"""The passes of one direction as one compiled call for all steps (avx512.c), the cell computed on a product's sums."""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

import torch
from torch import Tensor

from elmokit.nn.kernels.library import FLOAT, POINTER, SIZE, address, compiled
from elmokit.nn.kernels.passes import Gradients, Run, Steps, Trace, Weights, width_of
from elmokit.nn.kernels.products import (
    NAMES,
    PANEL,
    PackedWeight,
    columns_in_panels,
    has_products,
    pack,
    quantised_bytes,
    result_type,
)

# --- The structures of avx512.c ------------------------------------------------------------------------------------


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, SIZE) for name in ("steps", "hidden", "width", "beside")),
        *((name, POINTER) for name in ("batch_sizes", "resets")),
        *((name, FLOAT) for name in ("cell_clip", "projection_clip")),
    )


class _ForwardPass(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("recurrent", "projection")),
        *((name, SIZE) for name in ("row_apart", "gate_apart", "units_apart")),
        *(
            (name, POINTER)
            for name in (
                "inputs", "which", "outputs", "h", "c", "start_h", "start_c",
                "gates", "all_hidden", "factors", "cells", "previous_c", "low_h", "low_hidden",
            )
        ),
    )  # fmt: skip


class _BackwardPass(ctypes.Structure):
    _fields_ = tuple(
        (name, POINTER)
        for name in (
            "recurrent", "projection", "beside", "outputs", "gates", "cells", "previous_c",
            "grad_outputs", "grad_h", "grad_c", "grad_gates", "low", "grad_beside", "grad_constant",
        )
    )  # fmt: skip


# --- The passes ----------------------------------------------------------------------------------------------------


class PackedLayer(NamedTuple):
    """The weights of one direction, ready for the forward pass."""

    recurrent: PackedWeight  # with what is multiplied beside h
    projection: PackedWeight | None


def has_passes(dtype: torch.dtype, state_dtype: torch.dtype, device: torch.device, *depths: int) -> bool:
    """Whether there are compiled passes for products of this type, over so many values."""
    return state_dtype == torch.float32 and has_products(dtype, device, *depths)


def pack_layer(weights: Weights, dtype: torch.dtype) -> PackedLayer:
    """weights: those of one direction."""
    projection = None if weights.projection is None else pack(weights.projection, dtype)
    return PackedLayer(pack(weights.of_factors(), dtype, gates=4), projection)


def _panels(weight: PackedWeight | None) -> int | None:
    return None if weight is None else address(weight.panels)


def _call(
    direction: str, dtype: torch.dtype, steps: Steps, sizes: tuple[int, int, int], fields: ctypes.Structure
) -> None:
    """`sizes`: hidden, width, beside."""
    function = compiled(f"elmokit_{direction}_{NAMES[dtype]}", POINTER, POINTER)
    assert function is not None, "ask has_passes first"
    batch_sizes = torch.tensor(steps.packing.batch_sizes, dtype=torch.int64)
    resets = None if steps.packing.resets is None else steps.packing.resets.contiguous()
    clips = (math.inf if clip is None else clip for clip in (steps.cell_clip, steps.proj_clip))
    layer = _Layer(len(batch_sizes), *sizes, address(batch_sizes), address(resets), *clips)
    function(ctypes.byref(layer), ctypes.byref(fields))


def _room(dtype: torch.dtype, rows: int, width: int, hidden: int) -> list[Tensor]:
    """For a step's h and hidden values as they are multiplied; int8 has one for both, and one of floats."""
    if dtype == torch.int8:
        numbers = torch.empty(rows, quantised_bytes(max(width, hidden)), dtype=torch.uint8)
        return [numbers, torch.empty(rows, hidden)]
    return [torch.empty(rows, size, dtype=dtype) for size in (width, hidden)]


def _inputs_apart(hidden: int, in_panels: bool) -> tuple[int, int, int]:
    """How many values inputs lie apart: those of rows, of gates, of 16 units."""
    units = PANEL // 4
    return (columns_in_panels(4 * hidden, gates=4), units, PANEL) if in_panels else (4 * hidden, hidden, units)


def _check_sizes(steps: Steps, layer: PackedLayer, run: Run, which: Tensor | None, of_row: int) -> None:
    """The compiled passes read and write what they are told to."""
    slots, (rows, width), hidden = sum(steps.packing.batch_sizes), run.h.shape, run.c.shape[1]
    assert run.outputs.shape == (slots, width) and max(steps.packing.batch_sizes, default=0) <= rows == len(run.c)
    assert run.start_h.shape == (1, width) and run.start_c.shape == (1, hidden)
    assert run.inputs.shape[1] == of_row
    if run.beside is None:
        assert len(run.inputs if which is None else which) == slots
    else:
        assert len(run.inputs) == 1 and which is None and len(run.beside) == slots
    assert (layer.recurrent.columns, layer.recurrent.depth) == (4 * hidden, width_of(run.beside) + width)
    projected = layer.projection
    assert width == hidden if projected is None else (projected.columns, projected.depth) == (width, hidden)


def forward_steps(
    steps: Steps,
    layer: PackedLayer,
    run: Run,
    trace: Trace | None,
    which: Tensor | None = None,
    inputs_in_panels: bool = False,
) -> None:
    """As `stepwise.forward_steps`. With `which` (N,) slot n reads row `which[n]` of `run.inputs`.

    Inputs in panels are in the order of the recurrent weight's (`products.in_panels`): each is read in one place. In
    int8 there is no trace; with values beside h there has to be one.
    """
    assert all(tensor.dtype == torch.float32 for tensor in (run.outputs, run.h, run.c, run.start_h, run.start_c))
    dtype, (width, hidden), beside = layer.recurrent.panels.dtype, (run.h.shape[1], run.c.shape[1]), run.beside
    assert result_type(dtype) == run.inputs.dtype and (which is None or which.dtype == torch.int64)
    row_apart, *apart = _inputs_apart(hidden, inputs_in_panels)
    _check_sizes(steps, layer, run, which, row_apart)
    if trace is None:
        assert beside is None
        most_rows = max(steps.packing.batch_sizes, default=0)
        pointers = [*[None] * 5, *_room(dtype, most_rows, width, hidden)]
    else:
        assert dtype != torch.int8
        assert trace.factors.shape == (len(run.outputs), width_of(beside) + width)
        pointers = [trace.gates, trace.hidden, trace.factors, trace.cell, trace.previous_c, None, None]
        if beside is not None:
            row_apart = 0  # all slots read the same row
            trace.factors[:, : beside.shape[1]] = beside
    tensors = (run.inputs, which, run.outputs, run.h, run.c, run.start_h, run.start_c, *pointers)
    fields = _ForwardPass(
        _panels(layer.recurrent), _panels(layer.projection), row_apart, *apart, *map(address, tensors)
    )
    _call("forward", dtype, steps, (hidden, width, width_of(beside)), fields)


def backward_steps(steps: Steps, weights: Weights, outputs: Tensor, trace: Trace, grad: Gradients) -> None:
    """As `stepwise.backward_steps`."""
    dtype, (width, hidden), beside = trace.gates.dtype, (grad.h.shape[1], grad.c.shape[1]), width_of(grad.beside)
    packed = [None if weight is None else pack(weight.T, dtype) for weight in weights]
    low = torch.empty(max(steps.packing.batch_sizes, default=0), width, dtype=dtype)
    tensors = (
        outputs, trace.gates, trace.cell, trace.previous_c, grad.outputs, grad.h, grad.c, grad.gates, low,
        grad.beside, grad.constant,
    )  # fmt: skip
    fields = _BackwardPass(*map(_panels, packed), *map(address, tensors))
    _call("backward", dtype, steps, (hidden, width, beside), fields)
