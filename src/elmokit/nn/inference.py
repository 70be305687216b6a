"""A biLM for inference: the same modules, but leaves that hold prepacked weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from elmokit.config import CHARACTER_SHIFT
from elmokit.nn.bilm import BiLM
from elmokit.nn.lstm import LSTMLayer
from elmokit.nn.token_encoders import CharCNN, Highway, Projection
from elmokit.ops import (
    CharFilters,
    LSTMState,
    LSTMSteps,
    Packing,
    allocate,
    has_character_tables,
    has_prepacked_products,
    prepack_char_conv,
    prepack_highway,
    prepack_linear,
    prepack_lstm,
)
from elmokit.threads import parallel_rows

CHUNK_WORDS = 128  # so few that the output of one layer is still in cache for the next


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of what products in `dtype` are added to: float32, or float64."""
    return torch.promote_types(dtype if dtype.is_floating_point else torch.float32, torch.float32)


def _in_chunks(
    run: Callable[[Tensor], Tensor], x: Tensor, width: int, dtype: torch.dtype
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
        self.clips, self._run = layer.clips, prepack_lstm(layer.weights(), dtype)

    def forward(
        self,
        x: Tensor,
        packing: Packing,
        state: LSTMState,
        start: LSTMState | None = None,
        index: Tensor | None = None,
    ) -> tuple[Tensor, LSTMState]:
        return self._run(x, state, LSTMSteps(packing, self.clips, start or state.zero_row()), index)


class PrepackedProjection(nn.Module):
    """A linear map of a sequence encoder without gradients; its results are float32 at least."""

    def __init__(self, projection: Projection, dtype: torch.dtype) -> None:
        super().__init__()
        weight = projection.effective_weight()
        self._multiply, self._dim = prepack_linear(weight, projection.bias, dtype), len(weight)
        self._wide = _wide(dtype)

    def forward(self, input: Tensor) -> Tensor:
        return _in_chunks(self._multiply, input, self._dim, self._wide)


class PrepackedCharCNN(CharCNN):
    """`CharCNN` without gradients; its vectors are float32 at least."""

    def __init__(self, encoder: CharCNN, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.config, self.activation = encoder.config, encoder.activation
        # Not in int8: a few filters are so large that with a common scale, the others would be too
        # coarse.
        self._fine = torch.float32 if dtype == torch.int8 else dtype
        self._convolve = prepack_char_conv(
            CharFilters(encoder.char_embedding, *encoder.filters()), self._fine
        )
        gates = [cast(Highway, layer).gates for layer in encoder.highways]
        self._layers = [prepack_highway(each.weight, each.bias, dtype) for each in gates]
        self._dim = self.config.num_filters
        if (last := encoder.projection) is not None:
            self._layers.append(prepack_linear(last.weight, last.bias, self._fine))
            self._dim = last.out_features
        device, characters = encoder.char_embedding.device, len(encoder.char_embedding)
        self.is_cacheable = has_character_tables(
            device, self._fine, characters
        ) and has_prepacked_products(device, dtype, self.config.num_filters)

    def forward(self, ids: Tensor) -> Tensor:
        x = self._convolve(ids - CHARACTER_SHIFT)
        return _in_chunks(self._after_convolution, x, self._dim, _wide(self._fine))

    def _after_convolution(self, x: Tensor) -> Tensor:
        x = self.activation(x).to(self._fine)
        for layer in self._layers:
            x = layer(x)
        return x


# --- The whole model ------------------------------------------------------------------------------

Leaves = Mapping[type[nn.Module], Callable[[Any, torch.dtype], nn.Module]]
TOKEN_LEAVES: Leaves = {CharCNN: PrepackedCharCNN}
SEQUENCE_LEAVES: Leaves = {LSTMLayer: PrepackedLSTMLayer, Projection: PrepackedProjection}


def _converted(module: nn.Module, leaves: Leaves, dtype: torch.dtype) -> Any:
    """The module with prepacked leaves; other weights are shared, or copied in the dtype that
    products are added to.
    """
    for kind, prepacked in leaves.items():
        if isinstance(module, kind):
            return prepacked(module, dtype)
    converted = copy.copy(module)
    converted._modules = {
        name: child and _converted(child, leaves, dtype) for name, child in module._modules.items()
    }
    converted._parameters = {
        name: weight
        if weight is None
        else nn.Parameter(weight.detach().to(_wide(dtype)), requires_grad=False)
        for name, weight in module._parameters.items()
    }
    return converted.eval()


class PrepackedBiLM(BiLM):
    """A biLM without gradients, whose weights are prepacked for products of one dtype: it cannot be
    saved or moved.
    """

    def __init__(self, bilm: BiLM, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.config, self.product_dtype, self._device = bilm.config, dtype, bilm.device
        with torch.no_grad():
            self.token_encoder = _converted(bilm.token_encoder, TOKEN_LEAVES, dtype)
            self.sequence_encoder = _converted(bilm.sequence_encoder, SEQUENCE_LEAVES, dtype)
        self.eval()

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its states and results."""
        return _wide(self.product_dtype)

    def state_dict(self, *args: Any, **options: Any) -> Any:
        raise ValueError(
            "this biLM is prepacked for inference and has no weights of its own: use `elmokit.load`"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BiLM:
        """Called by `to`, `cuda`, `half` and others."""
        if fn(probe := torch.empty(0, dtype=self.dtype, device=self.device)) is not probe:
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


class Prepacked:
    """The prepacked form of a biLM that does not learn: made when first asked for, and anew when a
    weight has changed.

    PyTorch counts the changes of each weight, but for those through `.data` and NumPy: after these,
    call `forget`. Copies and pickles are empty.
    """

    def __init__(self) -> None:
        self.forget()

    def __reduce__(self) -> tuple[type[Prepacked], tuple[()]]:
        return Prepacked, ()

    def forget(self) -> None:
        """Prepack again at the next call."""
        self._kept: tuple[list[tuple[int, int]], list[Tensor], BiLM] | None = None

    def bilm(self, weights: Sequence[Tensor], create: Callable[[], BiLM]) -> BiLM:
        """`create()`, a biLM with these weights; kept if all of them are frozen, and prepacked
        where that pays.
        """
        learns = any(weight.requires_grad or weight.is_inference() for weight in weights)
        if learns or not weights or torch.is_autocast_enabled(weights[0].device.type):
            self.forget()
            return create()
        versions = [(weight.data_ptr(), weight._version) for weight in weights]
        if self._kept is None or self._kept[0] != versions:
            self.forget()  # frees its memory first
            bilm = create()
            bilm = prepack(bilm, None) if has_prepacked_products(bilm.device, bilm.dtype) else bilm
            # The weights are held so that no other tensor gets their address.
            self._kept = versions, [weight.detach() for weight in weights], bilm
        return self._kept[2]
