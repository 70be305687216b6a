"""simple_elmo 0.9.2 on TensorFlow. worker.py defines the jobs."""

import argparse

import numpy as np
import tensorflow as tf
import worker
from simple_elmo import ElmoModel
from simple_elmo.elmo import weight_layers

LARGEST_BATCH = 128


class SimpleElmo(worker.Side):
    packages = ("simple_elmo", "tensorflow-cpu", "numpy")

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.model = ElmoModel()
        self.model.load(str(arguments.model), max_batch_size=LARGEST_BATCH)
        # One session that holds the weights for all calls; otherwise every call would load them
        # again.
        self.session = tf.compat.v1.Session()
        self.model.elmo_sentence_input = weight_layers(
            "input", self.model.sentence_embeddings_op, use_layers="all"
        )
        self.session.run(tf.compat.v1.global_variables_initializer())

    def embed(self, sentences: worker.Sentences, batch: int | None) -> list[np.ndarray]:
        self.model.batch_size = batch
        arrays = []
        # One call per batch, because the result of a call is float64 and padded to its longest
        # sentence.
        for group in worker.batches(sentences, batch):
            vectors = self.model.get_elmo_vectors(
                group, warmup=False, layers="all", session=self.session
            )
            arrays += [
                vectors[i, :, : len(words)].astype("float32") for i, words in enumerate(group)
            ]
        return arrays


if __name__ == "__main__":
    worker.serve(SimpleElmo)
