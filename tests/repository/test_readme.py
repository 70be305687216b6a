"""The Python and the commands of the README and of the tours in docs run as they stand, in a
clone.
"""

import shutil
from pathlib import Path

import pytest
from document_examples import blocks_of, run_python

from elmokit.cli import VERBS, help_of

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
CHINESE = ROOT / "README.zh-CN.md"
INDEX, PYTHON, COMMANDS = (
    ROOT / "docs" / f"{page}.md" for page in ("index", "python", "command-line")
)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the examples of a document read."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.usefixtures("clone")
def test_python_of_the_readme_runs_and_gives_what_it_says() -> None:
    assert run_python(README) >= 4
    assert run_python(CHINESE) >= 2
    assert run_python(INDEX) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # as a user sees them
@pytest.mark.usefixtures("clone")
def test_python_of_the_tour_runs_and_gives_what_it_says() -> None:
    assert run_python(PYTHON) >= 10


def commands_of(document: Path) -> set[str]:
    text = "".join(blocks_of(document, "console")).replace("\\\n", " ")
    return {line for line in text.splitlines() if line.startswith("elmokit")}


@pytest.mark.parametrize("document", [README, COMMANDS], ids=["readme", "tour"])
def test_commands_are_examples_of_the_verbs(document: Path) -> None:
    """Which tests/cli/test_examples.py runs, as they stand."""
    lines = "\n".join(map(help_of, VERBS.values())).splitlines()
    assert commands_of(document)
    assert commands_of(document) <= set(map(str.strip, lines))


def test_commands_of_the_chinese_readme_stand_on_the_chinese_pages() -> None:
    """Which test_tutorials.py runs."""
    commands = commands_of(CHINESE)
    assert commands
    assert commands <= set().union(*map(commands_of, (ROOT / "docs" / "zh").glob("*.md")))
