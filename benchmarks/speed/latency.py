"""Latency of one sentence of 20 words, from text to arrays of all layers: elmokit and each peer.

    python benchmarks/speed/latency.py TEXT --environments DIRECTORY --models DIRECTORY
        [--sizes original] [--dtypes int8] [--peers bilm-tf] [--quick]

Each side runs in a process of its own, in alternation. A measurement is the median over many different sentences.
elmokit's word cache is emptied before each; the state after the first boundary, which is computed once per model, is
kept. The roofline assumes the best measured rate of products of one row, which is limited by memory, for the recurrent
operations, and that of about 20 rows for the others.
"""

import argparse
from typing import Any

from measuring import ELMOKIT, PEERS, Worker, argument_parser, in_pairs, parse, ratios, side_figures, write_result
from roofline import embedding_operations, product_rates, recurrent_operations

from elmokit.config import BiLMConfig
from elmokit.fs.reading import read_lines

LENGTH = 20
DTYPES = ("bfloat16", "float32", "int8")


def one_sentence(arguments: argparse.Namespace) -> list[str]:
    """The first sentence that is long enough, cut to `LENGTH` words."""
    lines = (line.split() for line in read_lines(arguments.text))
    return next(words[:LENGTH] for words in lines if len(words) >= LENGTH)


def compare(peer: str, ours: Worker, theirs: Worker, arguments: argparse.Namespace) -> dict[str, Any]:
    job = {"job": "one_sentence", "length": LENGTH, "calls": arguments.calls}
    our_answers, their_answers = in_pairs(ours, theirs, arguments.repeats, job, job)
    return {
        "elmokit": side_figures(ours, our_answers),
        "peer": side_figures(theirs, their_answers),
        "ratio": ratios(our_answers, their_answers),
    }


def least_time(config: BiLMConfig, sentence: list[str], dtype: str) -> dict[str, float]:
    """The roofline, where each step makes recurrent products of one row."""
    all_operations = embedding_operations(config, [sentence])
    steps = 2 * config.lstm.num_layers * LENGTH
    recurrent = recurrent_operations(config, steps)
    by_row, together = (max(product_rates(config, dtype, rows).values()) for rows in ((1,), (16, 32)))
    seconds = recurrent / by_row + (all_operations - recurrent) / together
    return {
        "operations": all_operations,
        "recurrent_operations": recurrent,
        "one_row_operations_per_second": by_row,
        "more_rows_operations_per_second": together,
        "words_per_second": LENGTH / seconds,
    }


def milliseconds(words_per_second: float) -> float:
    return 1000 * LENGTH / words_per_second


def run_size(size: str, arguments: argparse.Namespace) -> None:
    config, sentence = BiLMConfig.preset(size), one_sentence(arguments)
    for dtype in arguments.dtypes:
        limit = least_time(config, sentence, dtype)
        for peer in arguments.peers:
            with (
                Worker(PEERS[peer], size, arguments) as theirs,
                Worker(ELMOKIT, size, arguments, "--dtype", dtype) as ours,
            ):
                found = compare(peer, ours, theirs, arguments)
            found["roofline"] = limit
            speeds = [found[side]["words_per_second"] for side in ("elmokit", "peer", "roofline")]
            print(
                "{}: elmokit {} {:.2f} ms, {} {:.2f} ms, ratio {:.2f}; roofline {:.2f} ms".format(
                    size, dtype, milliseconds(speeds[0]), peer, milliseconds(speeds[1]), found["ratio"]["median"],
                    milliseconds(speeds[2]),
                ), flush=True,
            )  # fmt: skip
            write_result(arguments.output, found, f"{size} {dtype} {peer}")


def main() -> None:
    parser = argument_parser(__doc__, tuple(PEERS))
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES, help="number types of elmokit")
    parser.add_argument("--calls", type=int, default=50, help="number of sentences in one measurement")
    arguments = parse(parser)
    if arguments.quick:
        arguments.calls = 3
    for size in arguments.sizes:
        run_size(size, arguments)


if __name__ == "__main__":
    main()
