"""Run the examples of a document: its Python, with the values that it claims, its commands, and
what they print.
"""

import ast
import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from glob import glob
from math import isclose
from pathlib import Path
from typing import NamedTuple

import elmokit
from elmokit.cli import main


def blocks_of(document: Path, language: str) -> list[str]:
    """The blocks of code in a language of a Markdown file."""
    text = document.read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


# --- Python ---------------------------------------------------------------------------------------


def claimed_value(line: str) -> object:
    """The value in the comment of `expression  # VALUE` or `# VALUE: explanation`, or None."""
    comment = line.partition("  # ")[2]
    try:
        return ast.literal_eval(comment.partition(": ")[0].strip())
    except (SyntaxError, ValueError):
        return None


def _is_print(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id == "print"
    )


def run_block(code: str, names: dict[str, object], title: str) -> int:
    """Run a block of Python; the number of values that its comments claim, of expressions or
    printed, all right.
    """
    checked = 0
    for node in ast.parse(code).body:
        if not isinstance(node, ast.Expr):
            exec(compile(ast.Module([node], []), title, "exec"), names)
            continue
        printed = io.StringIO()
        with redirect_stdout(printed):
            value = eval(compile(ast.Expression(node.value), title, "eval"), names)
        print(printed.getvalue(), end="")
        claimed = claimed_value(code.splitlines()[(node.end_lineno or node.lineno) - 1])
        if claimed is not None:
            value, claimed = (
                (printed.getvalue().strip(), str(claimed))
                if _is_print(node.value)
                else (value, claimed)
            )
            assert value == claimed, f"{title}, line {node.lineno}: it is {value}"
            checked += 1
    return checked


def run_python(document: Path) -> int:
    """Run the Python of a document from top to bottom; the number of values that it claims, all of
    which are so.
    """
    names: dict[str, object] = {"__name__": document.name}
    blocks = enumerate(blocks_of(document, "python"), start=1)
    return sum(
        run_block(block, names, f"{document.name}, block {number}") for number, block in blocks
    )


# --- Commands -------------------------------------------------------------------------------------


def run_command(command: str) -> None:
    """Run a line of a shell, which is empty, a comment, or a command: of elmokit, or a module of
    Python.
    """
    words = shlex.split(command, comments=True)
    program, *arguments = [name for word in words for name in sorted(glob(word)) or [word]] or [""]
    if program == "elmokit":
        assert main(arguments) == 0, command
    elif program:
        assert program == "python", command
        path = os.pathsep.join(
            filter(None, [str(Path(elmokit.__file__).parents[1]), os.environ.get("PYTHONPATH")])
        )
        environment = os.environ | {"PYTHONPATH": path}
        run = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        print(run.stdout, end="")


# --- Tutorials ------------------------------------------------------------------------------------

BLOCK = re.compile(
    r"(?:<!-- (?P<mark>file: (?P<file>\S+)|output) "
    r"-->\n)?^```(?P<language>python|console|text)\n(?P<content>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


class Output(NamedTuple):
    """A block that shows what the block before it prints: where it is in the text, what it shows,
    what was printed.
    """

    span: tuple[int, int]
    shown: str
    printed: str


def run_tutorial(document: Path) -> list[Output]:
    """Write the files of a tutorial and run its blocks, from top to bottom, in the current
    directory.
    """
    names: dict[str, object] = {"__name__": "tutorial"}
    outputs = []
    printed = io.StringIO()
    blocks = list(BLOCK.finditer(document.read_text()))
    assert blocks, f"{document} has no code"
    for number, block in enumerate(blocks, start=1):
        language = block["language"]
        content = block["content"]
        if block["file"]:
            with Path(block["file"]).open("a", encoding="utf-8") as target:
                target.write(f"{content}\n\n" if language == "python" else content)
            continue
        if block["mark"]:
            outputs.append(Output(block.span("content"), content, printed.getvalue()))
            continue
        if language == "text":
            continue  # an example that is only shown
        printed = io.StringIO()
        with redirect_stdout(printed):
            if language == "python":
                run_block(content, names, f"{document.name}, block {number}")
            else:
                for command in content.replace("\\\n", " ").splitlines():
                    run_command(command)
    return outputs


NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")
OF_THIS_RUN = ("seconds", "words_per_second", "time: ")  # lines of a report that are never the same


def same_output(shown: str, printed: str) -> bool:
    """Whether two outputs have the same words and integers, and numbers with decimals to a tenth or
    0.05.
    """
    lines = [
        [
            " ".join(line.split())
            for line in text.splitlines()
            if not line.strip().startswith(OF_THIS_RUN)
        ]
        for text in (shown, printed)
    ]
    left, right = ("\n".join(each).strip() for each in lines)
    if NUMBER.sub("#", left) != NUMBER.sub("#", right):
        return False
    pairs = zip(NUMBER.findall(left), NUMBER.findall(right), strict=True)
    return all(
        a == b or ("." in a and isclose(_value(a), _value(b), rel_tol=0.1, abs_tol=0.05))
        for a, b in pairs
    )


def _value(number: str) -> float:
    return float(number.replace(",", ""))
