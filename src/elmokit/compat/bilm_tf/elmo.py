"""bilm-tf's `weight_layers` (bilm/elmo.py)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from elmokit.nn.scalar_mix import mix_layers


class Mix(nn.Module):
    """The variables of a mix: `gamma` (1,) and `weights` (L+1,), which is None if only the top layer is used."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1))
        self.weights: nn.Parameter | None
        self.register_parameter("weights", None)


def mix_named(name: str, bilm_ops: dict[str, Any]) -> Mix:
    """The mix with this name, which is created when it is first used."""
    mixes = bilm_ops["mixes"]
    key = f"{name}_ELMo".replace(".", ":")  # TensorFlow's names may have dots and no colons, PyTorch's the reverse
    if key not in mixes:
        mixes[key] = Mix().to(bilm_ops["lm_embeddings"].device)
    return cast(Mix, mixes[key])


def weight_layers(
    name: str,
    bilm_ops: dict[str, Any],
    l2_coef: float | None = None,
    use_top_only: bool = False,
    do_layer_norm: bool = False,
) -> dict[str, Tensor]:
    """Mix the layers with trainable weights.

    Args:
        name: Name of the mix. It is created with equal weights when it is first used, and shared afterwards, as with
            bilm-tf's `reuse=True`.
        bilm_ops: Output of `BidirectionalLanguageModel`.
        l2_coef: Weight of the L2 penalty on the mix weights.
        use_top_only: Use the top layer, multiplied by gamma, the only variable of the mix.
        do_layer_norm: Normalize the layers over all words, without boundaries.

    Returns:
        "weighted_op", (B, T, 2D), zero at padding unless layers are normalized; and "regularization_op", the penalty.
    """
    layers, mask, mix = bilm_ops["lm_embeddings"].transpose(0, 1), bilm_ops["mask"], mix_named(name, bilm_ops)
    if use_top_only:
        return {"weighted_op": mix.gamma * layers[-1], "regularization_op": torch.zeros(())}
    if mix.weights is None:
        mix.weights = nn.Parameter(torch.zeros(len(layers), device=layers.device))
    weighted = mix_layers(layers, mix.gamma * torch.softmax(mix.weights, dim=0), mask, do_layer_norm)
    penalty = (l2_coef or 0.0) * mix.weights.square().sum()
    return {"weighted_op": weighted, "regularization_op": penalty}
