"""Multinomial logistic regression on vectors that may lie in a file: fitted to its optimum, read in chunks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

ROWS_AT_ONCE = 8192
MAX_ITERATIONS = 100
TOLERANCE = 1e-4  # of the largest component of the gradient; the loss is a mean over examples


@dataclass(frozen=True, eq=False)
class Standardization:
    """The mean of each feature and the inverse of its standard deviation, (D,) float32 each."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, features: np.ndarray) -> Standardization:
        """That of (N, D) features. One that never varies keeps its scale."""
        total, squares = np.zeros(features.shape[1]), np.zeros(features.shape[1])
        for start in range(0, len(features), ROWS_AT_ONCE):
            chunk = features[start : start + ROWS_AT_ONCE].astype(np.float64)
            total += chunk.sum(axis=0)
            squares += np.square(chunk).sum(axis=0)
        mean = total / len(features)
        deviation = np.sqrt(np.maximum(squares / len(features) - mean**2, 0))
        deviation[deviation < 1e-6] = 1
        return cls(torch.from_numpy(mean).float(), torch.from_numpy(1 / deviation).float())


@dataclass(frozen=True, eq=False)
class SoftmaxRegression:
    """Scores of K classes, a linear function of D features as they come: weight (K, D), bias (K,)."""

    weight: Tensor
    bias: Tensor

    def predict(self, features: np.ndarray) -> np.ndarray:
        """(N, D) -> (N,) int64, the class with the highest score."""
        found = []
        for start in range(0, len(features), ROWS_AT_ONCE):
            chunk = torch.from_numpy(features[start : start + ROWS_AT_ONCE]).to(self.weight.device)
            found.append(F.linear(chunk.float(), self.weight, self.bias).argmax(dim=1).cpu().numpy())
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


class SoftmaxRegressionFit:
    """Fits the same examples with one penalty after the other, each from the solution of the one before.

    `features` are (N, D) of any float type, `classes` (N,) from 0 to `num_classes` - 1. In memory there are some
    thousand of the features at a time, and of the weights what L-BFGS keeps of ten steps.
    """

    def __init__(
        self, features: np.ndarray, classes: np.ndarray, num_classes: int, device: torch.device | None = None
    ) -> None:
        self._features, self._classes = features, torch.from_numpy(classes.astype(np.int64))
        self._device = device or torch.device("cpu")
        standard = Standardization.of(features)
        self._mean, self._scale = standard.mean.to(self._device), standard.scale.to(self._device)
        self._weight = torch.zeros(num_classes, features.shape[1], device=self._device, requires_grad=True)
        self._bias = torch.zeros(num_classes, device=self._device, requires_grad=True)

    def _unstandardized(self) -> tuple[Tensor, Tensor]:
        """The weights for features as they come, so that no copy of them is standardised."""
        weight = self._weight * self._scale
        return weight, self._bias - weight @ self._mean

    def _loss(self, l2: float) -> float:
        """Mean cross-entropy + l2 / 2 * |weights of standardised features|^2; its gradient goes to the weights."""
        penalty = l2 / 2 * self._weight.square().sum()
        penalty.backward()
        total = penalty.item()
        for start in range(0, len(self._features), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            chunk = torch.from_numpy(self._features[rows]).to(self._device).float()
            weight, bias = self._unstandardized()
            scores, classes = F.linear(chunk, weight, bias), self._classes[rows].to(self._device)
            loss = F.cross_entropy(scores, classes, reduction="sum") / len(self._features)
            loss.backward()
            total += loss.item()
        return total

    def fit(self, l2: float) -> SoftmaxRegression:
        """The classifier of the lowest loss, by L-BFGS; the loss is convex, so it does not depend on the start."""
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
