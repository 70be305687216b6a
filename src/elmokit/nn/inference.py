"""A biLM for inference: the same modules, but leaves that hold prepacked weights."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from elmokit.config import CHARACTER_SHIFT
from elmokit.nn.bilm import BiLM, BiLMOutput, BiLMState, uncompiled
from elmokit.nn.gated_cnn import WeightNormProjection
from elmokit.nn.lstm import LSTMLayer, has_hooks
from elmokit.nn.token_encoders import CharacterReader, CharCNN, Filters, Highway, Projection
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
# Attributes of modules on which their results depend, besides the weights.
SETTINGS = ("config", "clips", "forget_bias", "use_skip_connections", "activation")


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
        out: Tensor | None = None,
    ) -> tuple[Tensor, LSTMState]:
        if start is None:
            start = LSTMState(*(part.new_zeros(1, part.shape[1]) for part in state))
        return self._run(x, packing, state, self.clips, start, index, out)


class PrepackedProjection(nn.Module):
    """A linear map of a sequence encoder without gradients; its results are float32 at least."""

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self._multiply, self._dim = prepack_linear(weight, bias, dtype), len(weight)
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


# --- Conversion ------------------------------------------------------------------------------------------------------


def _is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module is of this very class, without hooks and without a `forward` set on the instance."""
    return type(module) is kind and not has_hooks([module]) and "forward" not in vars(module)


def _is_plain_cnn(module: nn.Module) -> bool:
    kinds = (CharCNN, Filters, Highway, Projection, nn.Linear, nn.ModuleList)
    return type(module) is CharCNN and all(
        _is_plain(each, type(each)) and type(each) in kinds for each in module.modules()
    )


def _converted(module: nn.Module, dtype: torch.dtype, in_sequence: bool = False) -> nn.Module:
    """The module with prepacked leaves; linear maps become such a leaf only in a sequence encoder."""
    if _is_plain(module, LSTMLayer):
        return PrepackedLSTMLayer(cast(LSTMLayer, module), dtype)
    if _is_plain_cnn(module):
        return PrepackedCharCNN(cast(CharCNN, module), dtype)
    if is_parametrized(module):
        return module
    if in_sequence and _is_plain(module, Projection):
        linear = cast(Projection, module)
        return PrepackedProjection(linear.weight, linear.bias, dtype)
    if _is_plain(module, WeightNormProjection):
        linear = cast(WeightNormProjection, module)
        return PrepackedProjection(linear.normalized_weight(), linear.bias, dtype)
    copied = copy.copy(module)
    copied.training = False
    copied._modules = {
        name: child and _converted(child, dtype, in_sequence or name == "sequence_encoder")
        for name, child in module._modules.items()
    }
    copied._parameters = {
        name: weight if weight is None else nn.Parameter(_not_wider(weight.detach(), dtype), requires_grad=False)
        for name, weight in module._parameters.items()
    }
    return copied


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The number type of what products in `dtype` are added to: float32, or float64."""
    return torch.promote_types(dtype if dtype.is_floating_point else torch.float32, torch.float32)


def _not_wider(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight that no product reads, such as a table of words: float64 only where products are."""
    return weight.to(_wide(dtype)) if weight.dtype == torch.float64 else weight


def prepack(bilm: BiLM, dtype: torch.dtype | None) -> BiLM:
    """The same biLM for use without gradients, its weights prepacked for products of one number type.

    The given biLM is not changed, and later changes of its weights do not change the prepacked ones. Other weights are
    shared: tables of words, and layers with hooks, parametrizations or a `forward` of their own, which are used as they
    are.

    Args:
        bilm: A biLM on any device. One that is prepacked already is returned itself.
        dtype: float32, bfloat16, float16 or float64, or int8 on a CPU with the compiled kernels; None: the biLM's own.

    Returns:
        A biLM in evaluation mode, whose `is_prepacked` is True.

    Raises:
        ValueError: If no backend here multiplies that type, or the biLM is prepacked for another.
    """
    if bilm.is_prepacked:
        if dtype not in (None, bilm.product_dtype):
            raise ValueError(
                f"this biLM is prepacked for {str(bilm.product_dtype)[6:]}, and so not for {str(dtype)[6:]}: load the "
                "model again"
            )
        return bilm
    dtype = bilm.dtype if dtype is None else dtype
    with torch.no_grad():
        converted = cast(BiLM, _converted(bilm, dtype))
        converted.like = torch.empty(0, dtype=_wide(dtype), device=bilm.device)
        converted.product_dtype = dtype
        return converted


# --- Frozen in a user's model ----------------------------------------------------------------------------------------


def _version_of(bilm: BiLM, weights: list[Tensor]) -> list[Any]:
    """All that a prepacked form depends on: PyTorch counts every change of a weight, except through `.data`."""
    settings = [vars(module).get(name) for module in bilm.modules() for name in SETTINGS]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in bilm.modules()]
    kinds = [(type(module), "forward" in vars(module)) for module in bilm.modules()]
    return [settings, hooks, kinds, [(weight.data_ptr(), weight._version, weight.dtype) for weight in weights]]


class _Kept(NamedTuple):
    """A prepacked biLM and all that it depends on; weights are held so that no other tensor gets their address."""

    version: list[Any]
    weights: list[Tensor]
    bilm: BiLM


class Frozen:
    """Runs a frozen biLM with weights that are prepacked once, and again after they have changed.

    Each call compares PyTorch's version counters, so that no vector is stale. Writes are not counted through `.data`,
    NumPy, or another tensor whose memory a weight was made to share: write to the weight itself under
    `torch.no_grad()`, or call `forget` (`Elmo.forget_prepacked`). Where prepacking does not pay,
    or a weight or a hook could learn, the biLM runs as it is. A copy or pickle, as for another process, is empty.
    """

    def __init__(self) -> None:
        self.forget()

    def __reduce__(self) -> tuple[type[Frozen], tuple[()]]:
        return Frozen, ()

    def forget(self) -> None:
        """Prepack again at the next call."""
        self._prepacked: _Kept | None = None

    def run(self, bilm: BiLM, ids: Tensor, state: BiLMState | None = None) -> BiLMOutput:
        """`bilm(ids, state=state)`."""
        return uncompiled(self._run)(bilm, ids, state)

    def _run(self, bilm: BiLM, ids: Tensor, state: BiLMState | None) -> BiLMOutput:
        weights: list[Tensor] = [*bilm.parameters()]
        if not self._is_usable(bilm, weights, state):
            self.forget()
            return bilm(ids, state=state)
        kept, now = self._prepacked, _version_of(bilm, weights)
        if kept is None or kept.version != now:
            kept = self._prepacked = None  # free its memory first
            kept = self._prepacked = _Kept(now, [weight.detach() for weight in weights], prepack(bilm, None))
        with torch.no_grad():
            return kept.bilm(ids, state=state)

    @staticmethod
    def _is_usable(bilm: BiLM, weights: list[Tensor], state: BiLMState | None) -> bool:
        """Whether prepacking pays, and PyTorch counts every change of the weights, as it does not for shared memory."""
        counted = all(not (weight.requires_grad or weight.is_inference() or weight.is_shared()) for weight in weights)
        same = {(weight.dtype, weight.device) for weight in weights}
        carried = state is not None and records_gradients(state.h, state.c)
        autocast = torch.is_autocast_enabled(bilm.device.type)
        hooked = torch.is_grad_enabled() and has_hooks(bilm.modules())  # which may learn
        is_plain = counted and len(same) == 1 and not (carried or autocast or hooked)
        return is_plain and has_prepacked_products(bilm.device, bilm.dtype)
