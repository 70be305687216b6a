"""Residues per second of embedding proteins, compared with AllenNLP; the effect of bio_embeddings'
warm-up.

    python benchmarks/speed/proteins.py --environments DIRECTORY --models DIRECTORY [--sequences
    2000] [--quick]

The weights are random, in the layout of SeqVec, which is that of the published ELMo. The sequences
are random too, with lengths distributed as in UniProt. There are two parts, which are stored
separately in the result file:

- speed: from residues to one vector for each sequence (the mean over residues of the sum of the
  layers). elmokit, in each of its number types, and AllenNLP, called as in SeqVec's script, run in
  turn. AllenNLP 2 no longer has the class `ElmoEmbedder`, whose `embed_batch` that script uses; its
  calls of the same biLM are repeated here, with the shortest sequences first, in batches of 15,000
  residues.
- warm_up: the distance between the vectors of a sequence after bio_embeddings' four warm-up rounds
  and those computed from a zero state, by position. It is the length of the difference relative to
  that of the vector, averaged over the sequences.
"""

import argparse
import json
import math
import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from measuring import (
    ELMOKIT,
    PEERS,
    RESULTS,
    Worker,
    in_turns,
    make_models,
    ratios,
    side_figures,
    write_result,
)

from elmokit.compat.seqvec import SeqVecEmbedder

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
MEDIAN_LENGTH, LOG_DEVIATION, LONGEST = (
    294,
    0.68,
    35_213,
)  # of Swiss-Prot, about; the longest is mouse titin
POSITIONS = (0, 10, 30, 100, 300)
# Accepted difference of the checksums: AllenNLP carries the states of its rows, which changes the
# start of sequences.
SAME_SIZE = 0.05


def random_proteins(count: int, seed: int = 1) -> list[str]:
    """Sequences with log-normal lengths, the shortest first, since workers warm up with the first
    64.
    """
    draw = random.Random(seed)
    drawn = (
        round(draw.lognormvariate(math.log(MEDIAN_LENGTH), LOG_DEVIATION)) for _ in range(count)
    )
    lengths = sorted(min(LONGEST, max(2, length)) for length in drawn)
    return ["".join(draw.choices(RESIDUES, k=length)) for length in lengths]


# --- Speed ----------------------------------------------------------------------------------------


def measure_speed(arguments: argparse.Namespace, size: str) -> None:
    with ExitStack() as stack:
        ours = [
            stack.enter_context(Worker(ELMOKIT, size, arguments, "--dtype", dtype))
            for dtype in arguments.dtypes
        ]
        theirs = [
            stack.enter_context(Worker(PEERS[peer], size, arguments)) for peer in arguments.peers
        ]
        sides = [(worker, {"job": "proteins"}) for worker in (*ours, *theirs)]
        answers = in_turns(sides, arguments.repeats)
    of_peers = answers[len(ours) :]
    for dtype, worker, own in zip(arguments.dtypes, ours, answers, strict=False):
        figures: dict[str, Any] = {
            "sequences": arguments.sequences,
            "elmokit": side_figures(worker, own),
        }
        for name, peer, other in zip(arguments.peers, theirs, of_peers, strict=True):
            if abs(own[0]["checksum"][0] / other[0]["checksum"][0] - 1) > SAME_SIZE:
                raise RuntimeError(
                    f"{name} has other vectors: {other[0]['checksum']}, elmokit "
                    f"{own[0]['checksum']}"
                )
            figures[name] = {"peer": side_figures(peer, other), "ratio": ratios(own, other)}
        print(f"{size} {dtype}: {json.dumps(figures)}", flush=True)
        write_result(arguments.output, figures, "speed", size, dtype)


# --- The old warm-up ------------------------------------------------------------------------------


def measure_warm_up(arguments: argparse.Namespace, size: str) -> None:
    model = arguments.models / size
    files = {"options_file": model / "options.json", "weights_file": model / "weights.hdf5"}
    draw = random.Random(3)
    sequences = [
        "".join(draw.choices(RESIDUES, k=max(POSITIONS) + 1))
        for _ in range(arguments.warm_up_sequences)
    ]
    fresh, distances = SeqVecEmbedder(**files, device="cpu"), []
    for sequence in sequences:
        warm, cold = (
            SeqVecEmbedder(4, "cpu", **files).embed(sequence).sum(0),
            fresh.embed(sequence).sum(0),
        )
        distances.append(np.linalg.norm(warm - cold, axis=1) / np.linalg.norm(cold, axis=1))
    means = np.mean(distances, axis=0)
    # The backward direction starts at the end, so that both ends differ.
    found = {str(position): float(means[position]) for position in POSITIONS} | {
        "all": float(means.mean())
    }
    print(f"{size} warm-up: {found}", flush=True)
    write_result(arguments.output, {"relative_difference": found}, "warm_up", size)


# --- The command line -----------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environments", type=Path, help="directory that peers/install.sh creates")
    parser.add_argument(
        "--models", type=Path, required=True, help="directory of random models, written if missing"
    )
    parser.add_argument(
        "--sizes", nargs="+", default=["original"], choices=("tiny", "small", "original")
    )
    parser.add_argument("--peers", nargs="*", default=["allennlp"], choices=["allennlp"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--sequences", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warm-up-sequences", type=int, default=10)
    parser.add_argument(
        "--quick", action="store_true", help="few short sequences, to see whether it runs"
    )
    parser.add_argument(
        "--output", type=Path, help="result file; in benchmarks/results when not given"
    )
    arguments = parser.parse_args()
    if arguments.peers and arguments.environments is None:
        parser.error("--environments is required for the peers: give it, or --peers without a name")
    if arguments.quick:
        arguments.repeats, arguments.sequences, arguments.warm_up_sequences = 1, 8, 1
    elif arguments.output is None:
        arguments.output = RESULTS / "proteins.json"
    make_models(arguments.models, arguments.sizes)
    arguments.sentences = arguments.sequences
    with tempfile.TemporaryDirectory() as directory:
        arguments.text = Path(directory) / "proteins.txt"
        lines = (" ".join(sequence) for sequence in random_proteins(arguments.sequences))
        arguments.text.write_text("\n".join(lines) + "\n", encoding="utf-8")
        for size in arguments.sizes:
            measure_speed(arguments, size)
            measure_warm_up(arguments, size)


if __name__ == "__main__":
    main()
