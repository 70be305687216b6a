"""Every operation that the network needs, and the only package that knows hardware.

`functional` has the signature of each op and `reference` says in a few lines of PyTorch what it
computes. `dispatch` chooses which implementation runs: `portable` (PyTorch, any device, bounded
memory), `triton` (on an NVIDIA GPU) or `native` (C, on a CPU).
"""
