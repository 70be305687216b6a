"""Learning rate schedules, as factors of the recipe's learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

WARM_UP = 0.05  # as a fraction of the steps, if their number is known
FINAL_FACTOR = 0.05  # at the end of the cosine

ScheduleName = Literal["cosine", "constant", "none"]


@dataclass(frozen=True)
class CoolDown:
    """Linear decay of the learning rate to zero over `steps` steps, from step `start`.

    It finishes a run without a planned end: Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed
    Training Durations".
    """

    start: int
    steps: int

    @property
    def end(self) -> int:
        """Number of steps of the run."""
        return self.start + self.steps

    def factor(self, step: int) -> float:
        """The factor at a step, from 0: 1 before `start`, then decreasing; it would reach 0 after the last step."""
        return min(1.0, max(0.0, (self.end - step) / (self.steps + 1)))


@dataclass(frozen=True)
class Schedule:
    """A schedule: warm-up and cosine decay (`cosine`), warm-up and a constant rate (`constant`), or `none`.

    Attributes:
        name: The kind of schedule.
        total_steps: Steps of the run; None without a planned end (`constant`).
        warm_up_steps: Steps over which the rate rises; at most 5 % of a run with a planned end.
        cool_down: The end of a run with a constant schedule.
        start: The step at which the schedule begins: 0, or the former end of a run that was extended.
    """

    name: ScheduleName
    total_steps: int | None
    warm_up_steps: int = 1000
    cool_down: CoolDown | None = None
    start: int = 0

    def factor(self, step: int) -> float:
        """The factor of the learning rate at a step, which is `start` or later."""
        since = step - self.start
        warm_up = self._warm_up()
        factor = 1.0 if since >= warm_up else (since + 1) / warm_up
        if self.name == "cosine" and since >= warm_up:
            assert self.total_steps is not None
            progress = (since - warm_up) / max(1, self.total_steps - self.start - warm_up)
            factor = FINAL_FACTOR + (1 - FINAL_FACTOR) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return factor if self.cool_down is None else factor * self.cool_down.factor(step)

    def _warm_up(self) -> int:
        if self.name == "none":
            return 0
        # Independent of total_steps, which a cool-down sets: it must not change the steps before it.
        if self.name == "constant" or self.total_steps is None:
            return self.warm_up_steps
        return max(1, min(self.warm_up_steps, round(WARM_UP * (self.total_steps - self.start))))
