"""The code and commands of the tutorials run as they stand, from top to bottom."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import elmokit
from elmokit.cli import main

# The libraries that the code of a tutorial needs besides elmokit.
LIBRARIES = {
    "onnx": ("onnx", "onnxruntime"),
    "scikit-learn": ("sklearn", "pandas"),
    "sentence-transformers": ("sentence_transformers", "datasets", "accelerate"),
    "spacy": ("spacy",),
}
# These have a test of their own.
ELSEWHERE = {"serve": "tests/serve/test_server_tutorial.py"}
FILES = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.md"))
TUTORIALS = [path for path in FILES if path.stem not in ELSEWHERE]
BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?```(python|console|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_command(command: str) -> None:
    """Run a command of elmokit in this process, or a module of Python in one of its own."""
    program, *arguments = shlex.split(command)
    if program == "elmokit":
        assert main(arguments) == 0, command
        return
    assert program == "python", command
    path = os.pathsep.join(filter(None, [str(Path(elmokit.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    run = subprocess.run([sys.executable, *arguments], env=os.environ | {"PYTHONPATH": path}, capture_output=True)
    assert run.returncode == 0, run.stderr.decode()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # as a reader sees them
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs(tutorial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in LIBRARIES.get(tutorial.stem, ()):
        pytest.importorskip(library, reason=f"{library} is not installed: make test-integrations")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)
    names: dict[str, object] = {"__name__": "tutorial"}
    blocks = BLOCK.findall(tutorial.read_text(encoding="utf-8"))
    assert blocks
    for number, (file, kind, content) in enumerate(blocks, start=1):
        if file:
            with (tmp_path / file).open("a", encoding="utf-8") as target:
                target.write(f"{content}\n\n" if kind == "python" else content)
        elif kind == "python":
            exec(compile(content, f"{tutorial.name}, block {number}", "exec"), names)
        else:
            for command in content.splitlines():
                run_command(command)
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
