"""Detection of divergence: a loss that grows or is not finite."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from elmokit.fs.json_files import from_json

SMOOTHING = 0.9  # weight of the past in the smoothed loss


@dataclass
class LossMonitor:
    """Detects divergence from the mean training loss of successive intervals of steps.

    A run has diverged if the loss is not finite, or if it exceeds the lowest smoothed loss so far by more than `margin`
    nats in `patience` consecutive intervals. A single high interval is a spike, from which runs recover.

    Attributes:
        margin: In nats per word.
        patience: Number of consecutive high intervals that counts as divergence.
        smoothed: Exponential moving average of the loss; None before the first interval.
        lowest: Lowest value of `smoothed` so far.
        high_intervals: Number of consecutive high intervals so far.
    """

    margin: float = 1.0
    patience: int = 2
    smoothed: float | None = None
    lowest: float = math.inf
    high_intervals: int = 0

    def has_diverged(self, loss: float, gradient_norm: float) -> bool:
        """Record the mean loss of an interval (nats per word) and the last gradient norm."""
        if not math.isfinite(loss + gradient_norm):
            self.high_intervals = self.patience
            return True
        self.smoothed = loss if self.smoothed is None else SMOOTHING * self.smoothed + (1 - SMOOTHING) * loss
        self.high_intervals = self.high_intervals + 1 if loss > self.lowest + self.margin else 0
        self.lowest = min(self.lowest, self.smoothed)
        return self.high_intervals >= self.patience

    @property
    def is_calm(self) -> bool:
        """Whether the loss is close to its minimum so far, so that a checkpoint is worth keeping."""
        return self.high_intervals == 0 and (self.smoothed is None or self.smoothed < self.lowest + self.margin / 2)

    def to_dict(self) -> dict[str, float | int | None]:
        """The state as JSON values; infinity, which JSON lacks, becomes None."""
        return {**asdict(self), "lowest": None if math.isinf(self.lowest) else self.lowest}

    @staticmethod
    def from_dict(values: dict[str, float | int | None]) -> LossMonitor:
        """The inverse of `to_dict`."""
        lowest = from_json(float | None, values.get("lowest"), "monitor.lowest")
        others = {name: value for name, value in values.items() if name != "lowest"}
        return replace(from_json(LossMonitor, others, "monitor"), lowest=math.inf if lowest is None else lowest)
