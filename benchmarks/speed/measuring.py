"""Shared by the speed benchmarks: peers and their workers, alternating measurements, the command
line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

BENCHMARKS = Path(__file__).parents[1]
WORKERS = BENCHMARKS / "peers"
sys.path += [str(BENCHMARKS), str(WORKERS)]
from make_models import make_models
from result_files import RESULTS as RESULTS
from result_files import write_result as write_result
from worker import MIB, peak_mib

Answer = dict[str, Any]
SIZES = ("small", "original")
# By instruction set: the variables that limit elmokit, PyTorch, oneDNN (also in TensorFlow) and MKL
# to it.
LIMITS = {
    "avx2": {
        "ELMOKIT_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }
}  # fmt: skip
# Largest accepted relative difference between the token layer's checksums of two sides with the
# same weights and text.
SAME_TOKENS = {"float32": 1e-4, "bfloat16": 1e-2, "int8": 3e-2}


@dataclass(frozen=True)
class Peer:
    """A side of a benchmark: environment (from peers/install.sh; None: elmokit's own), worker and
    kind of model.
    """

    environment: str | None
    worker: str
    model: str = "{size}"
    same_model: bool = True  # whether its token layer must equal elmokit's


PEERS = {
    "allennlp": Peer("allennlp", "allennlp_worker.py"),
    "bilm-tf": Peer("tf", "bilm_tf_worker.py"),
    "simple-elmo": Peer("tf", "simple_elmo_worker.py"),
    "elmoformanylangs": Peer("efml", "elmoformanylangs_worker.py", "{size}-efml", same_model=False),
    "torch-lstm": Peer(None, "torch_lstm_worker.py"),
}
ELMOKIT = Peer(None, "elmokit_worker.py")


# --- Workers --------------------------------------------------------------------------------------


class Worker:
    """A side of a benchmark in a process of its own; peers/worker.py defines the jobs."""

    def __init__(
        self, peer: Peer, size: str, arguments: argparse.Namespace, *options: object
    ) -> None:
        """Start the worker, with the directories and the text of `arguments`, and wait until it is
        ready.
        """
        self.name = peer.worker.removesuffix("_worker.py")
        python = sys.executable
        if peer.environment is not None:
            python = str(arguments.environments / peer.environment / "bin" / "python")
        model = arguments.models / peer.model.format(size=size)
        command = [
            python,
            WORKERS / peer.worker,
            "--model",
            model,
            "--text",
            arguments.text,
            *options,
        ]
        if arguments.sentences:
            command += ["--sentences", arguments.sentences]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        # TensorFlow's own Keras 3 lacks the layers that simple_elmo and bilm-tf call.
        environment = os.environ | {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        self._process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        self.ready = self._answer()

    def ask(self, **request: object) -> Answer:
        """The answer to one job; RuntimeError if it failed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = (
            json.loads(line) if line else {"error": f"it ended with status {self._process.wait()}"}
        )
        if "error" in answer:
            self._errors.seek(0)
            log = self._errors.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{self.name}: {answer['error']}\n{log}")
        return answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        if error is not None:
            self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def in_turns(sides: Sequence[tuple[Worker, Answer]], repeats: int) -> list[list[Answer]]:
    """Answers by side. The sides run their jobs in turn, `repeats` times, so that other load
    affects them equally.
    """
    answers: list[list[Answer]] = [[] for _ in sides]
    for _ in range(repeats):
        for found, (worker, job) in zip(answers, sides, strict=True):
            found.append(worker.ask(**job))
    return answers


def in_pairs(
    ours: Worker, theirs: Worker, repeats: int, our_job: Answer, their_job: Answer
) -> list[list[Answer]]:
    """Answers of two sides that run in alternation: elmokit's, then the peer's."""
    return in_turns([(ours, our_job), (theirs, their_job)], repeats)


def check_same_tokens(peer: Peer, dtype: str, ours: Answer, theirs: Answer) -> None:
    """RuntimeError if the two sides did not embed the same words with the same model."""
    if ours["words"] != theirs["words"]:
        raise RuntimeError(
            f"{peer.worker} embedded {theirs['words']} words, elmokit {ours['words']}"
        )
    if (
        peer.same_model
        and abs(ours["checksum"][0] / theirs["checksum"][0] - 1) > SAME_TOKENS[dtype]
    ):
        raise RuntimeError(
            f"{peer.worker} has another token layer: {theirs['checksum']}, elmokit "
            f"{ours['checksum']}"
        )


# --- Figures --------------------------------------------------------------------------------------


def peak_megabytes() -> int:
    """Peak resident memory of this process."""
    return round(peak_mib() * MIB / 1e6)


def words_per_second(answers: list[Answer]) -> float:
    return statistics.median(answer["words"] / answer["seconds"] for answer in answers)


def side_figures(worker: Worker, answers: list[Answer]) -> Answer:
    """Figures of one side for the result file: all times, the median speed, the largest peak
    memory.
    """
    return {
        "versions": worker.ready["versions"],
        "load_seconds": worker.ready["load_seconds"],
        "seconds": [answer["seconds"] for answer in answers],
        "words_per_second": words_per_second(answers),
        "peak_mib": max(answer["peak_mib"] for answer in answers),
    }


def ratios(ours: list[Answer], theirs: list[Answer]) -> Answer:
    """The speed of elmokit divided by that of the peer, for each pair of runs, and the median."""
    pairs = zip(ours, theirs, strict=True)
    found = [words_per_second([our]) / words_per_second([their]) for our, their in pairs]
    return {"pairs": found, "median": statistics.median(found)}


# --- The command line -----------------------------------------------------------------------------


def argument_parser(document: str | None, peers: tuple[str, ...]) -> argparse.ArgumentParser:
    """The arguments that every speed benchmark takes."""
    parser = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="tokenized, one sentence per line")
    parser.add_argument(
        "--environments", type=Path, required=True, help="directory that peers/install.sh creates"
    )
    parser.add_argument(
        "--models", type=Path, required=True, help="directory of random models, written if missing"
    )
    parser.add_argument("--sizes", nargs="+", default=SIZES, choices=("tiny", *SIZES))
    parser.add_argument("--peers", nargs="*", default=peers, choices=peers)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of measurements")
    parser.add_argument(
        "--sentences", type=int, help="number of sentences, from the beginning of the text"
    )
    parser.add_argument(
        "--limit-to", choices=LIMITS, help="instruction set for both sides and the roofline"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one pair and few sentences, to see whether it runs"
    )
    parser.add_argument(
        "--output", type=Path, help="result file; in benchmarks/results when not given"
    )
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the arguments. A quick run writes no result file unless `--output` names one."""
    arguments = parser.parse_args()
    limits = LIMITS.get(arguments.limit_to, {})
    if any(os.environ.get(name) != value for name, value in limits.items()):
        os.environ.update(limits)  # these are read at start-up, so this process starts again
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if arguments.quick:
        arguments.repeats, arguments.sentences = 1, arguments.sentences or 64
    elif arguments.output is None:
        suffix = f"_{arguments.limit_to}" if arguments.limit_to else ""
        arguments.output = RESULTS / f"{Path(parser.prog).stem}{suffix}.json"
    make_models(arguments.models, list(arguments.sizes))
    return arguments
