"""Multinomial logistic regression, trained to convergence on features that are read in chunks (from a memory map)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ROWS = 8192
MAX_ITERATIONS = 100
TOLERANCE = 1e-4  # on the largest component of the gradient; the loss is a mean over examples


@dataclass(frozen=True, eq=False)
class Standardization:
    """The mean of each feature and the inverse of its standard deviation, (D,) float32 each."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, features: np.ndarray) -> Standardization:
        """Compute the statistics of features (N, D). A constant feature gets the scale 1."""
        total, squares = np.zeros(features.shape[1]), np.zeros(features.shape[1])
        for start in range(0, len(features), CHUNK_ROWS):
            chunk = features[start : start + CHUNK_ROWS].astype(np.float64)
            total += chunk.sum(axis=0)
            squares += np.square(chunk).sum(axis=0)
        mean = total / len(features)
        deviation = np.sqrt(np.maximum(squares / len(features) - mean**2, 0))
        deviation[deviation < 1e-6] = 1
        return cls(torch.from_numpy(mean).float(), torch.from_numpy(1 / deviation).float())


@dataclass(frozen=True, eq=False)
class SoftmaxRegression:
    """A linear classifier of D unstandardized features into K classes: weight (K, D), bias (K,)."""

    weight: Tensor
    bias: Tensor

    def predict(self, features: np.ndarray) -> np.ndarray:
        """The class with the highest score, (N,) int64, of each row of features (N, D)."""
        classes = []
        for start in range(0, len(features), CHUNK_ROWS):
            chunk = torch.from_numpy(features[start : start + CHUNK_ROWS]).to(self.weight.device)
            classes.append(F.linear(chunk.float(), self.weight, self.bias).argmax(dim=1).cpu().numpy())
        return np.concatenate(classes) if classes else np.zeros(0, dtype=np.int64)


class SoftmaxRegressionFit:
    """Fits with a sequence of penalties on the same examples, each fit starting from the previous solution.

    Memory holds one chunk of the features, and L-BFGS's history of ten steps.
    """

    def __init__(
        self, features: np.ndarray, classes: np.ndarray, num_classes: int, device: torch.device | None = None
    ) -> None:
        """Standardize the features and start from zero weights.

        Args:
            features: (N, D) of any float type.
            classes: (N,) from 0 to `num_classes` - 1.
            num_classes: K.
            device: Device to compute on; None: the CPU.
        """
        self._features, self._classes = features, torch.from_numpy(classes.astype(np.int64))
        self._device = device or torch.device("cpu")
        standard = Standardization.of(features)
        self._mean, self._scale = standard.mean.to(self._device), standard.scale.to(self._device)
        self._weight = torch.zeros(num_classes, features.shape[1], device=self._device, requires_grad=True)
        self._bias = torch.zeros(num_classes, device=self._device, requires_grad=True)

    def _unstandardized(self) -> tuple[Tensor, Tensor]:
        """Weight and bias for the raw features, so that no standardized copy of them is needed."""
        weight = self._weight * self._scale
        return weight, self._bias - weight @ self._mean

    def _loss(self, l2: float) -> float:
        """Mean cross-entropy + l2 / 2 * |weights of standardized features|^2, after its backward pass."""
        penalty = l2 / 2 * self._weight.square().sum()
        penalty.backward()
        total = penalty.item()
        for start in range(0, len(self._features), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            chunk = torch.from_numpy(self._features[rows]).to(self._device).float()
            weight, bias = self._unstandardized()
            scores, classes = F.linear(chunk, weight, bias), self._classes[rows].to(self._device)
            loss = F.cross_entropy(scores, classes, reduction="sum") / len(self._features)
            loss.backward()
            total += loss.item()
        return total

    def fit(self, l2: float) -> SoftmaxRegression:
        """Minimize the loss with L-BFGS, from the previous solution, until the gradient is small.

        It stops after 100 iterations in any case. The loss is convex, so that the result depends on the starting point
        only if the gradient is not small by then.
        """
        optimizer = torch.optim.LBFGS(
            [self._weight, self._bias],
            max_iter=MAX_ITERATIONS,
            tolerance_grad=TOLERANCE,
            tolerance_change=1e-9,
            history_size=10,
            line_search_fn="strong_wolfe",
        )

        def closure() -> float:
            optimizer.zero_grad()
            return self._loss(l2)

        optimizer.step(closure)
        weight, bias = self._unstandardized()
        return SoftmaxRegression(weight.detach(), bias.detach())
