"""Measure the vectors of a model directly, without a downstream task: senses, parts of speech,
sentiment.

    python benchmarks/quality/intrinsic.py --eval DIRECTORY [--model NAME_OR_PATH] [--label LABEL]
    [--only PART ...]

DIRECTORY holds the data sets, each in a folder: coarsewsd20, semcor (semcor.jsonl.zst),
wsd_all_words, ud_english_ewt, sst. `--states carry` starts sentences from the state that the one
before left, instead of zeros.

Every part is written to the results as soon as it is finished, under the model's label.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from result_files import RESULTS, write_result
from sense_uses import compare_apples, nearest_uses, sense_pairs
from word_senses import all_words, coarse_wsd

from elmokit.analysis.probe import probe_files
from elmokit.embed import Embedder

NEIGHBORS = (1, 5)  # uses that vote for a sense; 5 is the best of TRIED on the development set
TRIED = (1, 3, 5, 9, 15)
# the test set on which settings are chosen, as by Raganato et al. (2017)
DEVELOPMENT = "semeval2007.data.xml"
Figures = dict[str, Any]


# --- The parts ------------------------------------------------------------------------------------


class Setup(NamedTuple):
    """A model, the directories of the data, and the states that sentences start from."""

    embedder: Embedder
    eval: Path
    wordnet: Path | None
    states: list[str]


def coarsewsd(setup: Setup) -> Figures:
    data = setup.eval / "coarsewsd20"
    return {state: coarse_wsd(data, setup.embedder, None, state) for state in setup.states}


def coarsewsd_uses(setup: Setup) -> Figures:
    data = setup.eval / "coarsewsd20"
    return {
        state: {str(k): coarse_wsd(data, setup.embedder, k, state) for k in NEIGHBORS}
        for state in setup.states
    }


def wsd_of(setup: Setup, test: Path, k: int | None, state: str) -> Figures:
    """Figures of a test set with k uses that vote; None: the nearest centroid."""
    training = setup.eval / "semcor" / "semcor.jsonl.zst"
    return all_words(test, training, setup.embedder, setup.wordnet, k, state)


def wsd(setup: Setup) -> Figures:
    test = setup.eval / "wsd_all_words"
    return {state: wsd_of(setup, test, None, state) for state in setup.states}


def wsd_uses(setup: Setup) -> Figures:
    test = setup.eval / "wsd_all_words"
    return {
        state: {str(k): wsd_of(setup, test, k, state) for k in NEIGHBORS} for state in setup.states
    }


def wsd_development(setup: Setup) -> Figures:
    test = setup.eval / "wsd_all_words" / DEVELOPMENT
    return {state: {str(k): wsd_of(setup, test, k, state) for k in TRIED} for state in setup.states}


def probe(setup: Setup) -> Figures:
    names = ("train.reassembled", "dev", "test")
    files = [setup.eval / "ud_english_ewt" / f"en_ewt-ud-{name}.conllu" for name in names]
    return {state: asdict(probe_files(*files, setup.embedder, state)) for state in setup.states}


def pairs(setup: Setup) -> Figures:
    return {state: sense_pairs(setup.embedder, state) for state in setup.states}


def uses(setup: Setup) -> Figures:
    return {state: nearest_uses(setup.embedder, state) for state in setup.states}


def apples(setup: Setup) -> Figures:
    return {state: compare_apples(setup.embedder, state) for state in setup.states}


def sst2(setup: Setup) -> Figures:
    from sentiment import mean_vectors, read_sst2, tf_idf

    sentences, labels = read_sst2(setup.eval / "sst")
    found = {
        state: mean_vectors(setup.embedder, state, sentences, labels) for state in setup.states
    }
    return found | {"tf-idf": tf_idf(sentences, labels)}


PARTS: dict[str, Callable[[Setup], Figures]] = {
    part.__name__: part
    for part in (
        *(uses, apples, pairs, coarsewsd, coarsewsd_uses, sst2),
        *(wsd, wsd_uses, wsd_development, probe),
    )
}


# --- The command ----------------------------------------------------------------------------------


def arguments_of(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", help="directory or name; the bundled English model when not given"
    )
    parser.add_argument(
        "--label", help="the model's name in the results; that of its directory when not given"
    )
    parser.add_argument("--eval", type=Path, required=True, help="directory of the data sets")
    parser.add_argument(
        "--wordnet", type=Path, help="index.sense of WordNet 3.0, or its directory: back-off of wsd"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=list(PARTS),
        metavar="PART",
        help=", ".join(PARTS),
    )
    parser.add_argument("--states", nargs="+", choices=("zeros", "carry"), default=["zeros"])
    parser.add_argument(
        "--dtype", default="float32", help="number type of the computation, as in Embedder"
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "intrinsic.json")
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    arguments = arguments_of(argv)
    embedder = Embedder(arguments.model, dtype=arguments.dtype)
    setup = Setup(embedder, arguments.eval, arguments.wordnet, arguments.states)
    model = {"model": arguments.model or "en-small", "fingerprint": embedder.fingerprint()}
    label = arguments.label or Path(model["model"]).name
    for name in arguments.only:
        started = time.perf_counter()
        by_state = PARTS[name](setup)
        seconds = round(time.perf_counter() - started, 1)
        figures = {**model, "dtype": arguments.dtype, "seconds": seconds, "by state": by_state}
        write_result(arguments.output, figures, label, name)
        print(f"{name}: {seconds} s\n{json.dumps(by_state, indent=1)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
