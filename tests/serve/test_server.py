"""The process: what it prints, how it ends, and what it says where it cannot begin."""

from __future__ import annotations

import builtins
import json
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="no FastAPI: pip install fastapi (elmokit's extra serve)")
pytest.importorskip("httpx", reason="no httpx to ask the server with")

import httpx
from running_server import RunningServer

from elmokit.cli import main
from elmokit.serve import server as module
from elmokit.serve.config import ServeConfig
from elmokit.serve.service import Service


@pytest.fixture
def draining() -> RunningServer:
    return RunningServer("--device", "cpu")


def test_sigterm_answers_what_was_accepted_and_refuses_the_rest(draining: RunningServer) -> None:
    words = [f"word{number}" for number in range(3_000)]
    answers: list[httpx.Response] = []
    with draining as server, httpx.Client(base_url=server.url, timeout=60) as client:
        client.get("/health")  # a connection that is there before
        accepted = [
            threading.Thread(target=lambda: answers.append(server.post("/score", {"inputs": [words]})))
            for _ in range(2)
        ]
        for thread in accepted:
            thread.start()
        server.wait_until("elmokit_jobs", 2)
        server.process.terminate()
        while (answer := client.post("/embed", json={"inputs": "a"})).status_code == 200:
            pass  # the signal is on its way
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "draining"
        assert client.get("/ready").status_code == 503 and client.get("/health").status_code == 200
        for thread in accepted:
            thread.join(60)
        assert server.process.wait(60) == 0
    assert [answer.status_code for answer in answers] == [200, 200]


def test_idle_server_ends_at_once_with_status_0(draining: RunningServer) -> None:
    with draining as server, socket.create_connection(("127.0.0.1", server.port)):  # of a client that says nothing
        began = time.monotonic()
        assert server.stop() == 0 and time.monotonic() - began < 10
        assert server.process.stderr is not None and server.process.stderr.read() == ""


def test_work_that_nobody_waits_for_does_not_keep_the_server(draining: RunningServer) -> None:
    words = [f"word{number}" for number in range(12_000)]  # whose scores take many seconds
    with draining as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/score", json={"inputs": [words]}, timeout=1)
        assert server.metric("elmokit_jobs") == 1
        began = time.monotonic()
        assert server.stop() == 0 and time.monotonic() - began < 10
        assert server.process.stderr is not None and server.process.stderr.read() == ""


def test_port_in_use_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert main(["serve", "--port", str(other.getsockname()[1])]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "cannot listen on 127.0.0.1" in error and "--port" in error


@pytest.mark.parametrize("host", ["nosuchhost.invalid", "192.0.2.1"])
def test_host_that_is_not_of_this_machine_is_to_be_changed(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--host", host, "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert f"cannot listen on {host}" in error and error.endswith("choose another with --host\n")


def test_port_that_is_taken_while_the_model_loads_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Service.load
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))

        def load_meanwhile(*arguments: Any) -> Service:
            other.listen()
            return load(*arguments)

        monkeypatch.setattr(Service, "load", load_meanwhile)
        with pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1, port .*: choose another with --port"):
            module.serve(None, ServeConfig(port=other.getsockname()[1]), "cpu")


def test_client_that_stops_reading_does_not_keep_the_server() -> None:
    body = json.dumps({"inputs": [[f"word{number}" for number in range(600)]], "layers": "all"}).encode()
    with RunningServer("--device", "cpu", "--timeout", 5) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"POST /embed_all HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert client.recv(12) == b"HTTP/1.1 200"
        began = time.monotonic()
        assert server.stop() == 0 and time.monotonic() - began < 40


def test_settings_that_make_no_sense_are_errors_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--queue-words", "5"], "--queue-words must be at least max_words"),
        (["--port", "70000"], "port must be from 0 to 65535"),
        (["--timeout", "0"], "timeout must be above 0"),
        (["--timeout", "inf"], "timeout must be a finite number"),
        (["no-such-model", "--port", "0"], "no model 'no-such-model'"),
        (["--corpus", "/no/such/file", "--port", "0"], "/no/such/file"),
        (["--task-model", "/no/such/model", "--port", "0"], "is not a task model"),
    ):
        assert main(["serve", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and message in error


def test_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "uvicorn" else builtins.object())
    with pytest.raises(ValueError, match=r"the server needs uvicorn: pip install .*elmokit's extra serve"):
        module.require_libraries()


def test_help_loads_no_library_of_the_server() -> None:
    program = "import sys, elmokit.cli.verbs; print({'fastapi', 'pydantic', 'uvicorn', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
