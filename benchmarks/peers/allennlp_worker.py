"""AllenNLP 2.10.1's biLM, unchanged, under today's torch. worker.py defines the jobs."""

import argparse

import numpy as np
import torch
import worker
from allennlp.modules.elmo import _ElmoBiLm, batch_to_ids


class AllenNLP(worker.Side):
    packages = ("allennlp", "torch", "numpy")

    def __init__(self, arguments: argparse.Namespace) -> None:
        options, weights = (
            str(arguments.model / name) for name in ("options.json", "weights.hdf5")
        )
        self.bilm = _ElmoBiLm(options, weights).eval()

    @torch.no_grad()
    def embed(self, sentences: worker.Sentences, batch: int | None) -> list[np.ndarray]:
        arrays = []
        for group in worker.batches(sentences, batch):
            layers = self.bilm(batch_to_ids(group))["activations"]
            for i, words in enumerate(group):  # with the boundaries, which are left out here
                arrays.append(np.stack([layer[i, 1 : len(words) + 1].numpy() for layer in layers]))
        return arrays


if __name__ == "__main__":
    worker.serve(AllenNLP)
