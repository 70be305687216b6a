"""Which mentions in a story refer to the same thing, by span ranking on ELMo: python
examples/tasks/coreference.py
"""

from pathlib import Path

import elmokit
from elmokit.tasks.coreference import CoreferenceConfig, CoreferenceTask

DATA = Path(__file__).parent / "data"


def main() -> None:
    task = CoreferenceTask(
        CoreferenceConfig(hidden_dim=32, span_dim=32, max_span_words=4, mentions_per_word=0.5)
    )
    words = elmokit.WordsConfig(elmo="input", word_dim=0)
    config = elmokit.FitConfig(
        max_epochs=20, patience=20, batch_size=1, learning_rate=1e-2, device="cpu"
    )
    model, report = elmokit.fit(
        task, DATA / "stories.train.conll", DATA / "stories.dev.conll", words=words, config=config
    )
    print(report)

    (found,) = model.predict(
        [["Emma sold the bicycle .", "She missed it ."]]
    )  # the sentences of one document
    for cluster in found.clusters:
        print(" = ".join(" ".join(found.words[start:end]) for start, end in cluster))


if __name__ == "__main__":
    main()
