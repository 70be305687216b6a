"""Ops in PyTorch for any device, with gradients by hand, so that memory stays bounded whatever the sizes."""
