"""Generate the parts of docs/architecture.md that follow from the code: implementations of ops, files on three paths.

    python tools/make_architecture.py           # writes them
    python tools/make_architecture.py --check   # status 1 if the document is out of date

Each part is between a line <!-- NAME --> and the next line <!-- end -->.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from elmokit.ops.dispatch import BACKENDS, IMPLEMENTATIONS

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "architecture.md"


def implementations() -> str:
    """A table with a row for each op: its module in each backend that implements it, relative to ops/."""
    lines = [["Op", *(f"`{name}`" for name in BACKENDS)], ["---"] * (1 + len(BACKENDS))]
    for op, modules in IMPLEMENTATIONS.items():
        lines.append(
            [op, *(f"`{modules[name][0].replace('.', '/')}.py`" if name in modules else "" for name in BACKENDS)]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def reading() -> str:
    """The files that each of three paths enters, sorted, since threads may enter them in any order.

    Raises:
        CalledProcessError: There are more files than decision 19 allows, or they cannot be counted.
    """
    command = [sys.executable, str(ROOT / "tools" / "count_reading.py"), "--markdown"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    paths = re.findall(r"^\*\*(`.+?`)\*\*, (\d+) files: (.+)\.$", printed, flags=re.MULTILINE)
    lists = ((name, count, ", ".join(sorted(files.split(", ")))) for name, count, files in paths)
    return "\n".join(f"- {name}, {count} files: {files}." for name, count, files in lists)


PARTS: dict[str, Callable[[], str]] = {"implementations": implementations, "reading": reading}


def generated(text: str) -> str:
    """The document with its generated parts brought up to date.

    Raises:
        ValueError: A part has no place in the document.
    """
    for name, make in PARTS.items():
        place = re.compile(rf"(<!-- {name} -->\n\n).*?(\n\n<!-- end -->)", flags=re.DOTALL)
        if not place.search(text):
            raise ValueError(f"{DOCUMENT.name} lacks the lines <!-- {name} --> and <!-- end -->")
        content = make()
        text = place.sub(lambda match, content=content: match[1] + content + match[2], text, count=1)
    return text


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if a part is out of date")
    is_check = parser.parse_args(argv).check
    before = DOCUMENT.read_text(encoding="utf-8")
    after = generated(before)
    if is_check and after != before:
        print(f"{DOCUMENT.name} is not what the code says: run tools/make_architecture.py", file=sys.stderr)
        return 1
    if not is_check:
        DOCUMENT.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
