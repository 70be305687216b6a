"""Word-sense disambiguation scores: F1 of every method on every test set.

F1 is defined as in Raganato et al. (2017): 2 PR / (P + R), where unanswered instances lower the recall but not the
precision. If all instances are answered, it equals the accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass
class Tally:
    """Counts of one method's answers on one test set."""

    correct: int = 0
    answered: int = 0
    instances: int = 0

    def add(self, answer: str | None, senses: Sequence[str]) -> None:
        """Count one instance whose correct answers are `senses`; `answer` is None if the method has none."""
        self.correct += answer in senses
        self.answered += answer is not None
        self.instances += 1

    @property
    def f1(self) -> float:
        """F1 in percent."""
        return 200 * self.correct / (self.answered + self.instances)


class Tallies:
    """One tally per test set and method, in order of first appearance."""

    def __init__(self) -> None:
        self._tallies: dict[str, dict[str, Tally]] = {}

    def add(self, sets: Iterable[str], answers: Mapping[str, str | None], senses: Sequence[str]) -> None:
        """Count an instance that belongs to all of `sets`, with the answer of each method."""
        for name in sets:
            tallies = self._tallies.setdefault(name, {method: Tally() for method in answers})
            for method, answer in answers.items():
                tallies[method].add(answer, senses)

    def f1(self) -> dict[str, dict[str, float]]:
        return {
            name: {method: tally.f1 for method, tally in tallies.items()} for name, tallies in self._tallies.items()
        }

    def instances(self) -> dict[str, int]:
        return {name: next(iter(tallies.values())).instances for name, tallies in self._tallies.items()}


@dataclass(frozen=True)
class SenseReport:
    """Word-sense disambiguation scores.

    Attributes:
        f1: F1 in percent, by test set and method; a method is a layer or a baseline.
        instances: Number of instances, by test set.
        senses: Number of senses in the training text of the lemmas of the test sets.
        unseen: Number of instances whose lemma does not occur in the training text.
        state: Initial LSTM state of a sentence.
        fingerprint: Fingerprint of the model's weights.
        neighbors: Number of training uses that vote for a sense; None if the nearest centroid decides.
    """

    f1: dict[str, dict[str, float]]
    instances: dict[str, int]
    senses: int
    unseen: int
    state: str
    fingerprint: str
    neighbors: int | None = None

    def __str__(self) -> str:
        methods = list(next(iter(self.f1.values())))
        name_width = max(map(len, self.f1))
        widths = [max(len(method), 6) + 2 for method in methods]
        header = "".join(f"{method:>{width}}" for method, width in zip(methods, widths, strict=True))
        lines = [f"{'':{name_width}}{'uses':>8}{header}"]
        for name, scores in self.f1.items():
            cells = "".join(f"{scores[method]:>{width}.2f}" for method, width in zip(methods, widths, strict=True))
            lines.append(f"{name:{name_width}}{self.instances[name]:>8}{cells}")
        unseen = f"; {self.unseen} uses of lemmas absent from the training text" if self.unseen else ""
        senses = f"{self.senses} senses of the tested lemmas in the training text"
        decides = "nearest centroid" if self.neighbors is None else f"nearest uses: {self.neighbors}"
        lines.append(f"(F1 in percent; {decides}; state {self.state}; {senses}{unseen})")
        return "\n".join(lines)
