"""Attention and pooling over padded sentences, for several task networks."""

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension where `mask` is True; zeros elsewhere, and where nothing is True."""
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)  # also where all is masked, and softmax undefined


def masked_mean(vectors: Tensor, mask: Tensor) -> Tensor:
    """Mean of the real words' vectors, (B, D) from (B, T, D); zeros for no words."""
    return (vectors * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def masked_max(vectors: Tensor, mask: Tensor) -> Tensor:
    """Maximum of the real words' vectors, (B, D) from (B, T, D); zeros for no words."""
    highest = vectors.masked_fill(~mask[..., None], torch.finfo(vectors.dtype).min).amax(1)
    return highest.masked_fill(~mask.any(1, keepdim=True), 0.0)
