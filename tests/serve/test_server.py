"""The process: how it ends, and what it says where it cannot begin; and the tutorial."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest
from document_examples import blocks_of, run_python
from running_server import RunningServer

from elmokit.cli import main
from elmokit.serve import ServeConfig
from elmokit.serve.server import serve

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorials" / "serve.md"
ADDRESS = "http://127.0.0.1:8000"


@pytest.mark.slow
def test_sigterm_answers_what_was_accepted_and_ends_beside_silent_clients() -> None:
    words = [f"word{number}" for number in range(800)]
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(server.post("/score", {"inputs": [words]}))

    with (
        RunningServer("--device", "cpu") as server,
        socket.create_connection(("127.0.0.1", server.port)),  # says nothing
        httpx.Client(base_url=server.url) as idle,
    ):
        idle.get("/health")
        accepted = [threading.Thread(target=ask) for _ in range(2)]
        for thread in accepted:
            thread.start()
        server.wait_until("elmokit_jobs", 2)
        assert server.stop() == 0
        for thread in accepted:
            thread.join(60)
        assert [answer.status_code for answer in answers] == [200, 200]
        with pytest.raises(httpx.ConnectError):
            server.post("/embed", {"inputs": "a"})
        assert "Error" not in server.process.stderr.read()


@pytest.mark.slow
def test_client_that_stops_reading_does_not_keep_the_server() -> None:
    body = json.dumps(
        {"inputs": [[f"word{number}" for number in range(600)]], "layers": "all"}
    ).encode()
    head = (
        b"POST /embed_all HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key\r\n"
        b"Content-Length: %d\r\n\r\n"
    )
    options = ("--device", "cpu", "--timeout", 15, "--name", "other")
    key = {"ELMOKIT_API_KEY": "key"}
    with RunningServer(*options, environment=key) as server, socket.socket() as client:
        assert server.name == "other"
        assert server.post("/embed", {"inputs": "a"}).status_code == 401
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head % len(body) + body)
        assert client.recv(12) == b"HTTP/1.1 200"
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "nosuchhost.invalid", "--port", "0"], "[Errno "),
        (["--port", "70000"], "port must be from 0 to 65535"),
        (["--api-key", "schlüssel"], "printable ASCII"),
        (["--corpus", "/no/such/file", "--port", "0"], "/no/such/file"),
        (["--task-model", "/no/such/model", "--port", "0"], "is not a task model"),
    ],
)
def test_server_that_cannot_begin_says_why_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_server_that_is_open_to_the_network_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELMOKIT_API_KEY", raising=False)
    with pytest.raises(ValueError, match="--api-key"):
        serve("no-such-model", ServeConfig("0.0.0.0", port=0))
    with pytest.raises(FileNotFoundError):
        serve("no-such-model", ServeConfig("0.0.0.0", port=0, api_key="key"))


# --- The tutorial ---------------------------------------------------------------------------------


def test_commands_of_the_tutorial_are_answered(server: RunningServer) -> None:
    start, *blocks = blocks_of(TUTORIAL, "sh")
    assert start == "elmokit serve --corpus examples/data/sentences.txt\n"  # as the tests start it
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) > 8
    for command in commands:
        words = shlex.split(command.replace(ADDRESS, server.url))
        assert words[0] == "curl"
        done = subprocess.run(
            [*words, "-s", "-S", "--fail"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        json.loads(done.stdout)


@pytest.mark.filterwarnings("default")  # as a reader sees them
def test_python_of_the_tutorial_gives_what_it_says(server: RunningServer, tmp_path: Path) -> None:
    pytest.importorskip("openai", reason="no OpenAI client: pip install openai")
    document = tmp_path / TUTORIAL.name
    document.write_text(TUTORIAL.read_text().replace(ADDRESS, server.url))
    assert run_python(document) == 2
