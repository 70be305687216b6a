"""Latency of one sentence of 20 words, from text to arrays of all layers: elmokit and each peer.

    python benchmarks/speed/latency.py TEXT --environments DIRECTORY --models DIRECTORY
        [--sizes original] [--dtypes int8] [--peers bilm-tf] [--quick]

Each side runs in a process of its own, in alternation. A measurement is the median over many
different sentences. elmokit's word cache is emptied before each; the state after the first
boundary, which is computed once per model, is kept.
"""

import argparse
from typing import Any

from measuring import (
    ELMOKIT,
    PEERS,
    Worker,
    argument_parser,
    in_pairs,
    parse,
    ratios,
    side_figures,
    write_result,
)

LENGTH = 20
DTYPES = ("bfloat16", "float32", "int8")


def compare(
    peer: str, ours: Worker, theirs: Worker, arguments: argparse.Namespace
) -> dict[str, Any]:
    job = {"job": "one_sentence", "length": LENGTH, "calls": arguments.calls}
    our_answers, their_answers = in_pairs(ours, theirs, arguments.repeats, job, job)
    return {
        "elmokit": side_figures(ours, our_answers),
        "peer": side_figures(theirs, their_answers),
        "ratio": ratios(our_answers, their_answers),
    }


def run_size(size: str, arguments: argparse.Namespace) -> None:
    for dtype in arguments.dtypes:
        for peer in arguments.peers:
            with (
                Worker(PEERS[peer], size, arguments) as theirs,
                Worker(ELMOKIT, size, arguments, "--dtype", dtype) as ours,
            ):
                found = compare(peer, ours, theirs, arguments)
            ours_ms, theirs_ms = (
                1000 * LENGTH / found[side]["words_per_second"] for side in ("elmokit", "peer")
            )
            ratio = found["ratio"]["median"]
            print(
                f"{size}: elmokit {dtype} {ours_ms:.2f} ms, {peer} {theirs_ms:.2f} ms, ratio "
                f"{ratio:.2f}",
                flush=True,
            )
            write_result(arguments.output, found, f"{size} {dtype} {peer}")


def main() -> None:
    parser = argument_parser(__doc__, tuple(PEERS))
    parser.add_argument(
        "--dtypes", nargs="+", default=DTYPES, choices=DTYPES, help="number types of elmokit"
    )
    parser.add_argument(
        "--calls", type=int, default=50, help="number of sentences in one measurement"
    )
    arguments = parse(parser)
    if arguments.quick:
        arguments.calls = 3
    for size in arguments.sizes:
        run_size(size, arguments)


if __name__ == "__main__":
    main()
