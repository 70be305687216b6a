"""Ops in PyTorch for any device, with explicit backward passes, so that memory stays bounded whatever the sizes."""
