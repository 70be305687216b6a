"""Early stopping on the held-out perplexity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass
class EarlyStopping:
    """The lowest held-out perplexity so far, its step, and the number of evaluations since then."""

    best: float = math.inf
    best_step: int = 0
    evaluations_since: int = 0

    def improves(self, perplexity: float, step: int) -> bool:
        """Record an evaluation, and return whether it is the best so far."""
        if perplexity < self.best:
            self.best, self.best_step, self.evaluations_since = perplexity, step, 0
            return True
        self.evaluations_since += 1
        return False

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON values; infinity, which JSON lacks, becomes None."""
        return {**vars(self), "best": None if math.isinf(self.best) else self.best}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> EarlyStopping:
        """The inverse of `to_dict`."""
        return EarlyStopping(**{**values, "best": math.inf if values["best"] is None else values["best"]})
