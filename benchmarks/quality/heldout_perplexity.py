"""Held-out perplexity of a model by domain, with carried state (32 rows) and from zeros; share of
unknown words.

    python benchmarks/quality/heldout_perplexity.py [--model NAME_OR_PATH] --files heldout/*.txt.zst

Files are tokenized as the model's training text was (`elmokit prepare`), one sentence per line.
"""

import argparse
import sys
import time
from pathlib import Path

from elmokit.checkpoints import load
from elmokit.lm.evaluation import Evaluation, evaluate
from elmokit.lm.scoring import Perplexity

sys.path.append(str(Path(__file__).parents[1]))
from result_files import RESULTS, write_result

STATES = {"carry": 32, "zeros": 1}  # and the number of rows, which has no effect from zeros


def figures(found: Perplexity) -> dict[str, float]:
    return {**found.to_json(), "words": found.words, "unknown_percent": 100 * found.unknown_share}


def show(state: str, name: str, found: dict[str, float]) -> None:
    values = "  ".join(
        f"{direction} {found[direction]:9.3f}" for direction in ("forward", "backward", "mean")
    )
    print(
        f"{state:6} {name:30} {values}  {found['words']:9,} words, {found['unknown_percent']:.2f} "
        f"% unknown",
        flush=True,
    )


def by_domain(found: Evaluation) -> dict[str, dict[str, float]]:
    domains = {Path(name).name.split(".")[0]: figures(part) for name, part in found.files.items()}
    return {**domains, "all": figures(found.total)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", help="directory or name; the bundled English model when not given"
    )
    parser.add_argument("--files", type=Path, nargs="+", required=True)
    parser.add_argument("--device")
    parser.add_argument("--output", type=Path, default=RESULTS / "heldout_perplexity.json")
    arguments = parser.parse_args()
    model = load(arguments.model)
    report = {
        "model": arguments.model or "en-small",
        "fingerprint": model.fingerprint(),
        "seconds": {},
    }
    options = {"device": arguments.device, "tokenize": False}
    for state, rows in STATES.items():
        start = time.perf_counter()
        report[state] = by_domain(
            evaluate(arguments.files, model, state=state, batch_size=rows, **options)
        )
        report["seconds"][state] = round(time.perf_counter() - start, 1)
        for name, found in report[state].items():
            show(state, name, found)
    write_result(arguments.output, report)


if __name__ == "__main__":
    main()
