"""A tiny biLM with random weights."""

import pytest
import torch

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM


@pytest.fixture
def bilm() -> Pretrained:
    torch.manual_seed(0)
    return Pretrained(BiLM(BiLMConfig.preset("tiny")))
