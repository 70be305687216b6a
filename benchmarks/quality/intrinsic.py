"""Measure the vectors of a model directly, without a downstream task: senses, parts of speech, sentiment, states.

    python benchmarks/quality/intrinsic.py --eval DIRECTORY [--model NAME_OR_PATH] [--label LABEL] [--only PART ...]

DIRECTORY holds the data sets, each in a folder: coarsewsd20, semcor (semcor.jsonl.zst), wsd_all_words,
ud_english_ewt, sst. Each part runs with every start state that makes sense for it. The sentences of CoarseWSD-20 and
SST-2, for example, stand alone, so no state can be carried there. If a model has no warm state of its own, one is
computed from --corpus, which is tokenized text; without --corpus, "warm" is left out. The part "state" measures the
perplexity of the language model and needs --heldout, tokenized text.

Every part is written to the results as soon as it is finished, under the model's label; a table shows all models in
the file.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line sets it; before torch is imported

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from intrinsic_table import table  # noqa: E402
from result_files import RESULTS, write_result  # noqa: E402
from sense_uses import compare_apples, nearest_uses  # noqa: E402
from sentence_starts import perplexity_by_place  # noqa: E402

from elmokit.analysis.probe import probe_files  # noqa: E402
from elmokit.analysis.wsd import all_words_wsd, coarse_wsd  # noqa: E402
from elmokit.checkpoints.loading import load  # noqa: E402
from elmokit.embed.embedder import Embedder  # noqa: E402
from elmokit.fs.reading import read_lines  # noqa: E402
from elmokit.nn.bilm import BiLMState  # noqa: E402

WARM_WORDS, WARM_ROWS = 20_000, 32
NEIGHBORS = (1, 5)  # uses that vote for a sense; 5 is the best of TRIED on the development set
TRIED = (1, 3, 5, 9, 15)
DEVELOPMENT = "semeval2007.data.xml"  # the test set on which settings are chosen, as by Raganato et al. (2017)
Figures = dict[str, Any]


# --- The warm state ----------------------------------------------------------------------------------------------


def warm_state(embedder: Embedder, corpus: Path) -> BiLMState:
    """The mean state of 32 rows after they have read 20,000 words of a text."""
    sentences, words = [], 0
    for line in read_lines(corpus):
        sentences.append(line.split())
        words += len(sentences[-1])
        if words >= WARM_WORDS:
            break
    after = embedder.embed(sentences, "top", "carry", WARM_ROWS).state
    assert after is not None
    return BiLMState(after.h.mean(dim=2, keepdim=True), after.c.mean(dim=2, keepdim=True))


# --- The parts ---------------------------------------------------------------------------------------------------


class Setup:
    """A model, the directories of the data, and the requested start states."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.name = arguments.model
        self.embedder = Embedder.load(arguments.model, dtype=arguments.dtype)
        self.model = {"model": arguments.model or "en-small", "fingerprint": self.embedder.fingerprint()}
        self.eval, self.heldout, self.wordnet = arguments.eval, arguments.heldout, arguments.wordnet
        if self.embedder.model.warm_state is None and arguments.corpus is not None:
            self.embedder.model.warm_state = warm_state(self.embedder, arguments.corpus)
        has_warm = self.embedder.model.warm_state is not None
        self._states = [state for state in arguments.states if state != "warm" or has_warm]

    def states(self, carry: bool) -> Iterator[str]:
        """The requested start states that make sense for a part."""
        return (state for state in self._states if carry or state != "carry")


def coarsewsd(setup: Setup) -> Figures:
    directory = setup.eval / "coarsewsd20"
    return {state: asdict(coarse_wsd(directory, setup.embedder, state)) for state in setup.states(carry=False)}


def wsd(setup: Setup) -> Figures:
    test, training = setup.eval / "wsd_all_words", setup.eval / "semcor" / "semcor.jsonl.zst"
    return {
        state: asdict(all_words_wsd([test], training, setup.wordnet, setup.embedder, state))
        for state in setup.states(carry=True)
    }


def coarsewsd_uses(setup: Setup) -> Figures:
    directory = setup.eval / "coarsewsd20"
    return {
        state: {str(k): asdict(coarse_wsd(directory, setup.embedder, state, neighbors=k)) for k in NEIGHBORS}
        for state in setup.states(carry=False)
    }


def all_words_uses(setup: Setup, test: Path, numbers: tuple[int, ...]) -> Figures:
    """Figures of a test set by state and by the number of uses that vote."""
    training = setup.eval / "semcor" / "semcor.jsonl.zst"
    options = {"first_senses": setup.wordnet, "model": setup.embedder}
    return {
        state: {str(k): asdict(all_words_wsd([test], training, state=state, neighbors=k, **options)) for k in numbers}
        for state in setup.states(carry=True)
    }


def wsd_uses(setup: Setup) -> Figures:
    return all_words_uses(setup, setup.eval / "wsd_all_words", NEIGHBORS)


def wsd_development(setup: Setup) -> Figures:
    return all_words_uses(setup, setup.eval / "wsd_all_words" / DEVELOPMENT, TRIED)


def probe(setup: Setup) -> Figures:
    names = ("train.reassembled", "dev", "test")
    files = [setup.eval / "ud_english_ewt" / f"en_ewt-ud-{name}.conllu" for name in names]
    return {state: asdict(probe_files(*files, setup.embedder, state)) for state in setup.states(carry=True)}


def pairs(setup: Setup) -> Figures:
    from senses import PAIRS, margins, right

    items, found = json.loads(PAIRS.read_text(encoding="utf-8"))["items"], {}
    for start in setup.states(carry=False):
        scored = [margins(item, setup.embedder, start) for item in items]
        counts = {name: sum(right(each[name]) for each in scored) for name in scored[0]}
        found[start] = {"of": len(items), "right": counts}
    return found


def uses(setup: Setup) -> Figures:
    return {state: nearest_uses(setup.embedder, state) for state in setup.states(carry=False)}


def apples(setup: Setup) -> Figures:
    return {state: compare_apples(setup.embedder, state) for state in setup.states(carry=False)}


def sst2(setup: Setup) -> Figures:
    from sentiment import mean_vectors, read_sst2, tf_idf

    sentences, labels = read_sst2(setup.eval / "sst")
    found = {state: mean_vectors(setup.embedder, state, sentences, labels) for state in setup.states(carry=False)}
    return found | {"tf-idf": tf_idf(sentences, labels)}


def state(setup: Setup) -> Figures:
    if not setup.heldout:
        raise SystemExit("the part `state` needs --heldout: tokenized text, one sentence a line")
    model = replace(load(setup.name), warm_state=setup.embedder.model.warm_state)
    return {start: perplexity_by_place(model, setup.heldout, start) for start in setup.states(carry=True)}


PARTS: dict[str, Callable[[Setup], Figures]] = {
    part.__name__: part
    for part in (
        *(uses, apples, pairs, coarsewsd, coarsewsd_uses, sst2),
        *(wsd, wsd_uses, wsd_development, probe, state),
    )
}


# --- The command -------------------------------------------------------------------------------------------------


def arguments_of(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory or name; the bundled English model when not given")
    parser.add_argument("--label", help="the model's name in the results; that of its directory when not given")
    parser.add_argument("--eval", type=Path, required=True, help="directory of the data sets")
    parser.add_argument("--wordnet", type=Path, help="index.sense of WordNet 3.0, or its directory: back-off of wsd")
    parser.add_argument("--corpus", type=Path, help="tokenized text from which a warm state is computed")
    parser.add_argument("--heldout", type=Path, nargs="+", default=[], help="tokenized text for perplexities")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--states", nargs="+", choices=("zeros", "warm", "carry"), default=["zeros", "warm", "carry"])
    parser.add_argument("--dtype", default="float32", help="number type of the computation, as in Embedder.load")
    parser.add_argument("--output", type=Path, default=RESULTS / "intrinsic.json")
    return parser.parse_args(argv)


def check_label(output: Path, label: str, model: str) -> None:
    """SystemExit if the results under a label are of a model with another fingerprint."""
    report = json.loads(output.read_text(encoding="utf-8")) if output.is_file() else {}
    if any(part["fingerprint"] != model for part in report.get(label, {}).values()):
        raise SystemExit(f"{output} has results of {label} of another model: give another --label or --output")


def main(argv: list[str]) -> None:
    arguments = arguments_of(argv)
    setup = Setup(arguments)
    label = arguments.label or Path(setup.model["model"]).name
    for name in arguments.only:
        check_label(arguments.output, label, setup.model["fingerprint"])
        started = time.perf_counter()
        by_state = PARTS[name](setup)
        seconds = round(time.perf_counter() - started, 1)
        figures = {**setup.model, "dtype": arguments.dtype, "seconds": seconds, "by state": by_state}
        write_result(arguments.output, figures, label, name)
        print(f"{name}: {seconds} s\n{table({label: {name: figures}})}\n", flush=True)
    print(table(json.loads(arguments.output.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main(sys.argv[1:])
