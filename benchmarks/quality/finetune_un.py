"""Fine-tune a model on speeches of the UN General Debate, which en-small never read; measure perplexity by domain.

    python benchmarks/quality/finetune_un.py --data un_general_debate --heldout heldout/un_general_debate.txt \\
        --others heldout/{gutenberg,misc,openstax,simplewiki,us_gov,wikipedia_en}.txt --output runs/finetune_un

`--data` is the training text, files or a directory. Like the held-out files (one for each domain) it is tokenized as
the model's own training text was (`elmokit prepare`). Repeating the command resumes a stopped run. The target is to
lower the perplexity of the domain by at least 10 %.
"""

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import fingerprint
from elmokit.train.finetune import FinetuneConfig, finetune

sys.path.append(str(Path(__file__).parents[1]))
from result_files import RESULTS, write_result

BAR = -10.0  # percent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="training text of the domain")
    parser.add_argument("--heldout", type=Path, nargs="+", required=True, help="held-out text of the domain")
    parser.add_argument("--others", type=Path, nargs="*", default=[], help="held-out text of other domains")
    parser.add_argument("--output", type=Path, required=True, help="directory of the run")
    parser.add_argument("--model", help="directory or name; the bundled English model when not given")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--max-words", type=int)
    parser.add_argument("--batch-size", type=int, default=FinetuneConfig.batch_size)
    parser.add_argument("--learning-rate", type=float, default=FinetuneConfig.learning_rate)
    parser.add_argument("--dropout", type=float, default=FinetuneConfig.dropout)
    parser.add_argument("--device")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--results", type=Path, default=RESULTS / "finetune_un.json")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    settings = FinetuneConfig(
        corpus=tuple(given.data), tokenize=False, output=given.output, model=given.model,
        heldout=tuple(given.heldout), others=tuple(given.others), epochs=given.epochs, max_words=given.max_words,
        batch_size=given.batch_size, learning_rate=given.learning_rate, dropout=given.dropout, device=given.device,
        threads=given.threads,
    )  # fmt: skip
    start = time.perf_counter()
    report = finetune(settings)
    print(report)
    percents = [report.changes[str(file)].percent for file in given.heldout]
    result: dict[str, Any] = {
        "model": given.model or "en-small",
        "fingerprint": fingerprint(load(given.model)),
        "settings": {name: getattr(given, name) for name in ("epochs", "max_words", "learning_rate", "dropout")},
        "seconds_of_last_start": round(time.perf_counter() - start, 1),
        "reached": max(percents) <= BAR,
        "changes": {Path(name).name.split(".")[0]: asdict(change) for name, change in report.changes.items()},
    }
    write_result(given.results, result)
    raise SystemExit(0 if result["reached"] else f"the domain's perplexity changed by {max(percents):+.1f} % only")


if __name__ == "__main__":
    main()
