"""elmokit itself. worker.py defines the jobs. If the batch size is null, elmokit chooses the number
of rows.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # as the command `elmokit` does, before torch reads it
import numpy as np
import worker

from elmokit.checkpoints.bilm_hdf5 import read_options
from elmokit.embed.embedder import Embedder
from elmokit.text.vocab import Vocab
from elmokit.train.config import PretrainConfig
from elmokit.train.trainer import Trainer

MORE_STEPS_THAN_ASKED = 1_000_000


class Embedding(worker.Side):
    packages = ("elmokit", "torch", "numpy")

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.embedder = Embedder(arguments.model, dtype=arguments.dtype)

    def forget(self) -> None:
        self.embedder.clear_word_cache()

    def embed(self, sentences: worker.Sentences, batch: int | None) -> list[np.ndarray]:
        return self.embedder.embed(sentences, layers="all", batch_size=batch)

    def embed_proteins(self, sequences: worker.Sentences) -> np.ndarray:
        return np.asarray(self.embedder.encode(sequences, pooling="mean", layers="sum"))


class Training(worker.Side):
    packages = Embedding.packages

    def __init__(self, arguments: argparse.Namespace) -> None:
        settings = PretrainConfig(
            corpus=(arguments.text,),
            output=Path(tempfile.gettempdir()),
            vocab=arguments.vocab,
            recipe="original",
            batch_size=arguments.batch,
            unroll_steps=arguments.unroll,
            num_samples=arguments.samples,
            dtype=arguments.dtype,
        )
        config = read_options(arguments.model / "options.json", num_words=0)
        vocab = Vocab.read(arguments.vocab)
        self.trainer = Trainer(settings, config, vocab, [arguments.text], MORE_STEPS_THAN_ASKED)

    def train(self, steps: int) -> tuple[float, int]:
        start = time.perf_counter()
        for _ in range(steps):
            self.trainer.train_step()
        settings = self.trainer.settings
        return time.perf_counter() - start, steps * settings.batch_size * settings.unroll_steps


if __name__ == "__main__":
    worker.serve(
        lambda arguments: Training(arguments) if arguments.training else Embedding(arguments)
    )
