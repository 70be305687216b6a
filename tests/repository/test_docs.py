"""Links between documents lead to files and headings, and the reference has every public name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def prose(path: Path) -> str:
    """A document without its blocks of code."""
    return re.sub(
        r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


def anchors(path: Path) -> set[str]:
    """The headings of a document as GitHub links to them."""
    titles = re.findall(r"^#+ (.*)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if not re.match(r"[a-z]+:", target):
            file, _, heading = target.partition("#")
            path = (document.parent / file).resolve() if file else document
            assert path.exists() and (not heading or heading in anchors(path)), target
