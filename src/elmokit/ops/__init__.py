"""Every operation the network needs, and the only package that knows hardware.

Ops, one a file, each with its signature, number type and gradient: `lstm`, `char_conv`, `highway`, `linear`,
`logsumexp`, `gather`, `unpack`, `dropout`. `reference` says in a few lines of PyTorch what each computes. `dispatch`
chooses which implementation runs: `portable` (PyTorch, any device, bounded memory) or `native` (C, on a CPU).
"""
