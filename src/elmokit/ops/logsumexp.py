"""The denominator of a softmax over many classes, without ever holding all logits."""

from __future__ import annotations

import torch
from torch import Tensor

from elmokit.ops.autograd import product_dtype
from elmokit.ops.dispatch import choose


def linear_logsumexp(hidden: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor | None = None) -> Tensor:
    """log(sum(exp(hidden @ weight.T + bias))) (N,), float32 at least; see `reference.logsumexp`.

    Products run in the number type of the weight, or that of autocast.

    Args:
        hidden: (N, D).
        weight: (V, D).
        bias: (V,).
        excluded: A class that is left out in each row (N,), -1 for none.

    Raises:
        ValueError: where sizes do not fit.
    """
    count, dim = hidden.shape
    if weight.shape[1] != dim or len(bias) != len(weight) or not (excluded is None or len(excluded) == count):
        raise ValueError(f"a softmax of weights {tuple(weight.shape)} has no place for vectors {tuple(hidden.shape)}")
    dtype = product_dtype(weight)
    with torch.autocast(hidden.device.type, enabled=False):
        return choose("logsumexp", hidden.device, dtype, dim).logsumexp(hidden, weight, bias, excluded, dtype)
