"""Ops in PyTorch for any device, with gradients of our own and bounded memory."""
