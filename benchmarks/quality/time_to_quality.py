"""How long the recipe of en-small takes to reach the held-out perplexity of an earlier recipe, which is timed too.

    python benchmarks/quality/time_to_quality.py --run RUNS/en-small --cool-down RUNS/en-small/cool-down-STEP-STEPS
        --earlier RUNS/earlier --files heldout/*.txt

RUNS/en-small is a run of recipes/en_small/train.sh; its cool-down began at one of its checkpoints. The earlier recipe
trained a model on 20,497,712 words, whose perplexity is in heldout_perplexity_20m.json. Its time is computed from
its speed in RUNS/earlier, on the same machine:

    elmokit pretrain --corpus RUNS/corpus --output RUNS/earlier --no-tokenize --preset small --vocab-size 50000
        --batch-size 128 --num-samples 8192 --dropout 0 --learning-rate 0.002 --dtype bfloat16 --max-words 1000000

Hours are those of training steps, without evaluations. The files are those on which the earlier model was evaluated.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import fingerprint
from elmokit.lm.evaluate import evaluate
from elmokit.train.tracker import read_events, training_records

sys.path.append(str(Path(__file__).parents[1]))
from result_files import RESULTS, write_result

EARLIER_WORDS = 20_497_712


def training(run: Path, until: int | None = None, words_before: int = 0) -> dict[str, Any]:
    """Words that a run read up to a step, not counting `words_before`; hours of wall-clock and processor time."""
    events = training_records(run, until=until)
    counts = [words_before, *(event["words"] for event in events)]
    read = [after - before for before, after in itertools.pairwise(counts)]
    seconds = sum(words / event["words_per_second"] for words, event in zip(read, events, strict=True))
    processor = sum(event["processor_seconds"] for event in events)
    return {"words": sum(read), "hours": seconds / 3600, "processor_hours": processor / 3600}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="run with a constant learning rate")
    parser.add_argument("--cool-down", type=Path, required=True, help="its cool-down")
    parser.add_argument("--earlier", type=Path, required=True, help="some steps of the earlier recipe")
    parser.add_argument("--files", type=Path, nargs="+", required=True, help="held-out text")
    parser.add_argument("--output", type=Path, default=RESULTS / "time_to_quality.json")
    arguments = parser.parse_args()
    begin = read_events(arguments.cool_down)[0]["step"]
    constant = training(arguments.run, until=begin)
    cooled = training(arguments.cool_down, words_before=constant["words"])  # its log continues the word count
    new = {name: constant[name] + cooled[name] for name in constant}
    model = load(arguments.cool_down / "model")
    found = evaluate(arguments.files, model, state="carry", batch_size=32, tokenize=False).total
    before = json.loads((RESULTS / "heldout_perplexity_20m.json").read_text(encoding="utf-8"))["carry"]["all"]
    sample = training(arguments.earlier)
    scale = EARLIER_WORDS / sample["words"]
    earlier = {
        "words": EARLIER_WORDS,
        "sample_words": sample["words"],
        **{name: scale * sample[name] for name in ("hours", "processor_hours")},
        "perplexity": before["mean"],
    }
    figures = {"new": {**new, "perplexity": found.mean, "fingerprint": fingerprint(model)}, "earlier": earlier}
    ratios = {name: earlier[name] / new[name] for name in ("hours", "processor_hours")}
    write_result(arguments.output, {**figures, "ratio": ratios})
    print(json.dumps({**figures, "ratio": ratios}, indent=1))


if __name__ == "__main__":
    main()
