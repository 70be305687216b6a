"""Held-out perplexity of a model by domain, with carried state (32 rows) and from zeros; share of unknown words.

    python benchmarks/quality/heldout_perplexity.py [--model NAME_OR_PATH] --files heldout/*.txt.zst [--beside MODEL]

Files are tokenized as the model's training text was (`elmokit prepare`), one sentence per line. To compare models with
different vocabularies, --beside names a second model: the perplexity of each is computed over the words that both know.
"""

import argparse
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import Pretrained, fingerprint
from elmokit.fs.reading import read_lines
from elmokit.lm.evaluate import Evaluation, evaluate
from elmokit.lm.measures import Perplexity
from elmokit.lm.scoring import score

sys.path.append(str(Path(__file__).parents[1]))
from result_files import RESULTS, write_result

STATES = {"carry": 32, "zeros": 1}  # and the number of rows, which has no effect from zeros


def figures(found: Perplexity) -> dict[str, float]:
    words = found.predictions - found.sentences  # each sentence also predicts one boundary
    return {**asdict(found), "words": words, "unknown_percent": 100 * found.unknown / words}


def show(state: str, name: str, found: dict[str, float]) -> None:
    values = "  ".join(f"{direction} {found[direction]:9.3f}" for direction in ("forward", "backward", "mean"))
    print(
        f"{state:6} {name:30} {values}  {found['words']:9,} words, {found['unknown_percent']:.2f} % unknown", flush=True
    )


def by_domain(found: Evaluation) -> dict[str, dict[str, float]]:
    domains = {Path(name).name.split(".")[0]: figures(part) for name, part in found.files.items()}
    return {**domains, "all": figures(found.total)}


def of_known_words(files: list[Path], model: Pretrained, other: Pretrained) -> dict[str, Any]:
    """Perplexities of two models (mean of the directions) over the words that both know; boundaries do not count."""
    losses, words = np.zeros((2, 2)), 0
    for file in files:
        sentences = [line.split() for line in read_lines(file)]
        ours, theirs = (score(sentences, each, state="carry", batch_size=STATES["carry"]) for each in (model, other))
        for pair in zip(ours, theirs, strict=True):
            known = ~(pair[0].is_unknown | pair[1].is_unknown)
            losses += [each.surprisal[:, known].sum(axis=1, dtype=np.float64) for each in pair]
            words += int(known.sum())
    model_mean, other_mean = np.exp(math.log(2) * losses.mean(axis=1) / words).tolist()  # bits to nats
    return {"words": words, "mean": model_mean, "other": other_mean, "other_fingerprint": fingerprint(other)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory or name; the bundled English model when not given")
    parser.add_argument("--files", type=Path, nargs="+", required=True)
    parser.add_argument("--beside", help="another model, to be compared over the words that both know")
    parser.add_argument("--device")
    parser.add_argument("--output", type=Path, default=RESULTS / "heldout_perplexity.json")
    arguments = parser.parse_args()
    model = load(arguments.model)
    other = load(arguments.beside) if arguments.beside else None
    report = {"model": arguments.model or "en-small", "fingerprint": fingerprint(model), "seconds": {}}
    options = {"device": arguments.device, "tokenize": False}
    for state, rows in STATES.items():
        start = time.perf_counter()
        report[state] = by_domain(evaluate(arguments.files, model, state=state, batch_size=rows, **options))
        report["seconds"][state] = round(time.perf_counter() - start, 1)
        for name, found in report[state].items():
            show(state, name, found)
    if other is not None:
        report["known_to_both"] = of_known_words(arguments.files, model, other)
        print("words that both know:", report["known_to_both"])
    write_result(arguments.output, report)


if __name__ == "__main__":
    main()
