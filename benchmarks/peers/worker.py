"""One side of a speed benchmark, in a process of its own: it loads a model and runs the jobs it
receives.

    python WORKER.py --model DIRECTORY --text FILE [--sentences N] [--dtype D] [--training --vocab
    FILE]

FILE has one tokenized sentence per line. The worker warms up with two batches (unless it trains)
and prints {"ready": true, ...}. Then it reads jobs, one JSON object per line, and answers each with
one line:

    {"job": "embed", "batch": 64, "order": "file"}      one pass, from text to all layers
    {"job": "one_sentence", "length": 20, "calls": 50}  the median time of 50 calls of 20 words
    {"job": "proteins"}                                 one vector for each line of residues
    {"job": "train", "steps": 10}                        10 training steps (only with --training)

An answer has "seconds", "words" (of the text; in training, the positions of the steps in one
direction), "peak_mib" (the peak resident memory of the job) and "checksum" (the mean absolute value
of a component in each layer, or null). A job that fails is answered with {"error": ...}. This
module only needs NumPy, since it runs in every peer's environment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

import numpy as np

Sentences = Sequence[Sequence[str]]
Request = dict[str, Any]
Answer = dict[str, Any]

MIB = 1 << 20
WARM_UP_BATCH = 32
BATCH_RESIDUES = 15_000  # as in SeqVec's script
# The unit of ru_maxrss: kilobytes on Linux, bytes on macOS.
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Side:
    """The interface that each peer implements: embedding, training if it can, and the packages that
    it uses.
    """

    packages: tuple[str, ...] = ("numpy",)

    def embed(self, sentences: Sentences, batch: int | None) -> list[np.ndarray]:
        """Sentences (lists of words), `batch` at a time -> a separate array (L+1, T, 2D) for
        each.
        """
        raise NotImplementedError

    def embed_proteins(self, sequences: Sentences) -> np.ndarray:
        """Proteins (lists of residues) -> (N, 2D): the mean over residues of the sum of the layers.

        As in SeqVec's script (mheinzinger/SeqVec, seqvec.py): shortest first, in batches of about
        `BATCH_RESIDUES`.
        """
        vectors: list[np.ndarray | None] = [None] * len(sequences)
        for group in residue_batches(sequences):
            layers = self.embed([sequences[number] for number in group], len(group))
            for number, array in zip(group, layers, strict=True):
                vectors[number] = array.sum(axis=0).mean(axis=0)
        return np.stack(vectors)

    def forget(self) -> None:
        """Drop cached results of earlier words. Called before each pass, and not timed."""

    def train(self, steps: int) -> tuple[float, int]:
        """Take `steps` steps -> the seconds, and the number of positions in one direction."""
        raise ValueError("this side does not train")


def batches(sentences: Sentences, size: int | None) -> Iterator[Sentences]:
    """Consecutive groups of `size` sentences; all at once if it is None."""
    size = size or len(sentences)
    for begin in range(0, len(sentences), size):
        yield sentences[begin : begin + size]


def residue_batches(sequences: Sentences) -> Iterator[list[int]]:
    """The indices of the sequences, shortest first, in SeqVec's batches: a long sequence ends its
    batch.
    """
    group: list[int] = []
    residues = 0
    for number in sorted(range(len(sequences)), key=lambda number: len(sequences[number])):
        group.append(number)
        residues += len(sequences[number])
        if residues > BATCH_RESIDUES or len(sequences[number]) > BATCH_RESIDUES / 2:
            yield group
            group, residues = [], 0
    if group:
        yield group


# --- Measuring ------------------------------------------------------------------------------------


def forget_peak() -> None:
    """Reset the peak memory, if the system can."""
    with contextlib.suppress(OSError):  # otherwise the peak is that of all jobs so far
        Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT / MIB
    return (
        next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        / 1024
    )


def checksum(arrays: list[np.ndarray]) -> list[float]:
    """The mean absolute value of a component in each layer; that of the first does not depend on
    the state.
    """
    total = np.sum([np.abs(array).sum(axis=(1, 2), dtype=np.float64) for array in arrays], axis=0)
    return (total / sum(array[0].size for array in arrays)).tolist()


def check_shapes(sentences: Sentences, arrays: list[np.ndarray]) -> None:
    expected, found = [len(words) for words in sentences], [array.shape[1] for array in arrays]
    if expected != found:
        raise ValueError(f"sentences of {expected[:9]} ... words gave arrays of {found[:9]} ...")


def embed_job(side: Side, sentences: Sentences, request: Request) -> Answer:
    if request.get("order") == "sorted":
        sentences = sorted(sentences, key=len)
    side.forget()
    forget_peak()
    start = time.perf_counter()
    arrays = side.embed(sentences, request.get("batch"))
    seconds = time.perf_counter() - start
    peak = peak_mib()
    check_shapes(sentences, arrays)
    words = sum(map(len, sentences))
    return {"seconds": seconds, "words": words, "peak_mib": peak, "checksum": checksum(arrays)}


def one_sentence_job(side: Side, sentences: Sentences, request: Request) -> Answer:
    length = request["length"]
    asked = [words[:length] for words in sentences if len(words) >= length]
    if not asked:
        raise ValueError(f"no sentence of the text has {length} words")
    forget_peak()
    taken = []
    for call in range(request["calls"]):
        side.forget()
        start = time.perf_counter()
        side.embed([asked[call % len(asked)]], 1)
        taken.append(time.perf_counter() - start)
    return {
        "seconds": statistics.median(taken),
        "words": length,
        "peak_mib": peak_mib(),
        "checksum": None,
    }


def proteins_job(side: Side, sentences: Sentences, request: Request) -> Answer:
    side.forget()
    forget_peak()
    start = time.perf_counter()
    vectors = side.embed_proteins(sentences)
    seconds = time.perf_counter() - start
    if len(vectors) != len(sentences):
        raise ValueError(f"{len(sentences)} proteins gave {len(vectors)} vectors")
    words, size = sum(map(len, sentences)), float(np.abs(vectors).mean(dtype=np.float64))
    return {"seconds": seconds, "words": words, "peak_mib": peak_mib(), "checksum": [size]}


def train_job(side: Side, sentences: Sentences, request: Request) -> Answer:
    forget_peak()
    seconds, positions = side.train(request["steps"])
    return {"seconds": seconds, "words": positions, "peak_mib": peak_mib(), "checksum": None}


JOBS = {
    "embed": embed_job,
    "one_sentence": one_sentence_job,
    "proteins": proteins_job,
    "train": train_job,
}


# --- Serving --------------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument(
        "--sentences", type=int, help="number of sentences, from the beginning; all when not given"
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--training", action="store_true", help="prepare for training instead of embedding"
    )
    parser.add_argument(
        "--vocab",
        type=Path,
        help="vocabulary of the softmax, one word per line, most frequent first",
    )
    parser.add_argument("--samples", type=int, default=8192, help="negative samples of the softmax")
    parser.add_argument("--batch", type=int, default=128, help="rows in training")
    parser.add_argument("--unroll", type=int, default=20, help="steps of a window in training")
    return parser.parse_args()


def private_stdout() -> TextIO:
    """The real standard output, reserved for answers; the output of libraries goes to standard
    error.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def versions(packages: tuple[str, ...]) -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def serve(load: Callable[[argparse.Namespace], Side]) -> None:
    """Run a worker, whose `Side` is created by `load(arguments)`."""
    answers = private_stdout()

    def say(answer: Answer) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    arguments = parse()
    with arguments.text.open(encoding="utf-8") as lines:
        sentences = [words for line in lines if (words := line.split())][: arguments.sentences]
    start = time.perf_counter()
    side = load(arguments)
    seconds = time.perf_counter() - start
    if not arguments.training:
        for group in list(batches(sentences, WARM_UP_BATCH))[:2]:
            side.embed(group, WARM_UP_BATCH)
    say({"ready": True, "load_seconds": seconds, "versions": versions(side.packages)})
    for line in sys.stdin:
        try:
            request = json.loads(line)
            say(JOBS[request["job"]](side, sentences, request))
        except Exception as error:
            traceback.print_exc()
            say({"error": f"{type(error).__name__}: {error}"})
