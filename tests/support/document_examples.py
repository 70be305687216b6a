"""Run the examples of a document: its Python, with the values that it claims, and its commands."""

import ast
import re
import shlex
from glob import glob
from pathlib import Path

from elmokit.cli import main


def blocks_of(document: Path, language: str) -> list[str]:
    """The blocks of code in a language of a Markdown file."""
    text = document.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def claimed_value(line: str) -> object:
    """The value in the comment of a line, `expression  # VALUE` or `# VALUE: explanation`; None if there is none."""
    comment = line.partition("  # ")[2]
    try:
        return ast.literal_eval(comment.partition(": ")[0].strip())
    except (SyntaxError, ValueError):
        return None


def run_python(document: Path) -> int:
    """Run the Python of a document from top to bottom; the number of values that it claims, all of which are so."""
    names: dict[str, object] = {"__name__": document.name}
    checked = 0
    for number, block in enumerate(blocks_of(document, "python"), start=1):
        for node in ast.parse(block).body:
            if not isinstance(node, ast.Expr):
                exec(compile(ast.Module([node], []), f"{document.name}, block {number}", "exec"), names)
                continue
            value = eval(compile(ast.Expression(node.value), f"{document.name}, block {number}", "eval"), names)
            claimed = claimed_value(block.splitlines()[(node.end_lineno or node.lineno) - 1])
            if claimed is not None:
                assert value == claimed, f"{document.name}, block {number}, line {node.lineno}: it is {value}"
                checked += 1
    return checked


def run_command(command: str) -> None:
    """Run a line of a shell, which is empty, a comment, or a command of elmokit."""
    words = shlex.split(command, comments=True)
    arguments = [name for word in words for name in sorted(glob(word)) or [word]]
    if arguments:
        assert arguments[0] == "elmokit" and main(arguments[1:]) == 0, command
