"""The server: its throughput compared with `Embedder`, its latency at half of that rate, and its
behaviour in overload.

    python benchmarks/speed/serve.py TEXT... [--model NAME_OR_PATH] [--dtype float32] [--repeats 5]
    [--quick]

TEXT is raw (plain, .gz or .zst), one sentence per line; the sentences are the first 20 words of
each line that has at least 20. Everything runs on this machine: the server, the load (http_load.py,
in a separate process) and, in turn with them, `Embedder`.

- Throughput: 64 clients, each with one request of one sentence at a time, in the form of OpenAI's
  client (base64). It is compared with `Embedder.encode` of the same sentences, in turn for each
  part of the text. After the first part, neither word cache is empty.
- Latency: sentences are sent at half of that rate, whether or not earlier ones have been answered.
  A request's time begins when it is due.
- Overload: ten times the words per second of the throughput, in requests of 50 sentences. This
  gives the number of refused requests and the time to refuse them, the number of requests without
  any answer, and the memory of the server every second.
- Beside a long request: the times of /compare and /embed while /score works on 7 texts of 2,000
  words, and of /embed while 1,000 texts of 100 words are embedded, as LangChain sends them.
- Uses of a word: /senses and /neighbors the first and the second time, in a corpus of 20 MB, and in
  one of 20,000 lines each of which has the word.
- Heads: a header of 161 MB beside 900 connections whose heads are sent by half, and the time of
  /health meanwhile.

On two idle cores it takes about five minutes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import cycle, islice
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

    def __init__(self, arguments: argparse.Namespace, *options: str) -> None:
        options = ("--model", arguments.model, "--dtype", arguments.dtype, "--port", "0", *options)
        command = [sys.executable, "-m", "elmokit", "serve", *options]
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
        request = {
            "host": "127.0.0.1",
            "port": self.port,
            "path": "/v1/embeddings",
            "bodies": bodies,
            **job,
        }
        script = Path(__file__).with_name("http_load.py")
        done = subprocess.run(
            [sys.executable, str(script)],
            input=json.dumps(request),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    def ask(self, path: str, body: Figures | None = None) -> tuple[Any, float]:
        """The JSON value of an answer, and its time in seconds. RuntimeError unless its status is
        200.
        """
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(
            "GET" if body is None else "POST", path, None if body is None else json.dumps(body)
        )
        response = connection.getresponse()
        content = response.read()
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{path}: status {response.status}: {content[:200]!r}")
        return json.loads(content), time.perf_counter() - began

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
        raise ValueError(
            f"the text has {len(sentences)} sentences of {LENGTH} words, and {least} are needed"
        )
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
    outcomes = server.load(
        [body_of([sentence]) for sentence in sentences], rate=rate, seconds=seconds
    )["outcomes"]
    times = [taken for status, taken in outcomes if status == 200]
    return {
        "rate": rate,
        "seconds": seconds,
        "requests": len(outcomes),
        "failed": len(outcomes) - len(times),
        **{f"p{percent}": quantile(times, percent / 100) for percent in (50, 90, 99)},
        "max": max(times),
    }


def overload(
    server: Server, sentences: list[str], words_per_second: float, seconds: float
) -> Figures:
    """Outcomes of requests at a rate of words per second, and the memory of the server."""
    texts = [
        sentences[begin : begin + OVERLOAD_SENTENCES]
        for begin in range(0, len(sentences), OVERLOAD_SENTENCES)
    ]
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
        "memory_growth_mib": max(memory[-fifth:]) - max(memory[fifth : 2 * fifth] or memory[:1])
        if memory
        else None,
    }


# --- Beside others --------------------------------------------------------------------------------


def beside(server: Server, long: tuple[str, Figures], short: dict[str, Figures | None]) -> Figures:
    """The seconds of a long request, and those of short ones while it runs."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.ask, *long)
        time.sleep(0.2)
        times: dict[str, list[float]] = {path: [] for path in short}
        while not running.done():
            for path, body in short.items():
                times[path].append(server.ask(path, body)[1])
        seconds = running.result()[1]
    of_path = {path: {"requests": len(each), "p50": quantile(each, 0.5), "max": max(each)}
               for path, each in times.items() if each}  # fmt: skip
    return {"seconds": seconds, "short": of_path}


def long_requests(server: Server, sentences: list[str], words: int) -> Figures:
    compare = {"word": "play", "sentences": ["They play chess.", "He wrote the play."]}
    short = {"/compare": compare, "/embed": {"inputs": ["They play chess."]}}
    texts = [" ".join(sentences[begin:]).split()[:words] for begin in range(0, 700, 100)]
    batch = body_of([" ".join(sentences[begin : begin + 5]) for begin in range(words // 2)])
    return {
        "idle": {
            path: quantile([server.ask(path, body)[1] for _ in range(20)], 0.5)
            for path, body in short.items()
        },
        "score_7_texts": beside(server, ("/score", {"inputs": texts}), short),
        "embed_1000_texts": beside(server, ("/v1/embeddings", batch), {"/embed": short["/embed"]}),
    }


def uses_of_words(
    arguments: argparse.Namespace, words: list[str], lines: Iterable[str], size: int
) -> Figures:
    """The seconds of searches in a corpus of the first lines, of `size` bytes."""
    with tempfile.TemporaryDirectory() as directory:
        corpus, written = Path(directory) / "corpus.txt", 0
        with corpus.open("w", encoding="utf-8") as stream:
            for line in lines:
                if written < size:
                    stream.write(line + "\n")
                    written += len(line.encode()) + 1
        figures: Figures = {"bytes": written}
        with Server(arguments, "--corpus", str(corpus)) as server:
            for word in words:
                answers = [server.ask("/senses", {"word": word}) for _ in range(2)]
                near = [
                    server.ask("/neighbors", {"word": word, "sentence": f"It is a {word}."})[1]
                    for _ in range(2)
                ]
                senses = [seconds for _, seconds in answers]
                uses = answers[0][0]["uses_in_corpus"]
                figures[word] = {"uses": uses, "senses": senses, "neighbors_after_senses": near}
    return figures


def heads(server: Server) -> Figures:
    """The slowest /health beside 900 connections with half a head and a head of 161 MB."""
    sent, ended, health = 0, threading.Event(), []

    def watch() -> None:
        while not ended.is_set():
            health.append(server.ask("/health")[1])

    with ExitStack() as stack:
        for _ in range(900):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            half.sendall(b"GET /health HTTP/1.1\r\nHost: local")
        server.ask("/health")  # when all are accepted
        watcher = threading.Thread(target=watch)
        watcher.start()
        began = time.perf_counter()
        with socket.create_connection(("127.0.0.1", server.port)) as connection, suppress(OSError):
            connection.sendall(b"GET /info HTTP/1.1\r\nHost: localhost\r\nX: ")
            for _ in range(161):
                connection.sendall(b"a" * 1_000_000)
                sent += 1_000_000
        seconds = time.perf_counter() - began
        time.sleep(1)
        ended.set()
        watcher.join()
    return {"header_bytes_sent": sent, "header_seconds": seconds, "health_max": max(health)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--model", default="en-small")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--sentences", type=int, default=12_000, help="maximum number of sentences to read"
    )
    parser.add_argument("--repeats", type=int, default=5, help="pairs of measurements")
    parser.add_argument("--half-load-seconds", type=float, default=30)
    parser.add_argument("--overload-seconds", type=float, default=90)
    parser.add_argument(
        "--quick", action="store_true", help="a few seconds for each part, to see whether it runs"
    )
    parser.add_argument(
        "--output", type=Path, help="result file; in benchmarks/results when not given"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sentences, arguments.repeats = min(arguments.sentences, 1200), 1
        arguments.half_load_seconds = arguments.overload_seconds = 3
    elif arguments.output is None:
        arguments.output = RESULTS / "serve.json"
    sentences = sentences_of(arguments)
    embedder = Embedder(arguments.model, dtype=arguments.dtype)
    with Server(arguments) as server:
        report: Figures = {
            "model": arguments.model,
            "dtype": arguments.dtype,
            "words_of_sentence": LENGTH,
        }
        report["throughput"] = throughput(server, embedder, sentences, arguments.repeats)
        rate = report["throughput"]["sentences_per_second"]
        report["long_requests"] = long_requests(server, sentences, 400 if arguments.quick else 2000)
        report["heads"] = heads(server)
        report["half_load"] = half_load(server, sentences, rate / 2, arguments.half_load_seconds)
        report["overload"] = overload(
            server, sentences, 10 * rate * LENGTH, arguments.overload_seconds
        )
    lines = (line for text in arguments.texts for line in read_lines(text))
    report["uses_in_20_mb"] = uses_of_words(arguments, ["play", "city"], lines, 20_000_000)
    dense = (sentence for sentence in map("{} the".format, cycle(sentences)))
    report["uses_in_every_line"] = uses_of_words(
        arguments, ["the"], islice(dense, 20_000), 2_000_000
    )
    shown = {
        name: {k: v for k, v in part.items() if k != "memory_mib"}
        if isinstance(part, dict)
        else part
        for name, part in report.items()
    }
    print(json.dumps(shown, indent=1))
    write_result(arguments.output, report)


if __name__ == "__main__":
    main()
