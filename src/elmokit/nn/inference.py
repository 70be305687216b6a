"""A biLM for inference: modules with leaf layers replaced by prepacked ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.config import CHARACTER_SHIFT
from elmokit.nn.bilm import BiLM
from elmokit.nn.lstm import LSTMLayer
from elmokit.nn.token_encoders import CharacterEncoder, CharCNN, Projection
from elmokit.ops import LSTMState, Packing, allocate
from elmokit.ops import prepack as prepack_op
from elmokit.runtime import accumulation_dtype, init_on_meta
from elmokit.threads import parallel_rows

CHUNK_WORDS = 128  # so few that the output of one layer is still in cache for the next
# Weights of up to WHOLE values are compared at each call; of larger ones, about SAMPLED values.
WHOLE, SAMPLED = 8192, 64


def _in_chunks(
    run: Callable[[Tensor], Tensor],
    x: Tensor,
    width: int,
    dtype: torch.dtype,
) -> Tensor:
    """run(x) (N, width), some rows at a time, in parallel."""
    out = allocate((len(x), width), dtype, x.device)

    def run_rows(rows: slice) -> None:
        out[rows] = run(x[rows])

    parallel_rows(run_rows, len(x), CHUNK_WORDS, x.device)
    return out


# --- Leaves ---------------------------------------------------------------------------------------


class PrepackedLSTMLayer(nn.Module):
    """`LSTMLayer` without gradients."""

    def __init__(self, layer: LSTMLayer, dtype: torch.dtype) -> None:
        super().__init__()
        self.clips = layer.clips
        self._run = prepack_op("lstm", layer.weights(), dtype)

    def forward(
        self,
        x: Tensor,
        packing: Packing,
        state: LSTMState,
        reset_state: LSTMState | None = None,
        index: Tensor | None = None,
    ) -> tuple[Tensor, LSTMState]:
        return self._run(x, state, packing, self.clips, reset_state, index)


class PrepackedProjection(nn.Module):
    """A linear map of a sequence encoder without gradients; its results are float32 at least."""

    def __init__(self, projection: Projection, dtype: torch.dtype) -> None:
        super().__init__()
        self._multiply = prepack_op("linear", (projection.weight, projection.bias), dtype)
        self._dim, self._dtype = projection.out_features, accumulation_dtype(dtype)

    def forward(self, input: Tensor) -> Tensor:
        return _in_chunks(self._multiply, input, self._dim, self._dtype)


class PrepackedCharCNN(CharacterEncoder):
    """`CharCNN` without gradients; its vectors are float32 at least."""

    def __init__(self, encoder: CharCNN, dtype: torch.dtype) -> None:
        super().__init__(encoder.config)
        # Not in int8: a few filters are so large that with a common scale, the others would be too
        # coarse.
        self._float_dtype = torch.float32 if dtype == torch.int8 else dtype
        filters = (encoder.char_embedding, *encoder.filters())
        self._convolve = prepack_op("char_conv", filters, self._float_dtype)
        self._layers, self._dim = [], self.config.num_filters
        highways: Any = encoder.highways
        for layer in highways:
            gates = layer.gates
            self._layers.append(prepack_op("highway", (gates.weight, gates.bias), dtype))
        if (last := encoder.projection) is not None:
            self._layers.append(prepack_op("linear", (last.weight, last.bias), self._float_dtype))
            self._dim = last.out_features
        self.is_cacheable = all(op.batch_invariant for op in (self._convolve, *self._layers))

    def forward(self, ids: Tensor) -> Tensor:
        x = self._convolve(ids - CHARACTER_SHIFT)
        dtype = accumulation_dtype(self._float_dtype)
        return _in_chunks(self._after_convolution, x, self._dim, dtype)

    def _after_convolution(self, x: Tensor) -> Tensor:
        x = self.activation(x).to(self._float_dtype)
        for layer in self._layers:
            x = layer(x)
        return x


# --- The whole model ------------------------------------------------------------------------------

Leaves = Mapping[type[nn.Module], Callable[[Any, torch.dtype], nn.Module]]
TOKEN_LEAVES: Leaves = {CharCNN: PrepackedCharCNN}
SEQUENCE_LEAVES: Leaves = {LSTMLayer: PrepackedLSTMLayer, Projection: PrepackedProjection}


def _with_leaves(module: nn.Module, leaves: Leaves, dtype: torch.dtype) -> Any:
    """Replace leaves by prepacked ones; share other weights, or copy them in a wider dtype."""
    for kind, prepacked in leaves.items():
        if isinstance(module, kind):
            return prepacked(module, dtype)
    result = copy.copy(module)
    result._modules, result._parameters = {}, {}
    for name, child in module._modules.items():
        result._modules[name] = child and _with_leaves(child, leaves, dtype)
    for name, weight in module._parameters.items():
        if weight is not None:
            weight = nn.Parameter(weight.detach().to(accumulation_dtype(dtype)), False)
        result._parameters[name] = weight
    return result.eval()


class PrepackedBiLM(BiLM):
    """A biLM without gradients, prepacked for products of one dtype: not to be saved or moved."""

    is_prepacked = True

    def __init__(self, bilm: BiLM, dtype: torch.dtype) -> None:
        with init_on_meta():
            super().__init__(bilm.config)
        self.product_dtype, self._device = dtype, bilm.device
        with torch.no_grad():
            self.token_encoder = _with_leaves(bilm.token_encoder, TOKEN_LEAVES, dtype)
            self.sequence_encoder = _with_leaves(bilm.sequence_encoder, SEQUENCE_LEAVES, dtype)
        self.eval()

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its states and results."""
        return accumulation_dtype(self.product_dtype)

    def state_dict(self, *args: Any, **options: Any) -> Any:
        raise ValueError(
            "this biLM is prepacked for inference and has no weights of its own: use `elmokit.load`"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BiLM:
        """Called by `to`, `cuda`, `half` and others."""
        probe = torch.empty(0, dtype=self.dtype, device=self.device)
        if fn(probe) is not probe:
            raise ValueError(
                f"this biLM is prepacked for {str(self.product_dtype)[6:]} on {self.device}, and "
                "cannot be moved or converted: load the model again, and prepack it there, as "
                "`elmokit.Embedder` does"
            )
        return super()._apply(fn, recurse)


def prepack(bilm: BiLM, dtype: torch.dtype | None) -> PrepackedBiLM:
    """The same biLM for use without gradients, its weights prepacked for products of one dtype.

    The given biLM is not changed, and later changes of its weights do not change the prepacked
    ones. Tables of words are shared. Hooks on layers are not called.

    Args:
        bilm: A biLM on any device. One that is prepacked already is returned itself.
        dtype: float32, bfloat16, float16 or float64, or int8 on a CPU with the compiled kernels;
            None: the biLM's own.

    Raises:
        ValueError: If no backend here multiplies that dtype, or the biLM is prepacked for another.
    """
    if not isinstance(bilm, PrepackedBiLM):
        return PrepackedBiLM(bilm, bilm.dtype if dtype is None else dtype)
    if dtype not in (None, bilm.product_dtype):
        raise ValueError(
            f"this biLM is prepacked for {str(bilm.product_dtype)[6:]}, not for {str(dtype)[6:]}: "
            f"load the model again"
        )
    return bilm


def _sample(weight: Tensor) -> Tensor:
    """A 1-D view of all values of a small weight, or of some values of a large one."""
    # The extent is how many values lie in memory from the first to the last.
    strides = zip(weight.shape, weight.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in strides)
    step = 1 if extent <= WHOLE else extent // SAMPLED | 1  # odd: values of many columns
    size = -(-extent // step)
    return weight.detach().as_strided((size,), (step,))


class PrepackCache:
    """Prepacks a frozen biLM on first use; again when a weight changes. Copies are empty.

    PyTorch counts the changes of each weight, except through `.data` and NumPy; to detect these,
    values of each weight are compared at each call (docs/decisions/0021-names-of-weights.md).
    """

    def __init__(self) -> None:
        self._prepacked: BiLM | None = None

    def __reduce__(self) -> tuple[type[PrepackCache], tuple[()]]:
        return PrepackCache, ()

    def of(self, bilm: BiLM) -> BiLM:
        """The biLM prepacked, or itself if a weight learns, or under autocast."""
        weights = [*bilm.parameters()]  # none, if it is prepacked itself
        is_frozen = bool(weights) and not any(
            weight.requires_grad or weight.is_inference() for weight in weights
        )
        if not is_frozen or torch.is_autocast_enabled(bilm.device.type):
            self._prepacked = None
            return bilm
        counters = [(weight.data_ptr(), weight._version) for weight in weights]
        if (
            self._prepacked is not None
            and counters == self._counters
            and torch.equal(torch.cat(self._samples), self._values)
        ):
            return self._prepacked
        self._prepacked = None  # frees its memory first
        self._counters = counters
        # Views, which hold the weights, so that no other tensor gets their address.
        self._samples = [_sample(weight) for weight in weights]
        self._values = torch.cat(self._samples)
        self._prepacked = prepack(bilm, None)
        return self._prepacked
