"""Extras: each has code that names it and its packages where they are missing, as `pip install` finds them today."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from elmokit.text.segmenters import PACKAGES

ROOT = Path(__file__).resolve().parents[2]


def extras() -> dict[str, list[str]]:
    """The packages of each extra for users, from pyproject.toml (without tomllib, which Python 3.10 lacks)."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = text.split("[project.optional-dependencies]")[1].split("\ndev = ")[0]
    lines = re.findall(r"^([\w-]+) = \[(.*?)\]", table, flags=re.MULTILINE)
    return {name: re.findall(r'"([\w-]+)', packages) for name, packages in lines}


def text_of(message: ast.expr, variables: dict[str, str]) -> str:
    """A string of the source, with the values of variables that are known, and {} for all else."""
    match message:
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part, variables) for part in parts)
        case ast.FormattedValue(value=value):
            return text_of(value, variables)
        case ast.Name(id=name):
            return variables.get(name, "{}")
        case ast.Constant(value=str(text)):
            return text
    return "{}"


def messages() -> Iterator[str]:
    """The texts of all errors and warnings of the package."""
    for path in (ROOT / "src").rglob("*.py"):
        variables, arguments = dict[str, str](), list[ast.expr]()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                    variables[name] = text
                case ast.Raise(exc=ast.Call(args=of_call)) | ast.Call(func=ast.Attribute(attr="warn"), args=of_call):
                    arguments += of_call
        yield from (text_of(argument, variables) for argument in arguments)


def test_errors_say_for_every_extra_how_to_install_all_its_packages() -> None:
    texts, in_errors = list(messages()), defaultdict[str, set[str]](set)
    for extra, packages in PACKAGES.items():
        in_errors[extra] |= set(packages.split())
    assert any("pip install {} (elmokit's extra {})" in text for text in texts)  # of this table
    for text in texts:
        for packages, extra in re.findall(r"pip install ([^()]+) \(elmokit's extra ([\w-]+)\)", text):
            in_errors[extra] |= set(re.findall(r"(?:^| )'?([\w-]+)", packages))
    assert in_errors == {extra: set(packages) for extra, packages in extras().items()}


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
