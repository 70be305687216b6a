"""Operations with kernels, and the only package with code for particular hardware.

`functional` has the signature of each op and `reference` says in a few lines of PyTorch what it
computes. `dispatch` chooses which implementation runs: `portable` (PyTorch, any device, bounded
memory), `triton` (on an NVIDIA GPU) or `native` (C, on a CPU).

char_conv, highway, linear, linear_logsumexp, lstm      the ops
prepack             an op without gradients, with weights in the layout of its kernel
LSTMState           state of a layer between steps
Packing             the shape of a packed stream: rows, steps, resets
PackedText          sentences in packed streams: where each token lies
allocate            an array from a caching allocator
upload              copies tensors to a GPU at once
set_backend         sets the highest allowed backend
describe_backends   lists available backends and kernels
"""

from elmokit.ops.dispatch import describe_backends, set_backend
from elmokit.ops.functional import (
    LSTMState,
    char_conv,
    highway,
    linear,
    linear_logsumexp,
    lstm,
    prepack,
)
from elmokit.ops.memory import allocate, upload
from elmokit.ops.packing import PackedText, Packing

__all__ = [
    "LSTMState",
    "PackedText",
    "Packing",
    "allocate",
    "char_conv",
    "describe_backends",
    "highway",
    "linear",
    "linear_logsumexp",
    "lstm",
    "prepack",
    "set_backend",
    "upload",
]
