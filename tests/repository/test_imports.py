"""The package loads little: what is heavy is imported when it is used."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "h5py", "safetensors"}
TEXT = ("config", "fs", "text.characters", "text.tokenizers", "text.vocab")


# The command line ends in SystemExit; the names go to the last line of stderr, past whatever it
# prints.
PROGRAM = """
import sys
try:
    {statement}
except SystemExit:
    pass
print("\\n", *sys.modules, file=sys.stderr)
"""


def _modules_after(statement: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter has loaded after `statement`."""
    program = PROGRAM.format(statement=statement)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in run.stderr.splitlines()[-1].split()}


@pytest.mark.parametrize(
    "statement",
    [
        "import elmokit",
        "from elmokit.cli import main; main(['--help'])",
        "from elmokit.cli import main; main(['pretrain', '--help'])",
    ],
)
def test_no_heavy_module_is_loaded(statement: str) -> None:
    assert _modules_after(statement) & HEAVY == set()


def test_text_needs_neither_torch_nor_the_command_line() -> None:
    assert not {"torch", "tyro"} & _modules_after(
        f"import {', '.join(f'elmokit.{module}' for module in TEXT)}"
    )
