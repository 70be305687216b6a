"""A biLM for inference: the same modules, but leaves that hold prepacked weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from elmokit.config import CHARACTER_SHIFT
from elmokit.nn.bilm import BiLM, BiLMOutput, BiLMState
from elmokit.nn.gated_cnn import WeightNormProjection
from elmokit.nn.lstm import LSTMLayer, has_hooks
from elmokit.nn.token_encoders import CharacterReader, CharCNN, Highway, Projection, TokenEncoder
from elmokit.ops.dispatch import has_character_tables, has_prepacked_products
from elmokit.ops.functional import (
    LSTMState,
    prepack_char_conv,
    prepack_highway,
    prepack_linear,
    prepack_lstm,
    records_gradients,
)
from elmokit.ops.packing import Packing
from elmokit.ops.threads import parallel_rows
from elmokit.ops.workspace import allocate

CHUNK_WORDS = 128  # so few that the output of one layer is still in cache for the next


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of what products in `dtype` are added to: float32, or float64."""
    return torch.promote_types(dtype if dtype.is_floating_point else torch.float32, torch.float32)


# --- Leaves ----------------------------------------------------------------------------------------------------------


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
        if start is None:
            start = LSTMState(*(part.new_zeros(1, part.shape[1]) for part in state))
        return self._run(x, packing, state, self.clips, start, index)


class PrepackedProjection(nn.Module):
    """A linear map of a sequence encoder without gradients; its results are float32 at least."""

    def __init__(self, projection: Projection, dtype: torch.dtype) -> None:
        super().__init__()
        is_normalized = isinstance(projection, WeightNormProjection)
        weight = projection.normalized_weight() if is_normalized else projection.weight
        self._multiply, self._dim = prepack_linear(weight, projection.bias, dtype), len(weight)
        self._wide = _wide(dtype)

    def forward(self, input: Tensor) -> Tensor:
        out = allocate((len(input), self._dim), self._wide, input.device)

        def multiply(rows: slice) -> None:
            out[rows] = self._multiply(input[rows])

        parallel_rows(multiply, len(input), CHUNK_WORDS, input.device)
        return out


class PrepackedCharCNN(CharacterReader, nn.Module):
    """`CharCNN` without gradients; its vectors are float32 at least."""

    def __init__(self, encoder: CharCNN, dtype: torch.dtype) -> None:
        super().__init__()
        self.config, self.activation = encoder.config, encoder.activation
        # Not in int8: a few filters are so large that with a common scale, the others would be too coarse.
        self._fine = torch.float32 if dtype == torch.int8 else dtype
        self._convolve = prepack_char_conv(encoder.char_embedding, *encoder.filters(), self._fine)
        gates = [cast(Highway, layer).gates for layer in encoder.highways]
        self._highways = [prepack_highway(each.weight, each.bias, dtype) for each in gates]
        last = encoder.projection
        self._project = None if last is None else prepack_linear(last.weight, last.bias, self._fine)
        self._dim = self.config.num_filters if last is None else last.out_features
        device, characters = encoder.char_embedding.device, len(encoder.char_embedding)
        self.is_cacheable = has_character_tables(device, self._fine, characters) and has_prepacked_products(
            device, dtype, self.config.num_filters
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self._convolve(ids - CHARACTER_SHIFT)
        out = allocate((len(x), self._dim), torch.promote_types(self._fine, torch.float32), x.device)

        def after_convolution(rows: slice) -> None:
            chunk = self.activation(x[rows]).to(self._fine)
            for layer in self._highways:
                chunk = layer(chunk)
            out[rows] = chunk if self._project is None else self._project(chunk)

        parallel_rows(after_convolution, len(x), CHUNK_WORDS, x.device)
        return out


# --- The whole model -------------------------------------------------------------------------------------------------

Leaves = Mapping[type[nn.Module], Callable[[Any, torch.dtype], nn.Module]]
TOKEN_LEAVES: Leaves = {CharCNN: PrepackedCharCNN}
SEQUENCE_LEAVES: Leaves = {LSTMLayer: PrepackedLSTMLayer, Projection: PrepackedProjection}


def _converted(module: nn.Module, leaves: Leaves, dtype: torch.dtype) -> nn.Module:
    """The module with prepacked leaves; other weights are shared, or copied in the dtype that products are added to."""
    for kind, prepacked in leaves.items():
        if isinstance(module, kind):
            return prepacked(module, dtype)
    converted = copy.copy(module)
    converted._modules = {name: child and _converted(child, leaves, dtype) for name, child in module._modules.items()}
    converted._parameters = {
        name: weight if weight is None else nn.Parameter(weight.detach().to(_wide(dtype)), requires_grad=False)
        for name, weight in module._parameters.items()
    }
    return converted.eval()


class PrepackedBiLM(BiLM):
    """A biLM without gradients, whose weights are prepacked for products of one dtype: it cannot be saved or moved."""

    def __init__(self, bilm: BiLM, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.config, self.product_dtype, self._device = bilm.config, dtype, bilm.device
        with torch.no_grad():
            token_encoder = _converted(bilm.get_submodule("token_encoder"), TOKEN_LEAVES, dtype)
            self.token_encoder = cast(TokenEncoder, token_encoder)
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
        raise ValueError("this biLM is prepacked for inference and has no weights of its own: use `elmokit.load`")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BiLM:
        """Called by `to`, `cuda`, `half` and others."""
        before = torch.empty(0, dtype=self.dtype, device=self.device)
        if ((after := fn(before)).device, after.dtype) != (before.device, before.dtype):
            raise ValueError(
                f"this biLM is prepacked for {str(self.product_dtype)[6:]} on {self.device}, and cannot be moved or "
                "converted: load the model again, and prepack it there, as `elmokit.Embedder` does"
            )
        return super()._apply(fn, recurse)

    def __repr__(self) -> str:
        return f"PrepackedBiLM({self.config.sequence_encoder}; {str(self.product_dtype)[6:]} on {self.device})"


def prepack(bilm: BiLM, dtype: torch.dtype | None) -> PrepackedBiLM:
    """The same biLM for use without gradients, its weights prepacked for products of one dtype.

    The given biLM is not changed, and later changes of its weights do not change the prepacked ones. Tables of words
    are shared. Hooks on layers are not called.

    Args:
        bilm: A biLM on any device. One that is prepacked already is returned itself.
        dtype: float32, bfloat16, float16 or float64, or int8 on a CPU with the compiled kernels; None: the biLM's own.

    Raises:
        ValueError: If no backend here multiplies that dtype, or the biLM is prepacked for another.
    """
    if not isinstance(bilm, PrepackedBiLM):
        return PrepackedBiLM(bilm, bilm.dtype if dtype is None else dtype)
    if dtype not in (None, bilm.product_dtype):
        raise ValueError(
            f"this biLM is prepacked for {str(bilm.product_dtype)[6:]}, not for {str(dtype)[6:]}: load the model again"
        )
    return bilm


class Frozen:
    """Runs a biLM that does not learn in prepacked form: made at the first call, and anew after a weight has changed.

    PyTorch counts the changes of each weight, but for those through `.data` and NumPy: after these, call `forget`. With
    hooks, gradients or autocast, and where prepacking does not pay, the biLM runs as it is. Copies and pickles are
    empty.
    """

    def __init__(self) -> None:
        self.forget()

    def __reduce__(self) -> tuple[type[Frozen], tuple[()]]:
        return Frozen, ()

    def forget(self) -> None:
        """Prepack again at the next call."""
        self._prepacked: tuple[list[tuple[int, int]], PrepackedBiLM] | None = None

    def run(self, bilm: BiLM, ids: Tensor, state: BiLMState | None = None) -> BiLMOutput:
        """`bilm(ids, state=state)`."""
        weights = list(bilm.parameters())
        learns = any(weight.requires_grad or weight.is_inference() for weight in weights)
        carried = () if state is None else (state.h, state.c)
        if (
            learns
            or not has_prepacked_products(bilm.device, bilm.dtype)
            or records_gradients(*carried)
            or torch.is_autocast_enabled(bilm.device.type)
            or has_hooks(bilm.modules())
        ):
            self.forget()
            return bilm(ids, state=state)
        versions = [(weight.data_ptr(), weight._version) for weight in weights]
        kept = self._prepacked
        if kept is None or kept[0] != versions:
            kept = self._prepacked = None  # frees its memory first
            kept = self._prepacked = versions, prepack(bilm, None)
        with torch.no_grad():
            return kept[1](ids, state=state)
