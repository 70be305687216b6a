"""Every operation that the network needs, and the only package that knows hardware.

`functional` has the signature of each op and `reference` says in a few lines of PyTorch what it
computes. `dispatch` chooses which implementation runs: `portable` (PyTorch, any device, bounded
memory), `triton` (on an NVIDIA GPU) or `native` (C, on a CPU).
"""

from elmokit.ops.dispatch import (
    available_backends,
    get_backend,
    has_character_tables,
    has_prepacked_products,
    multiplies_bfloat16,
    set_backend,
)
from elmokit.ops.functional import (
    CharFilters,
    Clips,
    LSTMState,
    LSTMSteps,
    LSTMWeights,
    apply_dropout,
    char_conv,
    highway,
    linear,
    linear_logsumexp,
    lstm,
    prepack_char_conv,
    prepack_highway,
    prepack_linear,
    prepack_lstm,
    records_gradients,
    unpack_sentences,
    unpack_words,
)
from elmokit.ops.native.library import describe_target
from elmokit.ops.packing import PackedText, Packing, Segments, pack_sentences
from elmokit.ops.transfer import download, upload
from elmokit.ops.workspace import allocate

__all__ = [
    "CharFilters",
    "Clips",
    "LSTMState",
    "LSTMSteps",
    "LSTMWeights",
    "PackedText",
    "Packing",
    "Segments",
    "allocate",
    "apply_dropout",
    "available_backends",
    "char_conv",
    "describe_target",
    "download",
    "get_backend",
    "has_character_tables",
    "has_prepacked_products",
    "highway",
    "linear",
    "linear_logsumexp",
    "lstm",
    "multiplies_bfloat16",
    "pack_sentences",
    "prepack_char_conv",
    "prepack_highway",
    "prepack_linear",
    "prepack_lstm",
    "records_gradients",
    "set_backend",
    "unpack_sentences",
    "unpack_words",
    "upload",
]
