"""Learning the map from the words of a text to its vector, with the biLM as it is."""

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import torch

from elmokit.embed.embedder import Embedder
from elmokit.nn import TextMap
from elmokit.text import Sentence

# Of the squared weights, in shares of the mean square of the numbers that they multiply.
PENALTY = 1e-3


def fit_text_map(
    embedder: Embedder, texts: Sequence[Sentence], vectors: Iterable[np.ndarray]
) -> TextMap:
    """Learn the map of the layers' means that is nearest to given vectors (ridge regression).

    Args:
        embedder: The model.
        texts: Texts with words, as for `Embedder.embed`; some ten thousand sentences are enough.
        vectors: For each of them a vector (K,) that another model computed; its length does not
            matter.

    Returns:
        The map, for the model's `text_map`.
    """
    # Least squares by sums over batches: of [x 1] and y, x^T x and x^T y.
    squares, products = 0.0, 0.0
    rows = iter(vectors)
    for batch in embedder.embed_stream(texts, "all", embedder.model.single_sentence_state):
        x = np.stack([np.append(layers.mean(axis=1), 1.0) for layers in batch])
        y = np.stack(list(islice(rows, len(batch)))).astype(np.float64)
        y /= np.maximum(np.linalg.norm(y, axis=1, keepdims=True), 1e-12)
        squares, products = squares + x.T @ x, products + x.T @ y
    squares = np.asarray(squares)
    penalty = PENALTY * squares.diagonal()[:-1].mean() * np.eye(len(squares))
    penalty[-1, -1] = 0  # the bias is free
    weights = np.linalg.solve(squares + penalty, products)
    text_map = TextMap(weights.shape[1], embedder.num_layers, embedder.dim)
    with torch.no_grad():
        text_map.weight.copy_(torch.from_numpy(weights[:-1].T).view_as(text_map.weight))
        text_map.bias.copy_(torch.from_numpy(weights[-1]))
    return text_map
