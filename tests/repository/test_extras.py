"""Extras: each has code that names it and its packages where they are missing, as `pip install` finds them today."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def extras() -> dict[str, list[str]]:
    """The packages of each extra for users, from pyproject.toml (without tomllib, which Python 3.10 lacks)."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = text.split("[project.optional-dependencies]")[1].split("\ndev = ")[0]
    lines = re.findall(r"^([\w-]+) = \[(.*?)\]", table, flags=re.MULTILINE)
    return {name: re.findall(r'"([\w-]+)', packages) for name, packages in lines}


def test_every_extra_is_named_in_an_error_with_its_packages() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"elmokit's extra ([\w-]+)", code))
    in_table = dict(re.findall(r'"(\w+)": "([\w -]+)"', code.split("PACKAGES = {")[1].split("}")[0]))
    assert set(extras()) == named | set(in_table)
    assert all(package in code for packages in extras().values() for package in packages)


def test_no_hint_installs_elmokit_from_an_index_that_does_not_have_it() -> None:
    files = [*(ROOT / "src").rglob("*.py"), ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    hints = [file.name for file in files if re.search(r"pip install ['\"]?elmokit", file.read_text(encoding="utf-8"))]
    assert hints == []


PROGRAM = """
import sys
from importlib import import_module
for name in sys.argv[1:]:
    sys.modules[name] = None  # as where it is not installed
    try:
        import_module(f"elmokit.integrations.{name}")
    except ImportError as error:
        print(error)
"""


def test_an_integration_without_its_library_says_in_a_line_what_to_install() -> None:
    libraries = {"sklearn": "scikit-learn", "sentence_transformers": "sentence-transformers", "spacy": "spacy"}
    run = subprocess.run([sys.executable, "-c", PROGRAM, *libraries], capture_output=True, text=True, check=True)
    for line, package in zip(run.stdout.splitlines(), libraries.values(), strict=True):
        assert re.search(rf"pip install '?{package}.* \(elmokit's extra [\w-]+\)$", line), line
