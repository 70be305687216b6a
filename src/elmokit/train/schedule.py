"""The learning rate of every step, as a factor of the recipe's own rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

WARM_UP = 0.05  # share of the steps, where their number is known
MAX_WARM_UP_STEPS = 1000
FINAL_FACTOR = 0.05  # of the cosine

ScheduleName = Literal["cosine", "constant", "none"]


@dataclass(frozen=True)
class CoolDown:
    """The end of a run whose length was not planned: the rate falls linearly to zero over `steps`, from `start` on.

    Hägele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations".
    """

    start: int
    steps: int

    @property
    def end(self) -> int:
        """The step after which the run is over."""
        return self.start + self.steps

    def factor(self, step: int) -> float:
        """1 before `start`, then falling towards 0, which is reached after the last step."""
        return min(1.0, max(0.0, (self.end - step) / (self.steps + 1)))


@dataclass(frozen=True)
class Schedule:
    """`cosine`: warm-up, then half a cosine over `total_steps`; `constant`: warm-up, then the same rate until a
    cool-down; `none`: the same rate in every step.

    `total_steps` is None where the run has no planned end.
    """

    name: ScheduleName
    total_steps: int | None
    cool_down: CoolDown | None = None

    def factor(self, step: int) -> float:
        """The factor of the learning rate of a step, from 0."""
        factor = self._warm_up_factor(step)
        if self.name == "cosine" and step >= self._warm_up_steps:
            assert self.total_steps is not None
            done = (step - self._warm_up_steps) / max(1, self.total_steps - self._warm_up_steps)
            factor = FINAL_FACTOR + (1 - FINAL_FACTOR) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return factor if self.cool_down is None else factor * self.cool_down.factor(step)

    @property
    def _warm_up_steps(self) -> int:
        if self.name == "none":
            return 0
        # A cool-down gives a run its end, but must not change the steps before it.
        if self.name == "constant" or self.total_steps is None:
            return MAX_WARM_UP_STEPS
        return max(1, min(MAX_WARM_UP_STEPS, round(WARM_UP * self.total_steps)))

    def _warm_up_factor(self, step: int) -> float:
        return 1.0 if step >= self._warm_up_steps else (step + 1) / self._warm_up_steps
