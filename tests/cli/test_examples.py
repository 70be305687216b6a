"""The examples of the verbs' help: every verb has some, its help shows them, and they run as they
stand.
"""

import shutil
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest
from document_examples import blocks_of, run_command

from elmokit.cli.verbs import EXAMPLES, Verb, name_of

ROOT = Path(__file__).resolve().parents[2]
# Options of examples that train for long, and what is enough to see that they run.
SHORTENED = {
    "--epochs 10": "--epochs 1",
    "--max-words 10000": "--max-words 500",
    "fit tagging": "fit tagging --max-epochs 1",
}


def test_every_verb_has_one_or_two_examples() -> None:
    assert sorted(EXAMPLES) == sorted(map(name_of, get_args(Verb)))
    for verb, commands in EXAMPLES.items():
        assert 1 <= len(commands) <= 2 and all(
            command.startswith(f"elmokit {verb}") for command in commands
        )


def test_examples_and_the_readme_write_each_file_by_the_same_command() -> None:
    """Another command would refuse to replace what the first has written."""
    readme = "".join(blocks_of(ROOT / "README.md", "console")).splitlines()
    commands = {command for command in chain(readme, *EXAMPLES.values()) if " --output " in command}
    outputs = [command.partition(" --output ")[2].split()[0] for command in commands]
    assert len(outputs) > 10 and sorted(set(outputs)) == sorted(outputs)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # as a user sees them
def test_examples_run_in_their_order_in_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    for verb, commands in EXAMPLES.items():
        for command in (
            commands if verb != "serve" else ()
        ):  # which runs until it is stopped: tests/serve
            for long, short in SHORTENED.items():
                command = command.replace(long, short)
            run_command(command)
    written = {path.name for path in (tmp_path / "runs").iterdir()}
    assert {
        "vectors",
        "layers.hdf5",
        "sentences.npy",
        "tiny",
        "speeches",
        "tagger",
        "tagged.conllu",
        "hdf5",
    } <= written
