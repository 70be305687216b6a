"""The networks: torch only, no files, no logging."""

from elmokit.nn.bidirectional import BiLMState, has_hooks, state_shapes
from elmokit.nn.bilm import BiLM, in_full_width, shapes_only, uncompiled
from elmokit.nn.crf import CRF, span_transitions
from elmokit.nn.elmo import Elmo, add_boundaries, batch_to_ids
from elmokit.nn.inference import Prepacked, PrepackedBiLM, prepack
from elmokit.nn.lstm import BidirectionalLSTM, LSTMLayer
from elmokit.nn.scalar_mix import ScalarMix, mix_layers
from elmokit.nn.softmax import FullSoftmax, LogUniformSampler, Samples
from elmokit.nn.token_encoders import CharCNN, EfmlEncoder, Projection, TokenEncoder, WordEmbedding

__all__ = [
    "CRF",
    "BiLM",
    "BiLMState",
    "BidirectionalLSTM",
    "CharCNN",
    "EfmlEncoder",
    "Elmo",
    "FullSoftmax",
    "LSTMLayer",
    "LogUniformSampler",
    "Prepacked",
    "PrepackedBiLM",
    "Projection",
    "Samples",
    "ScalarMix",
    "TokenEncoder",
    "WordEmbedding",
    "add_boundaries",
    "batch_to_ids",
    "has_hooks",
    "in_full_width",
    "mix_layers",
    "prepack",
    "shapes_only",
    "span_transitions",
    "state_shapes",
    "uncompiled",
]
