"""Words per second of embedding, from text to arrays of all layers: elmokit and each peer.

    python benchmarks/speed/embed_throughput.py TEXT --environments DIRECTORY --models DIRECTORY
        [--sizes original] [--dtypes bfloat16] [--peers bilm-tf] [--orders file] [--quick]

A peer first makes one pass with each batch size of 32, 64 and 128 sentences. With its best batch
size, the peer and elmokit in each of its number types then run in turn, in separate processes, each
with all cores while the others wait. Loading and two warm-up batches are not timed, and elmokit's
word cache is emptied before each pass. With the order `file` sentences are in the order of the
text, which is the usual case; with `sorted` they are sorted by length. The ratio is computed for
each pair of passes. The peak memory of a peer is that of its first pass with that batch size,
before it runs larger batches; both sides hold the arrays of the whole text. The roofline is the
least number of operations (roofline.py) at the best rate of matrix products of these shapes,
measured in the same run. Every combination replaces its own part of the result file.
"""

import argparse
from contextlib import ExitStack
from typing import Any

from measuring import (
    ELMOKIT,
    PEERS,
    Answer,
    Worker,
    argument_parser,
    check_same_tokens,
    in_turns,
    parse,
    ratios,
    side_figures,
    words_per_second,
    write_result,
)
from roofline import embedding_operations, product_rates, roofline
from sentences import first_sentences

from elmokit.config import BiLMConfig

BATCHES = (32, 64, 128)
DTYPES, ORDERS = ("bfloat16", "float32", "int8"), ("file", "sorted")


def at_each_batch(worker: Worker, batches: list[int], order: str) -> dict[int, Answer]:
    """One pass at each batch size, the smallest first, so that each peak is that of its own
    batch.
    """
    passes = {batch: worker.ask(job="embed", batch=batch, order=order) for batch in sorted(batches)}
    for batch, answer in passes.items():
        print(
            f"  batch {batch:3}: {words_per_second([answer]):8.0f} words/s, peak "
            f"{answer['peak_mib']:6.0f} MiB"
        )
    return passes


def compare(
    peer: str,
    theirs: Worker,
    passes: dict[int, Answer],
    order: str,
    ours: dict[str, Worker],
    repeats: int,
) -> dict[str, dict[str, Any]]:
    """Figures by dtype: passes of elmokit in each dtype, in turn with the peer at its best batch
    size.
    """
    batch = min(passes, key=lambda batch: passes[batch]["seconds"])
    our_job, their_job = ({"job": "embed", "batch": size, "order": order} for size in (None, batch))
    sides = [*((worker, our_job) for worker in ours.values()), (theirs, their_job)]
    *our_answers, their_answers = in_turns(sides, repeats)
    found = {}
    for (dtype, worker), answers in zip(ours.items(), our_answers, strict=True):
        check_same_tokens(PEERS[peer], dtype, answers[0], their_answers[0])
        found[dtype] = {
            "batch_of_peer": batch,
            "elmokit": side_figures(worker, answers),
            "peer": side_figures(theirs, their_answers) | {"peak_mib": passes[batch]["peak_mib"]},
            "ratio": ratios(answers, their_answers),
            "peer_at_each_batch": {
                size: {
                    "words_per_second": words_per_second([answer]),
                    "peak_mib": answer["peak_mib"],
                }
                for size, answer in passes.items()
            },
        }
    return found


def show(peer: str, dtype: str, found: dict[str, Any]) -> None:
    ours, theirs, limit = found["elmokit"], found["peer"], found["roofline"]
    print(
        f"  elmokit {dtype}: {ours['words_per_second']:.0f} words/s, peak {ours['peak_mib']:.0f} "
        f"MiB; {peer} (batch {found['batch_of_peer']}): {theirs['words_per_second']:.0f} words/s, "
        f"peak {theirs['peak_mib']:.0f} MiB; ratio {found['ratio']['median']:.2f} "
        f"({', '.join(f'{ratio:.2f}' for ratio in found['ratio']['pairs'])}); "
        f"{100 * limit['reached']:.0f} % of the roofline, {limit['words_per_second']:.0f} words/s",
        flush=True,
    )


def run_size(size: str, arguments: argparse.Namespace) -> None:
    config = BiLMConfig.preset(size)
    sentences = first_sentences(arguments.text, arguments.sentences)
    operations, words = embedding_operations(config, sentences), sum(map(len, sentences))
    limits = {
        dtype: roofline(operations, words, product_rates(config, dtype))
        for dtype in arguments.dtypes
    }
    for peer in arguments.peers:
        for order in arguments.orders:
            print(f"{size}, {order} order, {len(sentences)} sentences, {peer}", flush=True)
            with ExitStack() as stack:
                theirs = stack.enter_context(Worker(PEERS[peer], size, arguments))
                passes = at_each_batch(theirs, arguments.batches, order)
                ours = {
                    dtype: stack.enter_context(Worker(ELMOKIT, size, arguments, "--dtype", dtype))
                    for dtype in arguments.dtypes
                }
                by_type = compare(peer, theirs, passes, order, ours, arguments.repeats)
            for dtype, found in by_type.items():
                reached = found["elmokit"]["words_per_second"] / limits[dtype]["words_per_second"]
                found["roofline"] = {**limits[dtype], "reached": reached}
                found["text"] = {"sentences": len(sentences), "words": words}
                show(peer, dtype, found)
                write_result(arguments.output, found, f"{size} {dtype} {order} {peer}")


def main() -> None:
    parser = argument_parser(__doc__, tuple(PEERS))
    parser.add_argument(
        "--dtypes", nargs="+", default=DTYPES, choices=DTYPES, help="number types of elmokit"
    )
    parser.add_argument("--orders", nargs="+", default=ORDERS, choices=ORDERS)
    parser.add_argument(
        "--batches", nargs="+", type=int, default=BATCHES, help="batch sizes of the peers"
    )
    arguments = parse(parser)
    for size in arguments.sizes:
        run_size(size, arguments)


if __name__ == "__main__":
    main()
