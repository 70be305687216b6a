"""Every operation that the network needs: its signature, its dtype and its errors.

`reference` says in a few lines of PyTorch what each op computes, and `dispatch` chooses which
implementation runs. An implementation is a module with the functions that this one calls: for most
ops a function named like the op, and `prepack_{op}` where the op has a form without gradients whose
weights are prepacked.

GEMMs run in the dtype of the weights, or in that of autocast; results are at least float32 unless
an op says otherwise. The results of a prepacked map may have the dtype of its GEMMs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elmokit.ops.dispatch import choose
from elmokit.ops.packing import Packing

DROPOUT_LEVELS = 1 << 16  # 16 random bits decide whether a value is dropped


def records_gradients(*tensors: Tensor | None) -> bool:
    """Whether autograd records what is computed from these tensors."""
    return torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in tensors
    )


@contextmanager
def _constant(device: torch.device) -> Iterator[None]:
    """Compute from weights what is kept: without gradients, and in the same way whether or not the
    caller autocasts.
    """
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def _product_dtype(weight: Tensor) -> torch.dtype:
    """The weight's dtype, or autocast's, which leaves float64 as it is (like PyTorch's own
    operations).
    """
    device = weight.device.type
    is_cast = torch.is_autocast_enabled(device) and weight.dtype != torch.float64
    return torch.get_autocast_dtype(device) if is_cast else weight.dtype


# --- LSTM -----------------------------------------------------------------------------------------


class LSTMState(NamedTuple):
    """The state of a layer between two steps: its output `h` (B, D) and its cell `c` (B, H)."""

    h: Tensor
    c: Tensor

    def zero_row(self) -> LSTMState:
        """A single row of zeros: what a reset sets, unless it is another state."""
        return LSTMState(*(part.new_zeros(1, part.shape[1]) for part in self))

    def copy(self) -> LSTMState:
        """A contiguous copy, to be updated in place."""
        return LSTMState(*(part.clone(memory_format=torch.contiguous_format) for part in self))


class Clips(NamedTuple):
    """Bounds on the absolute values of the cell and of the projection; None: no bound."""

    cell: float | None
    projection: float | None


class LSTMWeights(NamedTuple):
    """The weights of a layer; the gates' rows are in the order of the published files: i, g
    (TensorFlow's j), f, o.
    """

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
    clips: Clips
    start: LSTMState  # the state after a reset: a single row, which gets no gradient


LSTMResult = tuple[
    Tensor, LSTMState
]  # the outputs (N, D), and each row's state after its last step


def _prepared(
    depths: tuple[int, int, int],
    dtype: torch.dtype,
    x: Tensor,
    state: LSTMState,
    steps: LSTMSteps,
    index: Tensor | None,
) -> tuple[Tensor, LSTMState, LSTMSteps]:
    """The arguments of `lstm` in the dtype of sums. ValueError unless all sizes fit: compiled code
    relies on them.
    """
    (packing, clips, start), rows, slots = steps, len(state.h), steps.packing.num_slots
    parts = x if index is None else index, x[:0], *state, *start
    expected = (
        (slots,),
        (0, depths[0]),
        (rows, depths[1]),
        (rows, depths[2]),
        (1, depths[1]),
        (1, depths[2]),
    )
    if (
        any(part.shape[: len(shape)] != shape for part, shape in zip(parts, expected, strict=True))
        or max(packing.batch_sizes, default=0) > rows
        or (packing.resets is not None and len(packing.resets) != slots)
    ):
        shapes = ", ".join(str(tuple(part.shape)) for part in (x, *state, *start))
        raise ValueError(
            f"x, h, c and the start's h and c are {shapes}: they do not fit K, D, H = {depths} or "
            f"{packing}"
        )
    wide = torch.promote_types(dtype, torch.float32)
    start = LSTMState(*(part.detach().to(wide).contiguous() for part in start))
    return (
        x.to(wide),
        LSTMState(state.h.to(wide), state.c.to(wide)),
        LSTMSteps(packing, clips, start),
    )


def lstm(x: Tensor, state: LSTMState, weights: LSTMWeights, steps: LSTMSteps) -> LSTMResult:
    """Run one layer of projected, clipped LSTM over a packed stream, in one direction.

    Args:
        x: The layer's input (N, K), in stream order.
        state: The state from which each row starts, by rank.
        weights: See `LSTMWeights`.
        steps: See `LSTMSteps`.

    Returns:
        See `LSTMResult`.

    Raises:
        ValueError: If the sizes of the input, the packing, the states and the weights do not fit
            together, or no backend multiplies this dtype.
    """
    dtype = _product_dtype(weights.recurrent)
    with torch.autocast(x.device.type, enabled=False):
        if not records_gradients(x, *state, *weights):
            return prepack_lstm(weights, dtype)(x, state, steps)
        x, state, steps = _prepared(weights.depths, dtype, x, state, steps, None)
        return choose("lstm", x.device, dtype, *weights.depths).lstm(
            x, state, weights, steps, dtype
        )


def _run_prepacked_lstm(
    run: Callable[..., LSTMResult],
    depths: tuple[int, int, int],
    dtype: torch.dtype,
    x: Tensor,
    state: LSTMState,
    steps: LSTMSteps,
    index: Tensor | None = None,
) -> LSTMResult:
    return run(*_prepared(depths, dtype, x, state, steps, index), index)


def prepack_lstm(weights: LSTMWeights, dtype: torch.dtype) -> Callable[..., LSTMResult]:
    """Prepack the weights of `lstm` for GEMMs in one dtype.

    Returns:
        A function of (x, state, steps, index=None) that returns what `lstm` does, without
        gradients. With `index` (N,) slot n reads x[index[n]].

    Raises:
        ValueError: If no backend multiplies that dtype.
    """
    with _constant(weights.recurrent.device):
        run = choose("lstm", weights.recurrent.device, dtype, *weights.depths).prepack_lstm(
            weights, dtype
        )
    return partial(_run_prepacked_lstm, run, weights.depths, dtype)


# --- Characters to token vectors ------------------------------------------------------------------


class CharFilters(NamedTuple):
    """The weights of the character convolutions."""

    embedding: Tensor  # (n, E)
    weights: Sequence[Tensor]  # for each width w, its filters (F, E, w)
    biases: Sequence[Tensor]  # for each width, (F,)


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


def char_conv(ids: Tensor, filters: CharFilters) -> Tensor:
    """Convolve over the characters of words, and take each filter's maximum over all positions of a
    word.

    Args:
        ids: The words' characters (U, C), as row indices of the embedding.
        filters: See `CharFilters`.

    Returns:
        (U, sum of F), in the dtype of the embedding, or that of autocast.

    Raises:
        IndexError: If a character has no row in the embedding; on a GPU, PyTorch's own error.
        ValueError: If C is less than the greatest width.
    """
    embedding = filters.embedding
    _check_ids(ids, len(embedding), max(weight.shape[2] for weight in filters.weights))
    dtype = _product_dtype(embedding)
    with torch.autocast(ids.device.type, enabled=False):
        implementation = choose(
            "char_conv", ids.device, torch.promote_types(dtype, embedding.dtype)
        )
        return implementation.char_conv(ids, filters, dtype)


def _run_checked(
    run: Callable[[Tensor], Tensor], num_characters: int, widest_filter: int, ids: Tensor
) -> Tensor:
    _check_ids(ids, num_characters, widest_filter)
    return run(ids)


def prepack_char_conv(filters: CharFilters, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Prepack the weights of `char_conv`: a function of ids (U, C) without gradients; C may differ
    between calls.
    """
    embedding = filters.embedding
    with _constant(embedding.device):
        implementation = choose("prepacked char_conv", embedding.device, dtype, len(embedding))
        run = implementation.prepack_char_conv(filters, dtype)
    return partial(
        _run_checked, run, len(embedding), max(weight.shape[2] for weight in filters.weights)
    )


def highway(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Run a highway layer: carry * relu(transform) + (1 - carry) * x.

    Args:
        x: (M, F).
        weight: (2F, F); the rows of transform, then those of carry, to which a sigmoid is applied.
        bias: (2F,).

    Returns:
        (M, F), in the dtype of the weight, or that of autocast.
    """
    dtype = _product_dtype(weight)
    with torch.autocast(x.device.type, enabled=False):
        return choose("highway", x.device, dtype, x.shape[1]).highway(x, weight, bias, dtype)


def prepack_highway(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Prepack the weights of `highway`: a function of x (M, F) without gradients."""
    with _constant(weight.device):
        return choose("prepacked highway", weight.device, dtype, weight.shape[1]).prepack_highway(
            weight, bias, dtype
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (N, K), weight (M, K), bias (M,) -> x @ weight.T + bias (N, M), the same bits on any number
    of threads.
    """
    dtype = _product_dtype(weight)
    with torch.autocast(x.device.type, enabled=False):
        return choose("linear", x.device, dtype, x.shape[1]).linear(x, weight, bias, dtype)


def prepack_linear(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Prepack a linear map for use without gradients.

    Args:
        weight: (M, K).
        bias: (M,).
        dtype: The dtype of the GEMM.

    Returns:
        A function of x (N, K) that returns x @ weight.T + bias (N, M).

    Raises:
        ValueError: If no backend multiplies that type.
    """
    with _constant(weight.device):
        return choose("prepacked linear", weight.device, dtype, weight.shape[1]).prepack_linear(
            weight, bias, dtype
        )


# --- Softmax --------------------------------------------------------------------------------------


def linear_logsumexp(
    hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor | None = None
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
    (count, dim), (classes, depth) = hidden.shape, weight.shape
    entries = count if excluded is None else len(excluded)
    if (dim, len(bias), entries) != (depth, classes, count) or 0 in weight.shape:
        shapes = [
            None if tensor is None else tuple(tensor.shape)
            for tensor in (hidden, weight, bias, excluded)
        ]
        raise ValueError(
            f"hidden, weight, bias and excluded do not fit together, or there are no classes: "
            f"{shapes}"
        )
    dtype = _product_dtype(weight)
    with torch.autocast(hidden.device.type, enabled=False):
        return choose("logsumexp", hidden.device, dtype, weight.shape[1]).logsumexp(
            hidden, weight, bias, excluded, dtype
        )


# --- Streams to text ------------------------------------------------------------------------------


def unpack_sentences(
    streams: Tensor, slots: Tensor, begins: np.ndarray, outs: Sequence[np.ndarray]
) -> None:
    """Write each sentence's vectors from the streams of a batch.

    Args:
        streams: (K, 2, N, D), in stream order.
        slots: The slot of each token of the text in each direction (2, M).
        begins: The index of each sentence's first token, of 0..M-1.
        outs: For each sentence, an array (K, T, 2D) float32 to fill.
    """
    choose("unpack", streams.device, streams.dtype).unpack_sentences(streams, slots, begins, outs)


def unpack_words(streams: Tensor, slots: Tensor, out: np.ndarray) -> None:
    """Write the vectors of words end to end, as they are stored.

    Args:
        streams: (K, 2, N, D), in stream order.
        slots: The slot of each word in each direction (2, M).
        out: The array to fill (M, K, 2D), float32 or float16.

    Raises:
        FloatingPointError: If a finite number is too large for float16.
    """
    if choose("unpack", streams.device, streams.dtype).unpack_words(streams, slots, out):
        raise FloatingPointError("finite numbers have become infinite")


# --- Dropout --------------------------------------------------------------------------------------


def apply_dropout(x: Tensor, probability: float) -> Tensor:
    """Set each value to 0 with a given probability, and scale the others so that the mean stays the
    same.

    PyTorch's own dropout draws a random number for each value; this draws one for four values, from
    PyTorch's default generator of the device.

    Args:
        x: Of any shape.
        probability: Of a value to be dropped, rounded to a multiple of 1/65,536; with 0, x itself
            is returned.

    Returns:
        A tensor like x.

    Raises:
        ValueError: If the probability is below 0, or 1 or more.
    """
    if not 0 <= probability < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, not {probability}")
    if probability == 0:
        return x
    kept = min(max(round((1 - probability) * DROPOUT_LEVELS), 1), DROPOUT_LEVELS - 1)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(
        -(1 << 63), None
    )
    chances = draws.view(torch.int16)[: x.numel()].view(x.shape)
    return x * (chances < kept - DROPOUT_LEVELS // 2).to(x.dtype).mul_(DROPOUT_LEVELS / kept)
