"""A short run over a toy text, and the number of threads, which a run sets."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from toy_run import settings_for, write_text

from elmokit.train.config import PretrainConfig


@pytest.fixture(scope="module", autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def settings(tmp_path: Path) -> PretrainConfig:
    return settings_for(write_text(tmp_path / "train.txt"), tmp_path / "run")
