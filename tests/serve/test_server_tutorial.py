"""The commands and the Python of docs/tutorials/serve.md run as they stand, against the server that it starts."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="no FastAPI: pip install fastapi (elmokit's extra serve)")
pytest.importorskip("httpx", reason="no httpx to ask the server with")
pytest.importorskip("openai", reason="no OpenAI client: pip install openai")

from document_examples import blocks_of, run_python
from running_server import RunningServer

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorials" / "serve.md"
ADDRESS = "http://127.0.0.1:8000"


def test_tutorial_starts_the_server_as_the_tests_do() -> None:
    assert blocks_of(TUTORIAL, "sh")[0] == "elmokit serve --corpus examples/data/sentences.txt\n"


def test_commands_of_the_tutorial_are_answered(server: RunningServer) -> None:
    commands = [line for block in blocks_of(TUTORIAL, "sh")[1:] for line in block.splitlines()]
    assert len(commands) > 8
    for command in commands:
        words = shlex.split(command.replace(ADDRESS, server.url))
        assert words[0] == "curl"
        done = subprocess.run(
            [*words, "--silent", "--show-error", "--fail"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        json.loads(done.stdout)


@pytest.mark.filterwarnings("default")  # as a reader sees them
def test_python_of_the_tutorial_gives_what_it_says(server: RunningServer, tmp_path: Path) -> None:
    document = tmp_path / TUTORIAL.name
    document.write_text(TUTORIAL.read_text(encoding="utf-8").replace(ADDRESS, server.url), encoding="utf-8")
    assert run_python(document) == 2
