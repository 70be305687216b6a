"""The worked examples of the tasks: short, and they run as they stand."""

import runpy
import sys
from pathlib import Path

import pytest

import elmokit
from elmokit.tasks import FitConfig

TASK_EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"
EXAMPLES = sorted(TASK_EXAMPLES.glob("*.py"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # as a user sees them
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", [str(path)])
    shorter = {"max_epochs": 2, "patience": 2}
    monkeypatch.setattr(elmokit, "FitConfig", lambda **options: FitConfig(**options | shorter))
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()
