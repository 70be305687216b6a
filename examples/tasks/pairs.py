"""Entailment between two sentences by ESIM on ELMo: python examples/tasks/pairs.py"""

from pathlib import Path

import elmokit
from elmokit.tasks.pairs import PairsConfig, PairsTask

DATA = Path(__file__).parent / "data"


def main() -> None:
    task = PairsTask(PairsConfig(target="label", hidden_dim=32))
    words = elmokit.WordsConfig(elmo="both", word_dim=0)
    config = elmokit.FitConfig(
        max_epochs=12, patience=6, batch_size=8, learning_rate=3e-3, device="cpu"
    )
    model, report = elmokit.fit(
        task, DATA / "pairs.train.tsv", DATA / "pairs.dev.tsv", words=words, config=config
    )
    print(report)

    pairs = [
        ("a woman is riding a horse", "a woman is riding an animal"),
        ("a cat is sleeping", "there is no cat"),
    ]
    for prediction in model.predict(pairs):
        print(f"{' '.join(prediction.first)} | {' '.join(prediction.second)}: {prediction.label}")


if __name__ == "__main__":
    main()
