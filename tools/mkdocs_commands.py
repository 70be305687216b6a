"""A hook of mkdocs: the help of every command, at its place in docs/command-line.md."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from elmokit.cli import VERBS

PAGE, PLACE = "command-line.md", "<!-- the help of every command -->"
ROOT = Path(__file__).parents[1]
EXAMPLES_HEADING = "Examples, in a checkout of elmokit:"
COLUMNS = "80"  # the width of a page


def help_of(command: str) -> str:
    """The output of `elmokit COMMAND --help`."""
    environment = os.environ | {"COLUMNS": COLUMNS, "NO_COLOR": "1"}
    call = [sys.executable, "-m", "elmokit", command, "--help"]
    return subprocess.run(
        call, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def without_frames(boxes: str) -> str:
    """Boxes as plain text: their titles, and their lines indented."""
    lines = []
    for line in boxes.splitlines():
        if line.startswith("╭─ "):
            lines.append(line.strip("╭─╮ ") + ":")
        elif line.startswith("│"):
            lines.append("  " + line[2:-1].rstrip())
        elif line.startswith("╰"):
            lines.append("")
    return "\n".join(lines).strip()


def section(command: str) -> str:
    """The help of a command in Markdown: its text, its examples, and its options as they are
    printed.

    Raises:
        ValueError: It has no frames or no examples, as if the form of the help had changed.
    """
    head, frame, boxes = help_of(command).partition("╭")
    usage, _, text = head.partition("\n\n")
    description, heading, examples = text.partition(EXAMPLES_HEADING)
    if not (frame and heading):
        raise ValueError(f"the help of elmokit {command} has no frames or no examples")
    examples = dedent(examples.strip("\n")).strip()
    return (
        f"### elmokit {command}\n\n{description.strip()}\n\n```console\n{examples}\n```\n\n"
        f"```text\n{usage}\n\n{without_frames(frame + boxes)}\n```"
    )


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of a page, with a section for each command in place of the comment. ValueError
    without the comment.
    """
    if page.file.src_uri != PAGE:
        return markdown
    if PLACE not in markdown:
        raise ValueError(f"docs/{PAGE} has no line {PLACE}, where the help of the commands belongs")
    return markdown.replace(PLACE, "\n\n".join(map(section, VERBS)))
