"""Scores of word-sense disambiguation: F1 of every method on every test set.

F1 is that of Raganato et al. (2017): 2 PR / (P + R), where an instance without an answer counts against recall alone.
With an answer for every instance it is the accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass
class Tally:
    """The answers of one method on one test set."""

    right: int = 0
    answered: int = 0
    instances: int = 0

    def add(self, answer: str | None, senses: Sequence[str]) -> None:
        """One instance, of which any of `senses` is right; None is no answer."""
        self.right += answer in senses
        self.answered += answer is not None
        self.instances += 1

    @property
    def f1(self) -> float:
        """In percent."""
        return 200 * self.right / (self.answered + self.instances)


class Tallies:
    """A tally for each test set and method, in the order in which they are met."""

    def __init__(self) -> None:
        self._tallies: dict[str, dict[str, Tally]] = {}

    def add(self, sets: Iterable[str], answers: Mapping[str, str | None], senses: Sequence[str]) -> None:
        """An instance that belongs to all of `sets`, with the answer of each method."""
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
    """F1 in percent by test set and method, a layer or a baseline, and how many instances each set has.

    `unseen` instances have a lemma that the training text does not show; `senses` are the senses that it does.
    `state` is the initial LSTM state of a sentence, `fingerprint` that of the model.
    """

    f1: dict[str, dict[str, float]]
    instances: dict[str, int]
    senses: int
    unseen: int
    state: str
    fingerprint: str

    def __str__(self) -> str:
        methods = list(next(iter(self.f1.values())))
        name_width = max(map(len, self.f1))
        widths = [max(len(method), 6) + 2 for method in methods]
        heads = "".join(f"{method:>{width}}" for method, width in zip(methods, widths, strict=True))
        lines = [f"{'':{name_width}}{'uses':>8}{heads}"]
        for name, scores in self.f1.items():
            cells = "".join(f"{scores[method]:>{width}.2f}" for method, width in zip(methods, widths, strict=True))
            lines.append(f"{name:{name_width}}{self.instances[name]:>8}{cells}")
        unseen = f"; {self.unseen} uses of lemmas that are not in the training text" if self.unseen else ""
        lines.append(f"(F1 in percent; state {self.state}; {self.senses} senses in the training text{unseen})")
        return "\n".join(lines)
