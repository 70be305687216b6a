"""ELMoForManyLangs 0.0.4, which itself sorts sentences by length, whatever their order. worker.py
defines the jobs.
"""

import argparse

import numpy as np
import worker
from elmoformanylangs import Embedder

ALL_LAYERS = -2


class ELMoForManyLangs(worker.Side):
    packages = ("elmoformanylangs", "torch", "numpy")

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.embedder = Embedder(str(arguments.model))

    def embed(self, sentences: worker.Sentences, batch: int | None) -> list[np.ndarray]:
        self.embedder.batch_size = batch
        return self.embedder.sents2elmo(sentences, output_layer=ALL_LAYERS)


if __name__ == "__main__":
    worker.serve(ELMoForManyLangs)
