"""A small text that can be learnt, and a short pretraining run over it with everything in it that
draws at random.
"""

from __future__ import annotations

import random
from pathlib import Path

from elmokit.train.config import PretrainConfig

NUM_SENTENCES = 100
WORDS_PER_SENTENCE = 6
POSSIBLE_SENTENCES = 4 * 3 * 4


def write_text(path: Path) -> Path:
    """Sentences that follow a simple grammar."""
    draw = random.Random(0)
    nouns = ["cat", "dog", "fox", "hen"]
    verbs = ["sees", "likes", "chases"]
    lines = [
        f"the {draw.choice(nouns)} {draw.choice(verbs)} a {draw.choice(nouns)} ."
        for _ in range(NUM_SENTENCES)
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def settings_for(text: Path, output: Path) -> PretrainConfig:
    """About 70 steps."""
    return PretrainConfig(
        corpus=(text,),
        output=output,
        tokenize=False,
        preset="tiny",
        min_count=1,
        epochs=2,
        batch_size=4,
        unroll_steps=5,
        num_samples=6,
        dropout=0.2,
        dtype="float32",
        device="cpu",
        threads=1,
        seed=3,
        log_every=1,
        evaluate_every=1000,
        checkpoint_every=11,
    )
