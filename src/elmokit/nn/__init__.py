"""The networks: torch only, no files, no logging.

BiLM            ids of a padded batch, or packed streams -> all layers
BiLMState       the state that rows carry from one text to the next
CharCNN         the token encoder of ELMo: characters of words -> vectors
CRF             a linear chain over tags
Elmo            a biLM and learned mixes of its layers, for a downstream network
FullSoftmax     the output layer of the language model, exact or sampled
ScalarMix       a mix of layers, by learned or by given weights
TextMap         the mean vectors of a text's words -> the vector of the text
batch_to_ids    sentences -> character ids for `Elmo`
prepack         a biLM without gradients, whose weights lie as the kernels read them
"""

from elmokit.nn.bidirectional import BiLMState
from elmokit.nn.bilm import BiLM
from elmokit.nn.crf import CRF
from elmokit.nn.elmo import Elmo, ScalarMix, batch_to_ids
from elmokit.nn.inference import prepack
from elmokit.nn.softmax import FullSoftmax
from elmokit.nn.text_map import TextMap
from elmokit.nn.token_encoders import CharCNN

__all__ = [
    "CRF",
    "BiLM",
    "BiLMState",
    "CharCNN",
    "Elmo",
    "FullSoftmax",
    "ScalarMix",
    "TextMap",
    "batch_to_ids",
    "prepack",
]
