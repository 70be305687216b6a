"""Every operation that the network needs, and the only package that knows hardware.

`functional` has the signature of each op and `reference` says in a few lines of PyTorch what it
computes. `dispatch` chooses which implementation runs: `portable` (PyTorch, any device, bounded
memory), `triton` (on an NVIDIA GPU) or `native` (C, on a CPU).

char_conv, highway, linear, linear_logsumexp, lstm      the ops
prepack             an op without gradients, whose weights lie as a kernel reads them
LSTMState           what a layer carries from step to step
Packing             the shape of a packed stream: rows, steps, resets
PackedText          sentences in packed streams: where each token lies
allocate            an array from a caching allocator
upload              tensors to a GPU, in one copy
set_backend         allows backends up to one
describe_backends   which backends and kernels there are
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
