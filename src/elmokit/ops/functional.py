"""The ops: their signatures, their dtypes and their errors.

`reference` says in a few lines of PyTorch what each op computes, and `dispatch` chooses which
implementation runs. An implementation is a module with the functions that this one calls: for most
ops a function named like the op, and `prepack_{op}` if the op has a form with prepacked weights.

GEMMs run in the dtype of the weights, or in autocast's; results are at least float32 unless
an op says otherwise. The results of a prepacked map may have the dtype of its GEMMs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elmokit.ops.dispatch import IMPLEMENTATIONS, choose, explain
from elmokit.ops.packing import Packing
from elmokit.runtime import accumulation_dtype, needs_grad


def _product_dtype(weight: Tensor) -> torch.dtype:
    """The weight's dtype, or autocast's, which leaves float64 as it is."""
    device = weight.device.type
    is_cast = torch.is_autocast_enabled(device) and weight.dtype != torch.float64
    return torch.get_autocast_dtype(device) if is_cast else weight.dtype


# --- LSTM -----------------------------------------------------------------------------------------


class LSTMState(NamedTuple):
    """The state of a layer between two steps: its output `h` (B, D) and its cell `c` (B, H)."""

    h: Tensor
    c: Tensor

    def copy(self) -> LSTMState:
        """A contiguous copy, to be updated in place."""
        return LSTMState(*(part.clone(memory_format=torch.contiguous_format) for part in self))


class LSTMWeights(NamedTuple):
    """The weights of a layer; the gates' rows are i, g (TensorFlow's j), f, o."""

    input: Tensor  # (4H, K)
    recurrent: Tensor  # (4H, D)
    bias: Tensor  # (4H,)
    projection: Tensor | None  # (D, H); None: D = H

    @property
    def depths(self) -> tuple[int, int, int]:
        """The lengths of the dot products with the weights: K, D and H."""
        return self.input.shape[1], self.recurrent.shape[1], len(self.recurrent) // 4


class LSTMSteps(NamedTuple):
    """The steps that a layer runs."""

    packing: Packing  # the shape of a stream of N slots, with B rows
    # bounds on the absolute values of the cell and of the projection; infinity: no bound
    clips: tuple[float, float]
    reset_state: LSTMState  # the state after a reset: a single row, which gets no gradient


# the outputs (N, D), and each row's state after its last step
LSTMResult = tuple[Tensor, LSTMState]


def _lstm_arguments(
    depths: tuple[int, int, int],
    dtype: torch.dtype,
    x: Tensor,
    state: LSTMState,
    packing: Packing,
    clips: Sequence[float | None],
    reset_state: LSTMState | None,
    index: Tensor | None = None,
) -> tuple[Tensor, LSTMState, LSTMSteps]:
    """The input, the state and the steps in the dtype of sums. ValueError unless all sizes fit."""
    input_dim, width, hidden = depths
    rows, slots = len(state.h), packing.num_slots
    if reset_state is None:
        reset_state = LSTMState(state.h.new_zeros(1, width), state.c.new_zeros(1, hidden))
    # What the kernels read and write: they do not look at sizes again.
    fits = (
        x.shape[1:] == (input_dim,)
        and len(x if index is None else index) == slots
        and state.h.shape == (rows, width)
        and state.c.shape == (rows, hidden)
        and reset_state.h.shape == (1, width)
        and reset_state.c.shape == (1, hidden)
        and max(packing.batch_sizes, default=0) <= rows
        and (packing.resets is None or len(packing.resets) == slots)
    )
    if not fits:
        shapes = ", ".join(str(tuple(part.shape)) for part in (x, *state, *reset_state))
        raise ValueError(
            f"x, h, c and the reset state's h and c are {shapes}: they do not fit K, D, H = "
            f"{depths} or {packing}"
        )
    wide = accumulation_dtype(dtype)
    state = LSTMState(state.h.to(wide), state.c.to(wide))
    reset_state = LSTMState(*(part.detach().to(wide).contiguous() for part in reset_state))
    cell_clip, projection_clip = (math.inf if clip is None else clip for clip in clips)
    return x.to(wide), state, LSTMSteps(packing, (cell_clip, projection_clip), reset_state)


def lstm(
    x: Tensor,
    state: LSTMState,
    weights: Sequence[Tensor | None],
    packing: Packing,
    clips: Sequence[float | None],
    reset_state: LSTMState | None = None,
) -> LSTMResult:
    """Run one layer of projected, clipped LSTM over a packed stream, in one direction.

    Args:
        x: The layer's input (N, K), in stream order.
        state: The state from which each row starts, by rank.
        weights: The four of `LSTMWeights`.
        packing: The shape of the stream.
        clips: The bounds of the cell and of the projection; None: no bound.
        reset_state: The state after a reset, a single row; None: zeros.

    Returns:
        See `LSTMResult`.

    Raises:
        ValueError: If the sizes of the input, the packing, the states and the weights do not fit
            together, or no backend multiplies this dtype.
    """
    layer: Any = LSTMWeights(*weights)  # type: ignore[arg-type]
    dtype = _product_dtype(layer.recurrent)
    with torch.autocast(x.device.type, enabled=False):
        if not needs_grad(x, *state, *layer):
            return prepack("lstm", layer, dtype)(x, state, packing, clips, reset_state)
        arguments = _lstm_arguments(layer.depths, dtype, x, state, packing, clips, reset_state)
        x, state, steps = arguments
        implementation = choose("lstm", x.device, dtype, *layer.depths)
        outputs, h, c = implementation.lstm(x, *state, *layer, steps=steps, dtype=dtype)
        return outputs, LSTMState(h, c)


def _run_prepacked_lstm(
    run: Callable[..., LSTMResult],
    depths: tuple[int, int, int],
    dtype: torch.dtype,
    x: Tensor,
    state: LSTMState,
    packing: Packing,
    clips: Sequence[float | None],
    reset_state: LSTMState | None = None,
    index: Tensor | None = None,
) -> LSTMResult:
    return run(*_lstm_arguments(depths, dtype, x, state, packing, clips, reset_state, index), index)


# --- Characters to token vectors ------------------------------------------------------------------


class CharFilters(NamedTuple):
    """The weights of the character convolutions."""

    embedding: Tensor  # (n, E)
    weights: Sequence[Tensor]  # for each width w, its filters (F, E, w)
    biases: Sequence[Tensor]  # for each width, (F,)

    @property
    def widest(self) -> int:
        """The greatest width."""
        return max(weight.shape[2] for weight in self.weights)


def _check_ids(ids: Tensor, num_characters: int, widest_filter: int) -> None:
    if ids.shape[1] < widest_filter:
        raise ValueError(
            f"rows of {ids.shape[1]} characters are too short for filters {widest_filter} wide: "
            f"pad them"
        )
    # Elsewhere, this would wait for the device, where a lookup with such an id fails by itself.
    if (
        ids.device.type == "cpu"
        and len(ids) > 0
        and not 0 <= ids.min() <= ids.max() < num_characters
    ):
        raise IndexError(
            f"characters must lie in 0..{num_characters - 1}, not "
            f"{int(ids.min())}..{int(ids.max())}"
        )


def char_conv(
    ids: Tensor,
    embedding: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
) -> Tensor:
    """Convolve over the characters of words, and take each filter's maximum over all positions of a
    word.

    Args:
        ids: The words' characters (U, C), as row indices of the embedding.
        embedding: (n, E).
        weights: For each width w, its filters (F, E, w).
        biases: For each width, (F,).

    Returns:
        (U, sum of F), in the dtype of the embedding, or autocast's.

    Raises:
        IndexError: If a character has no row in the embedding; on a GPU, PyTorch's own error.
        ValueError: If C is less than the greatest width.
    """
    filters, dtype = CharFilters(embedding, weights, biases), _product_dtype(embedding)
    _check_ids(ids, len(embedding), filters.widest)
    with torch.autocast(ids.device.type, enabled=False):
        sum_dtype = torch.promote_types(dtype, embedding.dtype)
        return choose("char_conv", ids.device, sum_dtype).char_conv(ids, filters, dtype)


def _run_prepacked_char_conv(
    run: Callable[[Tensor], Tensor],
    num_characters: int,
    widest_filter: int,
    ids: Tensor,
) -> Tensor:
    _check_ids(ids, num_characters, widest_filter)
    return run(ids)


def highway(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Run a highway layer: carry * relu(transform) + (1 - carry) * x.

    Args:
        x: (M, F).
        weight: (2F, F); the rows of transform, then those of carry, to which a sigmoid is applied.
        bias: (2F,).

    Returns:
        (M, F), in the dtype of the weight, or autocast's.
    """
    dtype = _product_dtype(weight)
    with torch.autocast(x.device.type, enabled=False):
        implementation = choose("highway", x.device, dtype, x.shape[1])
        return implementation.highway(x, weight, bias, dtype=dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (N, K) @ weight (M, K).T + bias (M,), the same bits on any number of threads."""
    dtype = _product_dtype(weight)
    with torch.autocast(x.device.type, enabled=False):
        implementation = choose("linear", x.device, dtype, x.shape[1])
        return implementation.linear(x, weight, bias, dtype=dtype)


# --- Softmax --------------------------------------------------------------------------------------


def linear_logsumexp(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    excluded: Tensor | None = None,
) -> Tensor:
    """Compute log(sum(exp(hidden @ weight.T + bias))), the log of a softmax's denominator, without
    storing all logits.

    Args:
        hidden: (N, D).
        weight: (V, D).
        bias: (V,).
        excluded: For each row, a class that is left out (N,), -1 for none.

    Returns:
        (N,).

    Raises:
        ValueError: If the sizes do not fit together, or there are no classes.
    """
    (count, dim), classes = hidden.shape, len(bias)
    entries = count if excluded is None else len(excluded)
    if weight.shape != (classes, dim) or entries != count or 0 in weight.shape:
        raise ValueError(
            f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)}, bias ({classes},) and "
            f"excluded ({entries},) do not fit together, or there are no classes"
        )
    dtype = _product_dtype(weight)
    with torch.autocast(hidden.device.type, enabled=False):
        implementation = choose("logsumexp", hidden.device, dtype, dim)
        return implementation.logsumexp(hidden, weight, bias, excluded, dtype=dtype)


# --- Prepacked weights ----------------------------------------------------------------------------


class PrepackedOp(NamedTuple):
    """An op without gradients, with weights in the layout of its kernel."""

    run: Callable[..., Any]
    batch_invariant: bool  # whether rows are bitwise independent of the batch

    def __call__(self, *inputs: Any) -> Any:
        return self.run(*inputs)


def prepack(op: str, weights: Any, dtype: torch.dtype) -> PrepackedOp:
    """Prepack the weights of an op for GEMMs in one dtype.

    Args:
        op: "lstm", "char_conv", "highway" or "linear".
        weights: The op's: those of `LSTMWeights`, (embedding, weights, biases), or (weight, bias).
        dtype: Of the GEMMs. Results of highway and linear may have it.

    Returns:
        A function of the op's other arguments. That of "lstm" takes an `index` (N,) as well, with
        which slot n reads x[index[n]].

    Raises:
        ValueError: If no backend multiplies that dtype.
    """
    name, arguments = f"prepacked {op}", weights
    sizes: Any = weights[0].shape[1:]
    if op == "lstm":
        layer = LSTMWeights(*weights)
        name, arguments, sizes = op, (layer,), layer.depths
    if op == "char_conv":
        arguments, sizes = (CharFilters(*weights),), (len(weights[0]),)
    device = weights[0].device
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        run = getattr(choose(name, device, dtype, *sizes), f"prepack_{op}")(*arguments, dtype)
    if op == "lstm":
        run = partial(_run_prepacked_lstm, run, sizes, dtype)
    if op == "char_conv":
        run = partial(_run_prepacked_char_conv, run, *sizes, CharFilters(*weights).widest)
    *_, chosen = explain(name, device.type, dtype, *sizes)
    return PrepackedOp(run, IMPLEMENTATIONS[chosen][name].batch_invariant)
