"""The Python and the commands of the README and of docs/python.md run as they stand, from top to bottom, in a clone."""

import re
import shutil
from pathlib import Path
from typing import get_args

import pytest
from document_examples import blocks_of, claimed_value, run_command, run_python

from elmokit.cli.verbs import Verb, name_of

ROOT = Path(__file__).resolve().parents[2]
README, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
INDEX, PYTHON = ROOT / "docs" / "index.md", ROOT / "docs" / "python.md"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the examples of a document read."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.usefixtures("clone")
def test_python_of_the_readme_runs_and_gives_what_it_says() -> None:
    assert run_python(README) >= 4 and run_python(INDEX) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # as a user sees them
@pytest.mark.usefixtures("clone")
def test_python_of_the_tour_runs_and_gives_what_it_says() -> None:
    assert run_python(PYTHON) >= 10


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("clone")
def test_commands_of_the_readme_run() -> None:
    blocks = [block for block in blocks_of(README, "console") if "elmokit" in block]
    assert blocks, "the README has no tour of the commands"
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        run_command(line)


def without_comments(code: str) -> list[str]:
    """The lines of code, which are the same in every language."""
    return [line for line in re.sub(r"(^|  )# .*$", "", code, flags=re.MULTILINE).splitlines() if line.strip()]


def test_readmes_have_the_same_sections_code_links_and_rows_in_every_language() -> None:
    english, chinese = (path.read_text(encoding="utf-8") for path in (README, CHINESE))
    for pattern in (r"^#+ ", r"^- ", r"^\|", r"^!\["):
        counts = [len(re.findall(pattern, text, re.MULTILINE)) for text in (english, chinese)]
        assert counts[0] == counts[1], pattern
    links = [sorted(re.findall(r"\]\(([^)]+)\)", text)) for text in (english, chinese)]
    assert [link for link in links[0] if "README" not in link] == [link for link in links[1] if "README" not in link]
    for language in ("python", "console"):
        blocks = [[without_comments(block) for block in blocks_of(path, language)] for path in (README, CHINESE)]
        assert blocks[0] == blocks[1]


@pytest.mark.parametrize("path", [README, CHINESE], ids=["English", "Chinese"])
def test_readme_names_every_verb(path: Path) -> None:
    readme = path.read_text(encoding="utf-8").replace("\n", " ")
    assert [verb for verb in map(name_of, get_args(Verb)) if f"elmokit {verb}" not in readme] == []


def test_claims_of_a_document_are_found_and_checked(tmp_path: Path) -> None:
    assert claimed_value("a.shape  # (2, 3): two rows") == (2, 3)
    assert claimed_value("words[0]  # ['a', 'b']") == ["a", "b"]
    assert claimed_value("f(x)  # their cosine") is None and claimed_value("f(x)") is None
    document = tmp_path / "document.md"
    document.write_text("```python\nvalue = 2\nvalue + 1  # 3\nvalue + 2  # 5\n```\n")
    with pytest.raises(AssertionError, match="line 3: it is 4"):
        run_python(document)
    document.write_text("```python\nvalue = 2\nvalue + 1  # 3\n```\n")
    assert run_python(document) == 1
