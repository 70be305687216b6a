"""Semantic roles (who did what to whom) by highway LSTMs on ELMo: python examples/tasks/roles.py"""

from pathlib import Path

import elmokit
from elmokit.tasks.roles import RolesConfig, RolesTask

DATA = Path(__file__).parent / "data"


def main() -> None:
    task = RolesTask(RolesConfig(hidden_dim=48, num_layers=2, predicate_dim=16))
    words = elmokit.WordsConfig(elmo="input", word_dim=0)
    config = elmokit.FitConfig(
        max_epochs=15, patience=6, batch_size=8, learning_rate=5e-3, device="cpu"
    )
    model, report = elmokit.fit(
        task, DATA / "roles.train.conll", DATA / "roles.dev.conll", words=words, config=config
    )
    print(report)

    # A sentence, and the position of its predicate, from 0.
    (frame,) = model.predict([("The farmer bought three horses last week.", 2)])
    for argument in frame.arguments:
        print(f"{argument.role}: {' '.join(frame.words[argument.start : argument.end])}")


if __name__ == "__main__":
    main()
