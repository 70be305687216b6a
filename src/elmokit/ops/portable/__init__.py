"""Ops in PyTorch for any device, with gradients of our own, so that memory stays bounded whatever
the sizes.
"""
