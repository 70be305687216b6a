"""Translation of captions by an LSTM with attention and ELMo in its encoder: python examples/tasks/translation.py"""

from pathlib import Path

import elmokit
from elmokit.tasks.translation import TranslationConfig, TranslationTask

DATA = Path(__file__).parent / "data"


def main() -> None:
    task = TranslationTask(TranslationConfig(source="en", target="de", hidden_dim=64, target_dim=64, min_count=1))
    words = elmokit.WordsConfig(elmo="input", word_dim=0, elmo_dropout=0.2)
    config = elmokit.FitConfig(max_epochs=20, patience=20, batch_size=8, learning_rate=5e-3, device="cpu")
    # The German sentences are in captions.train.de and captions.dev.de, next to the English files.
    model, report = elmokit.fit(task, DATA / "captions.train.en", DATA / "captions.dev.en", words=words, config=config)
    print(report)

    for translation in model.predict(["A cat sings in the park.", "The girl waits by the river."]):
        print(f"{' '.join(translation.source)} -> {' '.join(translation.words)}")


if __name__ == "__main__":
    main()
