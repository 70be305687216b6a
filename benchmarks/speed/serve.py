"""The server: its throughput compared with `Embedder`, its latency at half of that rate, and its behaviour in overload.

    python benchmarks/speed/serve.py TEXT... [--model NAME_OR_PATH] [--dtype float32] [--repeats 5] [--quick]

TEXT is raw (plain, .gz or .zst), one sentence per line; the sentences are the first 20 words of each line that has at
least 20. Everything runs on this machine: the server, the load (http_load.py, in a separate process) and, in turn with
them, `Embedder`.

- Throughput: 64 clients, each with one request of one sentence at a time, in the form of OpenAI's client (base64). It
  is compared with `Embedder.encode` of the same sentences, in turn for each part of the text. After the first part,
  neither word cache is empty.
- Latency: sentences are sent at half of that rate, whether or not earlier ones have been answered. A request's time
  begins when it is due.
- Overload: ten times the words per second of the throughput, in requests of 50 sentences, for five minutes. This gives
  the number of refused requests and the time to refuse them, the number of requests without any answer, and the memory
  of the server every second.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from measuring import RESULTS, write_result

from elmokit.embed.embedder import Embedder
from elmokit.fs.reading import read_lines

LENGTH = 20
CLIENTS = 64
OVERLOAD_SENTENCES = 50  # per request
MEBIBYTE = 1 << 20
Figures = dict[str, Any]


class Server:
    """`elmokit serve` in a process of its own, as a context manager."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        command = [
            sys.executable,
            "-m",
            "elmokit",
            "serve",
            "--model",
            arguments.model,
            "--dtype",
            arguments.dtype,
            "--port",
            "0",
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended with status {self.process.wait()}")
        self.port = int(line.rstrip().rstrip("/").rsplit(":", 1)[1])

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def load(self, bodies: list[Figures], **job: float) -> Figures:
        """Send requests; returns the outcomes as http_load.py prints them."""
        request = {"host": "127.0.0.1", "port": self.port, "path": "/v1/embeddings", "bodies": bodies, **job}
        script = Path(__file__).with_name("http_load.py")
        done = subprocess.run(
            [sys.executable, str(script)], input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=True
        )
        return json.loads(done.stdout)

    @property
    def resident_mib(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MEBIBYTE


def body_of(texts: list[str]) -> Figures:
    return {"input": texts, "encoding_format": "base64"}


def sentences_of(arguments: argparse.Namespace) -> list[str]:
    """Distinct sentences of `LENGTH` words."""
    lines = (line.split() for text in arguments.texts for line in read_lines(text))
    sentences = dict.fromkeys(" ".join(words[:LENGTH]) for words in lines if len(words) >= LENGTH)
    if len(sentences) < (least := CLIENTS * (arguments.repeats + 1)):
        raise ValueError(f"the text has {len(sentences)} sentences of {LENGTH} words, and {least} are needed")
    return list(sentences)[: arguments.sentences]


def quantile(values: list[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def throughput(server: Server, embedder: Embedder, sentences: list[str], repeats: int) -> Figures:
    """Sentences per second of both sides, part by part."""
    size = len(sentences) // (repeats + 1)
    pairs = []
    for number in range(repeats + 1):
        part = sentences[number * size : (number + 1) * size]
        began = time.perf_counter()
        embedder.encode(part, normalize_embeddings=True)
        alone = size / (time.perf_counter() - began)
        answers = server.load([body_of([sentence]) for sentence in part], clients=CLIENTS)
        if failed := [status for status, _ in answers["outcomes"] if status != 200]:
            raise RuntimeError(f"{len(failed)} requests failed: {Counter(failed)}")
        times = [seconds for _, seconds in answers["outcomes"]]
        pairs.append({
            "embedder": alone, "server": size / answers["seconds"], "p50": statistics.median(times),
            "p99": quantile(times, 0.99),
        })  # fmt: skip
    pairs = pairs[1:]  # the first part is a warm-up for both sides
    return {
        "clients": CLIENTS,
        "pairs": pairs,
        "sentences_per_second": statistics.median(pair["server"] for pair in pairs),
        "share_of_embedder": statistics.median(pair["server"] / pair["embedder"] for pair in pairs),
    }


def half_load(server: Server, sentences: list[str], rate: float, seconds: float) -> Figures:
    """Latencies in seconds at a rate of sentences per second."""
    outcomes = server.load([body_of([sentence]) for sentence in sentences], rate=rate, seconds=seconds)["outcomes"]
    times = [taken for status, taken in outcomes if status == 200]
    return {
        "rate": rate,
        "seconds": seconds,
        "requests": len(outcomes),
        "failed": len(outcomes) - len(times),
        **{f"p{percent}": quantile(times, percent / 100) for percent in (50, 90, 99)},
        "max": max(times),
    }


def overload(server: Server, sentences: list[str], words_per_second: float, seconds: float) -> Figures:
    """Outcomes of requests at a rate of words per second, and the memory of the server."""
    texts = [sentences[begin : begin + OVERLOAD_SENTENCES] for begin in range(0, len(sentences), OVERLOAD_SENTENCES)]
    rate = words_per_second / (OVERLOAD_SENTENCES * LENGTH)
    memory: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(1):
            memory.append(server.resident_mib)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        answers = server.load(list(map(body_of, texts)), rate=rate, seconds=seconds)
    finally:
        ended.set()
        watcher.join()
    outcomes = answers["outcomes"]
    refused = [taken for status, taken in outcomes if status == 429]
    fifth = max(1, len(memory) // 5)
    return {
        "offered_words_per_second": words_per_second,
        "requests_per_second": rate,
        "seconds": seconds,
        "statuses": Counter(str(status) for status, _ in outcomes),
        "sent_again": answers["sent_again"],
        "refused_p50": quantile(refused, 0.5) if refused else None,
        "refused_p99": quantile(refused, 0.99) if refused else None,
        "refused_max": max(refused, default=None),
        "memory_mib": memory,
        "memory_growth_mib": max(memory[-fifth:]) - max(memory[fifth : 2 * fifth] or memory[:1]) if memory else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--model", default="en-small")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sentences", type=int, default=30_000, help="maximum number of sentences to read")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of measurements")
    parser.add_argument("--half-load-seconds", type=float, default=60)
    parser.add_argument("--overload-seconds", type=float, default=300)
    parser.add_argument("--quick", action="store_true", help="a few seconds for each part, to see whether it runs")
    parser.add_argument("--output", type=Path, help="result file; in benchmarks/results when not given")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sentences, arguments.repeats = min(arguments.sentences, 600), 1
        arguments.half_load_seconds = arguments.overload_seconds = 3
    elif arguments.output is None:
        arguments.output = RESULTS / "serve.json"
    sentences = sentences_of(arguments)
    embedder = Embedder(arguments.model, dtype=arguments.dtype)
    with Server(arguments) as server:
        report: Figures = {"model": arguments.model, "dtype": arguments.dtype, "words_of_sentence": LENGTH}
        report["throughput"] = throughput(server, embedder, sentences, arguments.repeats)
        rate = report["throughput"]["sentences_per_second"]
        report["half_load"] = half_load(server, sentences, rate / 2, arguments.half_load_seconds)
        report["overload"] = overload(server, sentences, 10 * rate * LENGTH, arguments.overload_seconds)
    shown = {name: {k: v for k, v in part.items() if k != "memory_mib"} if isinstance(part, dict) else part
             for name, part in report.items()}  # fmt: skip
    print(json.dumps(shown, indent=1))
    write_result(arguments.output, report)


if __name__ == "__main__":
    main()
