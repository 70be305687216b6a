"""Early stopping on the held-out perplexity, or pseudo-perplexity."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from elmokit.fs.json_files import from_json


@dataclass
class EarlyStopping:
    """The lowest held-out perplexity so far, its step, and the number of evaluations since then.

    `text` identifies the held-out text: perplexities of different texts are never compared.
    """

    best: float = math.inf
    best_step: int = 0
    evaluations_since: int = 0
    text: str = ""

    def is_of(self, text: str) -> bool:
        """Whether the evaluations so far are of this text; snapshots of older versions do not record the text."""
        return self.text in ("", text)

    def improves(self, value: float, step: int) -> bool:
        """Record an evaluation, and return whether it is the best so far."""
        if value < self.best:
            self.best, self.best_step, self.evaluations_since = value, step, 0
            return True
        self.evaluations_since += 1
        return False

    def keep_best_of(self, other: EarlyStopping) -> None:
        """Adopt the best evaluation of `other` if it is better, or if it is of another text.

        The count of evaluations since the best one then begins anew.
        """
        if other.best < self.best or not self.is_of(other.text):
            self.best, self.best_step, self.evaluations_since = other.best, other.best_step, 0
        self.text = other.text

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON values; infinity, which JSON lacks, becomes None."""
        return {**vars(self), "best": None if math.isinf(self.best) else self.best}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> EarlyStopping:
        """The inverse of `to_dict`."""
        best = from_json(float | None, values.get("best"), "early_stopping.best")
        others = {name: value for name, value in values.items() if name != "best"}
        return replace(from_json(EarlyStopping, others, "early_stopping"), best=math.inf if best is None else best)
