"""Named entities by a BiLSTM-CRF on ELMo, as in Peters et al. (2018): python
examples/tasks/tagging.py
"""

from pathlib import Path

import elmokit
from elmokit.tasks.tagging import TaggingConfig, TaggingTask

DATA = Path(__file__).parent / "data"


def main() -> None:
    task = TaggingTask(TaggingConfig(hidden_dim=64))
    words = elmokit.WordsConfig(elmo="input", word_dim=0, character_dim=32)
    config = elmokit.FitConfig(
        max_epochs=25, patience=8, batch_size=4, learning_rate=5e-3, device="cpu"
    )
    tagger, report = elmokit.fit(
        task, DATA / "entities.train.txt", DATA / "entities.dev.txt", words=words, config=config
    )
    print(report)

    (tagging,) = tagger.predict(["Grace Hopper moved from New York to Arlington."])
    for span in tagging.spans:
        print(f"{' '.join(tagging.words[span.start : span.end])}: {span.type} ({span.score:.2f})")


if __name__ == "__main__":
    main()
