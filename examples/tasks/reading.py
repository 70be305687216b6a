"""Answers to questions about a passage, by BiDAF with self-attention on ELMo: python
examples/tasks/reading.py
"""

from pathlib import Path

import elmokit
from elmokit.tasks.reading import ReadingConfig, ReadingTask

DATA = Path(__file__).parent / "data"


def main() -> None:
    task = ReadingTask(ReadingConfig(hidden_dim=32, max_answer_words=5))
    words = elmokit.WordsConfig(elmo="both", word_dim=0)
    config = elmokit.FitConfig(
        max_epochs=20, patience=20, batch_size=4, learning_rate=1e-2, device="cpu"
    )
    model, report = elmokit.fit(
        task, DATA / "questions.train.json", DATA / "questions.dev.json", words=words, config=config
    )
    print(report)

    passage = (
        "Ruth was born in Zurich in 1966. Today Ruth works as a singer and lives near the station."
    )
    for question in ("Where was Ruth born?", "What is the job of Ruth?"):
        (answer,) = model.predict([(question, passage)])
        print(f"{question} {answer.text} ({answer.score:.2f})")


if __name__ == "__main__":
    main()
