"""The README's Python runs as it stands, from top to bottom."""

import re
from pathlib import Path
from typing import get_args

import pytest

from elmokit.cli import Verb

ROOT = Path(__file__).resolve().parents[1]
BUNDLED_MODEL = ROOT / "src/elmokit/models/en-small/config.json"


def _python_blocks(markdown: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", markdown, flags=re.DOTALL | re.MULTILINE)


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not BUNDLED_MODEL.is_file():
        pytest.skip(f"bundled model missing: no {BUNDLED_MODEL}")
    blocks = _python_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    assert blocks, "the README has no Python example"
    monkeypatch.chdir(tmp_path)  # whatever the examples write
    names: dict[str, object] = {"__name__": "readme"}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"README.md, Python block {number}", "exec"), names)


def test_the_readme_names_every_verb() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    verbs = [kind.__name__.lower() for kind in get_args(Verb)]
    assert [verb for verb in verbs if f"elmokit {verb} " not in readme.replace("\n", " ")] == []
