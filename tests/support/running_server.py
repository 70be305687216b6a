"""`elmokit serve` in a process of its own, on a free port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import httpx

CORPUS = Path(__file__).parents[2] / "examples" / "data" / "sentences.txt"


class RunningServer:
    """A server, as a context manager: it listens when the context begins, and has ended with it."""

    def __init__(self, *options: object, environment: dict[str, str] | None = None) -> None:
        """Start it with options of the command line."""
        command = [sys.executable, "-m", "elmokit", "serve", "--port", "0", *map(str, options)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (environment or {}),
        )
        line = self.process.stdout.readline()
        if " at http" not in line:
            raise RuntimeError(f"the server did not start: {self.process.communicate()[1]}")
        _, self.name, _, url = line.split()
        self.url = url.rstrip("/")
        self.port = int(self.url.rsplit(":", 1)[1])

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.stop()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def stop(self) -> int:
        """SIGTERM, and wait: its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def post(self, path: str, body: object, **options: object) -> httpx.Response:
        """The answer to a body of JSON."""
        return httpx.post(self.url + path, json=body, timeout=60, **options)  # pyright: ignore[reportArgumentType]

    def metric(self, name: str) -> float:
        """A metric without labels, or the sum of those with."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == name
        )

    def wait_until(self, name: str, value: float, seconds: float = 20) -> None:
        """Wait until a metric has a value. AssertionError after some seconds."""
        stop = time.monotonic() + seconds
        while (now := self.metric(name)) != value:
            assert time.monotonic() < stop, f"{name} is {now}, not {value}"
            time.sleep(0.02)
