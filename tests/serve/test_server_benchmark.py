"""The load of the server's benchmark: every request has an outcome, of the right time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="no FastAPI: pip install fastapi (elmokit's extra serve)")
pytest.importorskip("httpx", reason="no httpx to ask the server with")

from running_server import RunningServer

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "speed" / "http_load.py"


def load(server: RunningServer, bodies: list[Any], **job: float) -> dict[str, Any]:
    request = {"host": "127.0.0.1", "port": server.port, "path": "/embed", "bodies": bodies, **job}
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_clients_send_each_body_once_and_wait_for_the_answer(server: RunningServer) -> None:
    before = server.metric("elmokit_requests_total")
    answer = load(server, [{"inputs": f"word {number}"} for number in range(50)] + [{"inputs": 1}] * 3, clients=4)
    assert sorted(status for status, _ in answer["outcomes"]) == [200] * 50 + [422] * 3
    assert server.metric("elmokit_requests_total") - before == 53 + 1  # and the question of how many there were
    assert 0 < max(seconds for _, seconds in answer["outcomes"]) <= answer["seconds"]


def test_rate_is_kept_whatever_becomes_of_requests(server: RunningServer) -> None:
    answer = load(server, [{"inputs": "a"}], rate=40, seconds=1)
    assert [status for status, _ in answer["outcomes"]] == [200] * 40 and answer["seconds"] >= 0.9
    with RunningServer("--device", "cpu") as gone:
        pass
    assert [status for status, _ in load(gone, [{"inputs": "a"}], rate=40, seconds=0.1)["outcomes"]] == [0] * 4
