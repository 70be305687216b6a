"""The examples of the verbs' help run as they stand."""

import shutil
from itertools import chain
from pathlib import Path

import pytest
from document_examples import run_command

from elmokit.cli import VERBS, help_of

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {
    verb: [line.strip() for line in help_of(kind).splitlines() if line.startswith("    elmokit ")]
    for verb, kind in VERBS.items()
}
# Options of examples that train for long, and what is enough to see that they run.
SHORTENED = {
    "--epochs 10": "--epochs 1",
    "--max-words 10000": "--max-words 500",
    "fit tagging": "fit tagging --max-epochs 1",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # as a user sees them
def test_examples_run_in_their_order_in_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    del EXAMPLES["serve"]  # which runs until it is stopped: tests/serve
    for command in chain(*EXAMPLES.values()):
        for long, short in SHORTENED.items():
            command = command.replace(long, short)
        run_command(command)
        if " --output " in command:
            assert Path(command.partition(" --output ")[2].split()[0]).exists()
