"""bilm-tf: batchers, `BidirectionalLanguageModel`, `weight_layers`, the dumps, and training.

There are no TensorFlow graphs: models take ids (NumPy or torch) and return torch tensors, under
bilm-tf's keys.
"""

from elmokit.compat.bilm_tf.data import Batcher, TokenBatcher
from elmokit.compat.bilm_tf.model import (
    BidirectionalLanguageModel,
    dump_bilm_embeddings,
    dump_token_embeddings,
    weight_layers,
)

__all__ = [
    "Batcher",
    "BidirectionalLanguageModel",
    "TokenBatcher",
    "dump_bilm_embeddings",
    "dump_token_embeddings",
    "weight_layers",
]
