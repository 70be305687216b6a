"""bilm-tf 0.1 under today's TensorFlow, embedding and training. worker.py defines the jobs."""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
import worker
from bilm import Batcher, BidirectionalLanguageModel
from bilm.data import BidirectionalLMDataset
from bilm.training import load_vocab, train

LARGEST_BATCH = 128
MAX_CHARACTERS = 50
SPECIALS = ("</S>", "<S>", "<UNK>")


def write_vocab(text: Path, path: Path) -> None:
    """Write the words of the text, since bilm-tf computes the character ids of a vocabulary in
    advance.
    """
    words = sorted(set(text.read_text(encoding="utf-8").split()) - set(SPECIALS))
    path.write_text("\n".join((*SPECIALS, *words)) + "\n", encoding="utf-8")


class Embedding(worker.Side):
    packages = ("bilm", "tensorflow-cpu", "numpy")

    def __init__(self, arguments: argparse.Namespace) -> None:
        with tempfile.TemporaryDirectory() as directory:
            vocab = Path(directory) / "vocab.txt"
            write_vocab(arguments.text, vocab)
            self.batcher = Batcher(str(vocab), MAX_CHARACTERS)
        options, weights = (
            str(arguments.model / name) for name in ("options.json", "weights.hdf5")
        )
        model = BidirectionalLanguageModel(options, weights, max_batch_size=LARGEST_BATCH)
        self.ids = tf.placeholder("int32", (None, None, MAX_CHARACTERS))
        self.layers = model(self.ids)["lm_embeddings"]
        self.session = tf.Session()
        self.session.run(tf.global_variables_initializer())

    def embed(self, sentences: worker.Sentences, batch: int | None) -> list[np.ndarray]:
        arrays = []
        for group in worker.batches(sentences, batch):
            layers = self.session.run(self.layers, {self.ids: self.batcher.batch_sentences(group)})
            arrays += [layers[i, :, : len(words)].copy() for i, words in enumerate(group)]
        return arrays


class Gate:
    """The data set of bilm-tf's own training loop, which passes on batches only when steps are
    requested.
    """

    def __init__(self, data: BidirectionalLMDataset) -> None:
        self.data = data
        self.asked: Queue[int] = Queue()
        self.done: Queue[float | Exception] = Queue()

    def iter_batches(self, batch_size: int, unroll_steps: int) -> Iterator[dict[str, np.ndarray]]:
        batches = self.data.iter_batches(batch_size, unroll_steps)
        while True:
            steps = self.asked.get()
            start = time.perf_counter()
            for _ in range(steps):
                yield next(
                    batches
                )  # continues when the step is finished and the loop asks for the next batch
            self.done.put(time.perf_counter() - start)


def training_options(arguments: argparse.Namespace, vocabulary_size: int) -> dict[str, Any]:
    """The options of bilm-tf's bin/train_elmo.py, with the sizes of the model."""
    options = json.loads((arguments.model / "options.json").read_text(encoding="utf-8"))
    options["char_cnn"]["n_characters"] = 261  # one less than at inference
    return {
        **options,
        "bidirectional": True,
        "dropout": 0.1,
        "all_clip_norm_val": 10.0,
        "n_epochs": 10,
        "batch_size": arguments.batch,
        "unroll_steps": arguments.unroll,
        "n_tokens_vocab": vocabulary_size,
        "n_negative_samples_batch": arguments.samples,
    }


class Training(worker.Side):
    packages = Embedding.packages

    def __init__(self, arguments: argparse.Namespace) -> None:
        vocab = load_vocab(str(arguments.vocab), MAX_CHARACTERS)
        self.options = training_options(arguments, vocab.size)
        self.gate = Gate(BidirectionalLMDataset(str(arguments.text), vocab, shuffle_on_load=True))
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            with tempfile.TemporaryDirectory() as directory, tf.Graph().as_default():
                train(self.options, self.gate, 1, directory, directory)
        except Exception as error:
            self.gate.done.put(error)

    def train(self, steps: int) -> tuple[float, int]:
        self.gate.asked.put(steps)
        seconds = self.gate.done.get()
        if isinstance(seconds, Exception):
            raise seconds
        return seconds, steps * self.options["batch_size"] * self.options["unroll_steps"]


if __name__ == "__main__":
    worker.serve(
        lambda arguments: Training(arguments) if arguments.training else Embedding(arguments)
    )
