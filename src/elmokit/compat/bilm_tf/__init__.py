"""bilm-tf: batchers, `BidirectionalLanguageModel`, `weight_layers`, the dumps, and training.

There are no TensorFlow graphs: models take ids (NumPy or torch) and return torch tensors, under
bilm-tf's keys.
"""

from elmokit.compat.bilm_tf.data import Batcher as Batcher
from elmokit.compat.bilm_tf.data import TokenBatcher as TokenBatcher
from elmokit.compat.bilm_tf.model import BidirectionalLanguageModel as BidirectionalLanguageModel
from elmokit.compat.bilm_tf.model import dump_bilm_embeddings as dump_bilm_embeddings
from elmokit.compat.bilm_tf.model import dump_token_embeddings as dump_token_embeddings
from elmokit.compat.bilm_tf.model import weight_layers as weight_layers
