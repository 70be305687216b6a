"""Multinomial logistic regression, trained to convergence on features that are read in chunks (from a memory map)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ROWS = 8192
MAX_ITERATIONS = 100
TOLERANCE = 1e-4  # on the largest component of the gradient; the loss is a mean over examples


class SoftmaxRegression(NamedTuple):
    """A linear classifier of D features into K classes: weight (K, D), bias (K,)."""

    weight: Tensor
    bias: Tensor

    def predict(self, features: np.ndarray) -> np.ndarray:
        """The class with the highest score, (N,) int64, of each row of features (N, D)."""
        chunks = (_floats(chunk, self.weight.device) for chunk in _chunks(features))
        return torch.cat([F.linear(chunk, *self).argmax(dim=1) for chunk in chunks]).cpu().numpy()


def _chunks(features: np.ndarray) -> list[np.ndarray]:
    return [features[begin : begin + CHUNK_ROWS] for begin in range(0, len(features), CHUNK_ROWS)]


def _floats(chunk: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(chunk).to(device).float()


def standardization(features: np.ndarray) -> tuple[Tensor, Tensor]:
    """The mean of each feature (N, D) and the inverse of its standard deviation, 1 where it is constant; (D,) each."""
    chunks = _chunks(features)
    mean = sum(chunk.sum(axis=0, dtype=np.float64) for chunk in chunks) / len(features)
    deviation = np.sqrt(sum(np.square(chunk - mean).sum(axis=0) for chunk in chunks) / len(features))
    deviation[deviation < 1e-6] = 1
    return torch.from_numpy(mean).float(), torch.from_numpy(1 / deviation).float()


def softmax_regressions(
    features: np.ndarray, classes: np.ndarray, penalties: Sequence[float], device: torch.device | None = None
) -> Iterator[SoftmaxRegression]:
    """Minimize the mean cross-entropy + l2 / 2 |weights of standardized features|^2 with L-BFGS, for several penalties.

    Each fit starts from the previous solution, and ends when the gradient is small, or after 100 iterations: the loss
    is convex, so that the result depends on the starting point only then. Memory holds one chunk of the features, and
    L-BFGS's history of ten steps.

    Args:
        features: (N, D) of any float type.
        classes: (N,) from 0 to K - 1.
        penalties: The values of l2.
        device: Device to compute on; None: the CPU.

    Yields:
        A classifier of the raw features for each penalty.
    """
    device = device or torch.device("cpu")
    targets = torch.from_numpy(classes.astype(np.int64)).to(device)
    mean, scale = (each.to(device) for each in standardization(features))
    w = torch.zeros(int(classes.max()) + 1, features.shape[1], device=device, requires_grad=True)
    b = torch.zeros(len(w), device=device, requires_grad=True)

    def classifier() -> SoftmaxRegression:
        """For the raw features, so that no standardized copy of them is needed."""
        weight = w * scale
        return SoftmaxRegression(weight, b - weight @ mean)

    for l2 in penalties:
        options = {"max_iter": MAX_ITERATIONS, "tolerance_grad": TOLERANCE, "tolerance_change": 1e-9}
        optimizer = torch.optim.LBFGS([w, b], history_size=10, line_search_fn="strong_wolfe", **options)

        def loss_and_gradient(l2: float = l2, optimizer: torch.optim.Optimizer = optimizer) -> float:
            optimizer.zero_grad()
            loss = l2 / 2 * w.square().sum()
            loss.backward()
            total = loss.item()
            for chunk, classes in zip(_chunks(features), targets.split(CHUNK_ROWS), strict=True):
                scores = F.linear(_floats(chunk, device), *classifier())
                loss = F.cross_entropy(scores, classes, reduction="sum") / len(features)
                loss.backward()
                total += loss.item()
            return total

        optimizer.step(loss_and_gradient)
        yield SoftmaxRegression(*(each.detach() for each in classifier()))
