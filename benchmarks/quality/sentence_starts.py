"""Perplexity of the language model by the position of a word in its sentence, for a given start state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.fs.reading import read_lines
from elmokit.lm.scoring import score

# Ranges of predictions, counted from the start of a sentence in the direction of reading. The last range is open.
RANGES = {"1": (0, 1), "2": (1, 2), "3": (2, 3), "4-5": (3, 5), "6-10": (5, 10), "11-": (10, None), "all": (0, None)}


def perplexity_by_place(model: Pretrained, files: Sequence[Path], state: str) -> dict[str, dict[str, float]]:
    """Perplexity of each direction and of both together, for each range of positions, over all files.

    Positions are counted from the boundary that a direction reads first. With `state="carry"` the state is carried from
    sentence to sentence.
    """
    sums = {direction: {name: np.zeros(2) for name in RANGES} for direction in ("forward", "backward")}
    for file in files:
        sentences = [line.split() for line in read_lines(file) if line.strip()]
        for found in score(sentences, model, state=state):
            losses = {"forward": -found.forward, "backward": -found.backward[::-1]}
            for direction, values in losses.items():
                for name, (start, end) in RANGES.items():
                    chosen = values[start:end]
                    sums[direction][name] += (float(chosen.sum(dtype=np.float64)), len(chosen))
    mean = {name: sums["forward"][name] + sums["backward"][name] for name in RANGES}
    return {
        direction: {name: round(float(np.exp(total / count)), 3) for name, (total, count) in of.items() if count}
        for direction, of in {**sums, "mean": mean}.items()
    }
