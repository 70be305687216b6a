"""The cost of bfloat16 products in perplexity: two pretraining runs that differ in nothing else.

    python benchmarks/quality/pretrain_precision.py --corpus SHARDS --heldout FILE [FILE ...] --output RUNS

One run is in bfloat16 and one in float32. Both use the preset `small`, 8,192 samples, windows of 128 rows by 20 steps,
the default recipe, and the same seed and vocabulary. At the end of each, the exact perplexity of the held-out text is
measured with carried state. Repeating the command resumes. The target: the perplexity of bfloat16 is within 2 % of that
of float32.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from elmokit.train.config import PretrainConfig
from elmokit.train.pretrain import pretrain
from elmokit.train.tracker import read_events, training_records

sys.path.append(str(Path(__file__).parents[1]))
from result_files import RESULTS, write_result

BAR = 0.02
DTYPES = ("bfloat16", "float32")


def run(dtype: str, given: argparse.Namespace) -> dict[str, Any]:
    """The perplexities at the end of a run, and the number of words that it read."""
    output = given.output / f"precision-{dtype}"
    pretrain(
        PretrainConfig(
            corpus=tuple(given.corpus),
            heldout=tuple(given.heldout),
            tokenize=False,
            output=output,
            vocab=given.vocab,
            preset="small",
            dtype=dtype,
            max_words=given.max_words,
            evaluate_every=1_000_000_000,
            seed=given.seed,
        )
    )
    end = next(event for event in reversed(read_events(output)) if event["event"] == "end")
    words = training_records(output)[-1]["words"]
    return {name: end[name] for name in ("forward", "backward", "mean", "predictions")} | {"words": words}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="tokenized shards")
    parser.add_argument("--heldout", type=Path, nargs="+", required=True, help="tokenized held-out text")
    parser.add_argument("--output", type=Path, required=True, help="directory for the two runs")
    parser.add_argument("--vocab", type=Path, help="vocabulary of both runs; built from the corpus when not given")
    parser.add_argument("--max-words", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS / "pretrain_precision.json")
    given = parser.parse_args()
    found = {dtype: run(dtype, given) for dtype in DTYPES}
    change = found["bfloat16"]["mean"] / found["float32"]["mean"] - 1
    for dtype, figures in found.items():
        print(f"{dtype}: {figures['words']:,} words, perplexity {figures['mean']:.2f}")
    print(f"bfloat16 against float32: {100 * change:+.2f} %")
    write_result(given.results, {**found, "change": change, "bar": BAR}, "small")
    raise SystemExit(0 if abs(change) <= BAR else "the difference is above the bar")


if __name__ == "__main__":
    main()
