"""Modules without memory: nothing is drawn for them, and nothing is imported to draw it."""

import subprocess
import sys

import pytest
import torch

from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
from elmokit.nn.shapes_only import shapes_only

pytestmark = pytest.mark.any_backend


def test_shapes_are_those_of_the_module_itself() -> None:
    config = BiLMConfig.preset("tiny")
    with shapes_only():
        without = BiLM(config)
    shapes = {name: tensor.shape for name, tensor in BiLM(config).state_dict().items()}
    assert {name: tensor.shape for name, tensor in without.state_dict().items()} == shapes
    assert all(parameter.is_meta for parameter in without.parameters())


def test_outside_of_it_weights_are_drawn() -> None:
    def weight() -> torch.Tensor:
        torch.manual_seed(0)
        return torch.nn.Linear(3, 2).weight

    before = weight()
    with shapes_only():
        assert weight().is_meta
    assert torch.equal(weight(), before)


def test_loading_a_model_leaves_the_compiler_alone() -> None:
    """Importing it took longer than all else."""
    script = "import sys, elmokit; elmokit.Embedder.load().embed(['a b']); sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
