"""Weights that must be the same to the last bit, and weights of files that a test changes."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from elmokit.nn.bilm import BiLM


def assert_same_weights(found: nn.Module, expected: nn.Module) -> None:
    """All parameters and buffers are equal, and in the same order."""
    left = found.state_dict()
    right = expected.state_dict()
    assert list(left) == list(right)
    for name, tensor in right.items():
        assert torch.equal(left[name], tensor), name


def assert_same_bilm(found: BiLM, expected: BiLM) -> None:
    """Configuration and weights are equal."""
    assert found.config == expected.config
    assert_same_weights(found, expected)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Copies of a file's tensors: older versions of safetensors map the file, which then cannot be
    written.
    """
    return {name: tensor.clone() for name, tensor in load_file(path).items()}
