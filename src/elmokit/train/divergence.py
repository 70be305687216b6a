"""Whether a run still learns: the one judgement of a loss that grows instead of falling, or is no number."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

SMOOTHING = 0.9  # weight of the past in the smoothed loss


@dataclass
class LossMonitor:
    """Watches the mean loss of one interval of steps after the other.

    A run diverges where a loss is no number, or where `patience` intervals in a row lie more than `margin` nats above
    the lowest smoothed loss so far. One bad interval is a spike, from which a run recovers by itself.
    """

    margin: float = 1.0
    patience: int = 2
    smoothed: float | None = None
    lowest: float = math.inf
    high_intervals: int = 0

    def has_diverged(self, loss: float, gradient_norm: float) -> bool:
        """Take in the mean loss of an interval (nats a word) and the last gradient norm."""
        if not math.isfinite(loss + gradient_norm):
            self.high_intervals = self.patience
            return True
        self.smoothed = loss if self.smoothed is None else SMOOTHING * self.smoothed + (1 - SMOOTHING) * loss
        self.high_intervals = self.high_intervals + 1 if loss > self.lowest + self.margin else 0
        self.lowest = min(self.lowest, self.smoothed)
        return self.high_intervals >= self.patience

    @property
    def is_calm(self) -> bool:
        """Whether the loss is about as low as it ever was, so that a checkpoint is worth going back to."""
        return self.high_intervals == 0 and (self.smoothed is None or self.smoothed < self.lowest + self.margin / 2)

    def to_dict(self) -> dict[str, float | int | None]:
        """What `LossMonitor(**values)` goes on from; JSON has no infinity."""
        return {**asdict(self), "lowest": None if math.isinf(self.lowest) else self.lowest}

    @staticmethod
    def from_dict(values: dict[str, float | int | None]) -> LossMonitor:
        lowest = values["lowest"]
        return LossMonitor(**{**values, "lowest": math.inf if lowest is None else lowest})  # type: ignore[arg-type]
