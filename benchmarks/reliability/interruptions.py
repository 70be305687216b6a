"""Interrupt computation at random moments, and fork while it runs: are later results of the process
still correct?

    python benchmarks/reliability/interruptions.py [--times 200] [--forks 100] [--sanitize]

Each kind of call runs in processes of its own, with 2 and with 4 threads. A timer interrupts the
call as Ctrl-C would; the same call, not interrupted, must then give the same result as before.
Forks happen while another thread embeds, and the child process embeds too. With --sanitize the
kernels are built with AddressSanitizer (GCC), which ends a process at the first access to freed
memory; forks are left out, since the sanitizer's own allocator does not survive them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

BENCHMARKS = Path(__file__).parents[1]
THREADS = (2, 4)
CHILD_SECONDS = 30  # a forked child that takes longer is considered to hang

# --- One process ----------------------------------------------------------------------------------


def texts(count: int) -> list[list[str]]:
    draw = random.Random(0)
    return [
        [
            draw.choice(("apple", "play", "bank", "cell")) + str(k % 50)
            for k in range(1, draw.randint(2, 40))
        ]
        for _ in range(count)
    ]


def embedding_call(kind: str) -> Callable[[], np.ndarray]:
    import elmokit

    embedder, sentences = elmokit.Embedder(device="cpu"), texts(150)

    def run() -> np.ndarray:
        embedder.clear_word_cache()
        if kind == "embed_stream":
            return next(embedder.embed_stream(sentences * 3))[0]  # the generator is abandoned
        return (
            embedder.encode(sentences)
            if kind == "encode"
            else np.concatenate(embedder.embed(sentences))
        )

    return run


def elmo_call(freeze: bool) -> Callable[[], np.ndarray]:
    import torch

    import elmokit

    model = elmokit.load()
    elmo, ids = (
        elmokit.Elmo(model.bilm, dropout=0.0, freeze=freeze),
        elmokit.batch_to_ids(texts(40)),
    )

    def run() -> np.ndarray:
        (mixed,) = elmo(ids).representations
        learned = [parameter for parameter in elmo.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(mixed.square().mean(), learned)
        return np.concatenate(
            [mixed.detach().numpy().ravel(), *(each.numpy().ravel() for each in gradients)]
        )

    return run


CALLS: dict[str, Callable[[], Callable[[], np.ndarray]]] = {
    "embed": lambda: embedding_call("embed"),
    "encode": lambda: embedding_call("encode"),
    "embed_stream": lambda: embedding_call("embed_stream"),
    "Elmo, frozen": lambda: elmo_call(freeze=True),
    "Elmo, fine-tuned": lambda: elmo_call(freeze=False),
}


def interrupt(kind: str, threads: int, times: int) -> dict[str, int]:
    """The number of interrupted calls, and of those after which a repeated call gave another
    result.
    """
    import torch

    torch.set_num_threads(threads)
    call, draw = CALLS[kind](), random.Random(threads)
    call()
    started = time.perf_counter()
    expected = call()
    seconds = time.perf_counter() - started
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    counts = {"interrupted": 0, "different": 0}
    while counts["interrupted"] < times:
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.0005, seconds))
            call()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            counts["interrupted"] += 1
            counts["different"] += not np.array_equal(call(), expected)
    return counts


def fork(times: int) -> dict[str, int]:
    """The number of children forked while another thread embeds, and of those that gave the same
    vectors in time.
    """
    import torch

    import elmokit

    torch.set_num_threads(2)
    embedder, stop, sentences = elmokit.Embedder(device="cpu"), threading.Event(), texts(10)
    expected = embedder.embed(sentences)

    def work() -> None:
        while not stop.is_set():
            embedder.clear_word_cache()
            embedder.embed(sentences)

    thread = threading.Thread(target=work)
    thread.start()
    counts = {"forked": times, "ended": 0}
    for _ in range(times):
        if (child := os.fork()) == 0:
            signal.alarm(CHILD_SECONDS)
            os._exit(not all(map(np.array_equal, embedder.embed(sentences), expected)))
        counts["ended"] += os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()
    return counts


# --- All of them ----------------------------------------------------------------------------------


def run_process(environment: dict[str, str], *arguments: str) -> dict:
    """The output of a process of this script, parsed; if it crashed, its errors are printed."""
    command = [sys.executable, __file__, *arguments]
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    if found.returncode:
        print(found.stderr, file=sys.stderr)
        return {"crashed": found.returncode}
    return json.loads(found.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--times", type=int, default=200, help="interruptions in total, over all kinds of calls"
    )
    parser.add_argument("--forks", type=int, default=100)
    parser.add_argument(
        "--sanitize", action="store_true", help="build the kernels with AddressSanitizer"
    )
    parser.add_argument(
        "--one", nargs=3, metavar=("KIND", "THREADS", "TIMES"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.one:
        kind, threads, times = arguments.one
        warnings.simplefilter("ignore")
        print(
            json.dumps(
                fork(int(times)) if kind == "fork" else interrupt(kind, int(threads), int(times))
            )
        )
        return 0
    sys.path += [str(BENCHMARKS), str(BENCHMARKS.parent / "tools")]
    from result_files import RESULTS, write_result
    from sanitized import sanitized

    each = -(-arguments.times // (len(CALLS) * len(THREADS)))
    results: dict[str, dict] = {}
    with TemporaryDirectory() as folder:
        environment = sanitized(Path(folder)) if arguments.sanitize else dict(os.environ)
        for kind in CALLS:
            for threads in THREADS:
                name = f"{kind}, {threads} threads"
                results[name] = run_process(environment, "--one", kind, str(threads), str(each))
                print(f"{name:30} {results[name]}", flush=True)
        if not arguments.sanitize:
            results["forks"] = run_process(environment, "--one", "fork", "2", str(arguments.forks))
            print(f"{'forks':30} {results['forks']}", flush=True)
    write_result(
        RESULTS / "interruptions.json",
        {"calls": results},
        "sanitized" if arguments.sanitize else "plain",
    )
    is_right = all(
        "crashed" not in found
        and not found.get("different")
        and found.get("ended") == found.get("forked")
        for found in results.values()
    )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
