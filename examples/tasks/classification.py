"""Sentiment by a linear layer on pooled ELMo vectors: python examples/tasks/classification.py"""

from pathlib import Path

import elmokit
from elmokit.tasks.classification import ClassificationConfig, ClassificationTask

DATA = Path(__file__).parent / "data"


def main() -> None:
    # The default network, "biattentive" (McCann et al. 2017), needs several thousand texts.
    task = ClassificationTask(ClassificationConfig(network="pooled", lowercase=True))
    words = elmokit.WordsConfig(elmo="input", word_dim=0, elmo_dropout=0.2)
    config = elmokit.FitConfig(
        max_epochs=20, patience=20, batch_size=4, learning_rate=2e-3, device="cpu"
    )
    classifier, report = elmokit.fit(
        task, DATA / "reviews.train.txt", DATA / "reviews.dev.txt", words=words, config=config
    )
    print(report)

    for prediction in classifier.predict(["What a wonderful film!", "A boring, awful mess."]):
        print(
            f"{' '.join(prediction.words)}: {prediction.label} "
            f"({prediction.scores[prediction.label]:.2f})"
        )


if __name__ == "__main__":
    main()
