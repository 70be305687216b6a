"""AllenNLP's `ScalarMix` (modules/scalar_mix.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from elmokit.compat.allennlp.configuration import ConfigurationError, FromParams
from elmokit.nn.scalar_mix import mix_layers


class ScalarMix(nn.Module, FromParams):
    """A learned weighted sum of tensors: `gamma` (1,) times the softmax of `scalar_parameters`, each (1,)."""

    def __init__(
        self,
        mixture_size: int,
        do_layer_norm: bool = False,
        initial_scalar_parameters: Sequence[float] | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        initial = [0.0] * mixture_size if initial_scalar_parameters is None else initial_scalar_parameters
        if len(initial) != mixture_size:
            raise ConfigurationError(f"initial_scalar_parameters must be {mixture_size} numbers, not {list(initial)}")
        self.mixture_size, self.do_layer_norm = mixture_size, do_layer_norm
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([float(number)]), requires_grad=trainable) for number in initial
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=trainable)

    def forward(self, tensors: Sequence[Tensor] | Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix tensors of one shape, given in a list or stacked; layer norm needs the `mask` of words, (B, T)."""
        if len(tensors) != self.mixture_size:
            raise ConfigurationError(f"{len(tensors)} tensors were passed to a module that mixes {self.mixture_size}")
        layers = tensors if isinstance(tensors, Tensor) else torch.stack(list(tensors))
        weights = torch.softmax(torch.cat(list(cast(nn.ParameterList, self.scalar_parameters))), dim=0)
        # Like AllenNLP's, the mix of tensors in float64 is in float64, whatever the weights are in.
        dtype = torch.promote_types(weights.dtype, layers.dtype)
        return mix_layers(layers, (self.gamma * weights).to(dtype), mask, self.do_layer_norm)
