"""How much ELMo helps, by the size of the training set (Peters et al. 2018, figure 1), and which
layers it uses.

python examples/tasks/sample_efficiency.py
"""

import random
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import elmokit
from elmokit.tasks.tagging import TaggingConfig, TaggingTask

DATA = Path(__file__).parent / "data"
FRACTIONS, SEEDS = (0.5, 1.0), (1, 2)
LEARNED = elmokit.WordsConfig(elmo="none", word_dim=50, character_dim=32)
WORDS = {"without ELMo": LEARNED, "with ELMo": replace(LEARNED, elmo="input")}


def main() -> None:
    task = TaggingTask(TaggingConfig(hidden_dim=32))
    config = elmokit.FitConfig(
        max_epochs=8, patience=8, batch_size=4, learning_rate=5e-3, device="cpu"
    )
    train, dev = (list(task.read(DATA / f"entities.{name}.txt")) for name in ("train", "dev"))
    random.Random(0).shuffle(train)  # so that a smaller part is contained in every larger one
    for fraction in FRACTIONS:
        part = train[: round(fraction * len(train))]
        for name, words in WORDS.items():
            runs = [
                elmokit.fit(task, part, dev, words=words, config=replace(config, seed=seed))
                for seed in SEEDS
            ]
            scores = [100 * report.dev[report.metric] for _, report in runs]
            print(f"{len(part):6} sentences {name:13} {mean(scores):6.2f} ± {stdev(scores):.2f}")
            for mix in runs[0][1].mixes:
                print(f"       {mix}")


if __name__ == "__main__":
    main()
