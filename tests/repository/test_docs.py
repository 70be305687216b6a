"""What the documents refer to is there: links, headings, files, and objects of the package."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import elmokit

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "elmokit"
HISTORY = (ROOT / "docs" / "decisions", ROOT / "docs" / "log.md", ROOT / "CHANGELOG.md")  # of files that may be gone
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CURRENT = [path for path in DOCUMENTS if not any(path == old or old in path.parents for old in HISTORY)]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    """A document without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The headings of a document as GitHub links to them."""
    titles = re.findall(r"^#+ (.*)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(document: Path) -> list[str]:
    """The relative links of a document to files or headings that are not there."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, heading = target.partition("#")
        path = (document.parent / file).resolve() if file else document
        if not path.exists() or (heading and heading not in anchors(path)):
            broken.append(target)
    return broken


def defines(file: Path, name: str) -> bool:
    """Whether a module defines a name, or a class in it a method or field: `Class.method`."""
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    for part in name.split("."):
        nodes = [node for node in body if part in names_bound_by(node)]
        if not nodes:
            return False
        body = getattr(nodes[0], "body", [])
    return True


def names_bound_by(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


FOLDERS = {
    path.name for folder in (ROOT, PACKAGE, PACKAGE / "checkpoints") for path in folder.iterdir() if path.is_dir()
}


def missing_references(document: Path) -> list[str]:
    """The files and objects that a document names in `monospace` and that are not there.

    A file is named by its path from the repository, the package or its checkpoints; `FILE:NAME` is an object in it.
    """
    missing = []
    for file, name in re.findall(r"`([\w./-]+)(?::([\w.]+))?`", prose(document)):
        if (file.split("/")[0] not in FOLDERS and not name) or Path(file).stem.isupper():  # FILE.py:CLASS, of a user
            continue
        places = [folder / file for folder in (ROOT, PACKAGE, PACKAGE / "checkpoints")]
        path = next((place for place in places if place.exists()), None)
        if path is None or (name and not defines(path, name)):
            missing.append(f"{file}:{name}" if name else file)
    return missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    assert broken_links(document) == []


@pytest.mark.parametrize("document", CURRENT, ids=name_of)
def test_files_and_objects_that_a_document_names_exist(document: Path) -> None:
    assert missing_references(document) == []


def test_a_broken_link_and_a_missing_object_are_found(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(
        "# Here\n[a](#here) [b](#there) [c](gone.md) `nn/bilm.py:BiLM.run` `nn/bilm.py:BiLM.walk` `nn/x.py`\n"
    )
    assert broken_links(document) == ["#there", "gone.md"]
    assert missing_references(document) == ["nn/bilm.py:BiLM.walk", "nn/x.py"]


def test_reference_has_every_public_name() -> None:
    described = re.findall(r"^::: elmokit\.([\w.]+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)
    for place in described:
        module, name = place.rsplit(".", 1)
        assert defines(PACKAGE / f"{module.replace('.', '/')}.py", name), place
    names = {place.rsplit(".", 1)[1] for place in described}
    assert set(elmokit.__all__) - names == {"__version__"}


@pytest.mark.parametrize("name", ["README.md", "docs/python.md", "docs/migrating.md", "docs/architecture.md"])
def test_public_names_in_a_document_exist(name: str) -> None:
    names = re.findall(r"(?<![/\w])elmokit\.(\w+)\b", (ROOT / name).read_text(encoding="utf-8"))
    modules = {path.stem for path in PACKAGE.iterdir()}
    assert [each for each in sorted(set(names)) if not hasattr(elmokit, each) and each not in modules] == []


def test_architecture_has_a_line_for_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    parts = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path.is_dir() and path.name[0] != "_")]
    names = {f"{path.name}/" if path.is_dir() else path.name for path in parts} - {"__init__.py", "__main__.py"}
    assert [name for name in sorted(names) if f"\n| `{name}` |" not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["make_architecture", "make_diagram"])
def test_generated_parts_are_what_their_tool_makes(tool: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / f"{tool}.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
