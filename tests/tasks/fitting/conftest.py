"""A tiny biLM with random weights."""

import pytest
from tiny_model import tiny_model

from elmokit.checkpoints.pretrained import Pretrained


@pytest.fixture
def bilm() -> Pretrained:
    return tiny_model()
