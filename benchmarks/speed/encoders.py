"""Words per second of every sequence encoder, in training and in embedding, measured in turn in one run.

    python benchmarks/speed/encoders.py TEXT [--encoders lstm ...] [--dtypes bfloat16] [--only training]

TEXT is tokenized, one sentence per line. The models are those of recipes/encoders, which have about the same number of
parameters, with random weights. Training: AdamW, dropout 0.1, 128 x 20 positions per step, 8,192 negative samples from
a vocabulary of 50,000 words; words are positions of one direction, including boundaries. Embedding: from lists of words
to arrays of all layers, with an empty cache of word vectors; words are those of the text.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command `elmokit` does, before torch reads it

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from result_files import RESULTS, write_result

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.fs.reading import read_lines
from elmokit.nn.bilm import BiLM
from elmokit.text.vocab import Vocab, count_words
from elmokit.train.config import PretrainConfig
from elmokit.train.trainer import Trainer

RECIPES = Path(__file__).parents[2] / "recipes" / "encoders"
ENCODERS = ("lstm", "interleaved", "transformer", "gated_cnn")
DTYPES = ("bfloat16", "float32")
MORE_STEPS_THAN_ASKED = 1_000_000


def config_of(encoder: str) -> BiLMConfig:
    return BiLMConfig.from_dict(json.loads((RECIPES / f"{encoder}.json").read_text(encoding="utf-8")))


def training(config: BiLMConfig, dtype: str, vocab: Vocab, arguments: argparse.Namespace) -> Callable[[], int]:
    """A function that trains for a few steps and returns the number of words."""
    settings = PretrainConfig(
        corpus=(arguments.text,), output=Path(tempfile.gettempdir()), recipe="modern", dtype=dtype, device="cpu",
        batch_size=128, unroll_steps=20, num_samples=min(8192, len(vocab) - 1), dropout=0.1,
    )  # fmt: skip
    trainer = Trainer(settings, config, vocab, [arguments.text], MORE_STEPS_THAN_ASKED)

    def run() -> int:
        for _ in range(arguments.steps):
            trainer.train_step()
        return arguments.steps * settings.batch_size * settings.unroll_steps

    return run


def embedding(config: BiLMConfig, dtype: str, arguments: argparse.Namespace) -> Callable[[], int]:
    """A function that embeds the sentences and returns the number of words."""
    lines = islice(filter(str.strip, read_lines(arguments.text)), arguments.sentences)
    sentences = [line.split() for line in lines]
    embedder = Embedder(Pretrained(BiLM(config)), dtype=dtype, device="cpu")

    def run() -> int:
        embedder.clear_word_cache()
        embedder.embed(sentences, layers="all")
        return sum(map(len, sentences))

    return run


def timed(run: Callable[[], int]) -> float:
    """Words per second."""
    start = time.perf_counter()
    words = run()
    return words / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--encoders", nargs="+", default=ENCODERS, choices=ENCODERS)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--only", nargs="+", default=("training", "embedding"), choices=("training", "embedding"))
    parser.add_argument("--vocab-size", type=int, default=50_000)
    parser.add_argument("--steps", type=int, default=5, help="training steps of one measurement")
    parser.add_argument("--sentences", type=int, default=1000, help="sentences of the text to embed")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS / "encoders_speed.json")
    arguments = parser.parse_args()
    vocab = Vocab.from_counts(count_words([arguments.text]), max_size=arguments.vocab_size)
    configs = {encoder: config_of(encoder) for encoder in arguments.encoders}
    for use in arguments.only:
        for dtype in arguments.dtypes:
            more = (vocab, arguments) if use == "training" else (arguments,)
            sides = {
                encoder: (training if use == "training" else embedding)(config, dtype, *more)
                for encoder, config in configs.items()
            }
            for run in sides.values():
                timed(run)  # a warm-up
            speeds: dict[str, list[float]] = {encoder: [] for encoder in sides}
            for _ in range(arguments.repeats):
                for encoder, run in sides.items():
                    speeds[encoder].append(timed(run))
            for encoder, each in speeds.items():
                print(f"{use}, {dtype}, {encoder}: {statistics.median(each):.0f} words/s", flush=True)
                figures = {"words_per_second": statistics.median(each), "each": each}
                write_result(arguments.output, figures, f"{use} {dtype} {encoder}")


if __name__ == "__main__":
    main()
