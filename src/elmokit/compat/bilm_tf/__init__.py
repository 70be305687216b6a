"""bilm-tf: batchers, `BidirectionalLanguageModel`, `weight_layers`, the dumps, and training.

There are no TensorFlow graphs: models take ids (NumPy or torch) and return torch tensors, under bilm-tf's keys.
"""

from elmokit.compat.bilm_tf.data import (
    Batcher,
    BidirectionalLMDataset,
    LMDataset,
    TokenBatcher,
    UnicodeCharsVocabulary,
    Vocabulary,
)
from elmokit.compat.bilm_tf.elmo import weight_layers
from elmokit.compat.bilm_tf.model import BidirectionalLanguageModel, dump_bilm_embeddings, dump_token_embeddings

__all__ = [
    "Batcher",
    "BidirectionalLMDataset",
    "BidirectionalLanguageModel",
    "LMDataset",
    "TokenBatcher",
    "UnicodeCharsVocabulary",
    "Vocabulary",
    "dump_bilm_embeddings",
    "dump_token_embeddings",
    "weight_layers",
]
