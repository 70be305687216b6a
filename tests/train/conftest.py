"""A short run over a toy text."""

from pathlib import Path

import pytest
from toy_run import settings_for, write_text

from elmokit.train.config import PretrainConfig


@pytest.fixture
def settings(tmp_path: Path) -> PretrainConfig:
    return settings_for(write_text(tmp_path / "train.txt"), tmp_path / "run")
