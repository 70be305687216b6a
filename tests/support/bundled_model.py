"""The bundled model, so that tests need not know its sizes."""

from elmokit.checkpoints.loading import load

WIDTH = load(softmax=False).config.output_dim  # of a word's vector
