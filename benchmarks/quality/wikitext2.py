"""Test perplexity of a biLM that recipes/wikitext2 pretrained on WikiText-2 alone.

    python benchmarks/quality/wikitext2.py --run RUNS/model --test RUNS/test.txt

The softmax is exact, over the 33,278 words of the data set; one row carries its state through the
text, as in published evaluations. Hours are processor time, summed over all threads.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from elmokit.checkpoints import load
from elmokit.lm import evaluate

sys.path.append(str(Path(__file__).parents[1]))
from result_files import RESULTS, write_result
from run_log import read_events, training_records

# Published forward perplexities of language models with the same vocabulary and text, without a
# cache or a pointer.
PUBLISHED = {
    "LSTM (Grave et al. 2017)": 99.3,
    "Zoneout + variational LSTM (Merity et al. 2017)": 100.9,
    "AWD-LSTM (Merity et al. 2018)": 65.8,
}


def training(run: Path) -> dict[str, Any]:
    """The settings, words and processor hours of a run."""
    starts = [event for event in read_events(run) if event["event"] in ("start", "resume")]
    records = training_records(run)
    return {
        "settings": starts[-1]["settings"],
        "words": records[-1]["words"],
        "processor_hours": sum(record["processor_seconds"] for record in records) / 3600,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True, help="directory of the run")
    parser.add_argument(
        "--test",
        type=Path,
        required=True,
        help="test part, as recipes/wikitext2/articles.py writes it",
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "wikitext2.json")
    arguments = parser.parse_args()
    model = load(arguments.run / "model")
    found = evaluate([arguments.test], model, state="carry", batch_size=1, tokenize=False).total
    print(found)
    figures = {
        "test": found.to_json(),
        "published": PUBLISHED,
        "vocabulary": len(model.vocab or ()),
    }
    figures |= {
        "fingerprint": model.fingerprint(),
        "parameters": sum(p.numel() for p in model.bilm.parameters()),
    }
    write_result(arguments.output, figures | {"training": training(arguments.run)})


if __name__ == "__main__":
    main()
