"""Memory and time of `fit`: a named-entity tagger with ELMo (layers first computed, then cached)
and without ELMo.

    python benchmarks/speed/fit_cost.py --data CONLL2003 [--model NAME_OR_PATH] [--epochs 3]

Each run is a separate process, whose peak resident memory is recorded. The first run fills an empty
cache, which the second one reads. The time of an epoch includes scoring the development set, and is
the median over the epochs. The processor time, which depends less on the load of the machine, is
that of the whole run. CONLL2003 holds eng.train, eng.testa and eng.testb.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measuring import RESULTS, peak_megabytes, write_result

from elmokit.tasks import FitConfig, WordsConfig
from elmokit.tasks.fitting import fit
from elmokit.tasks.tagging import TaggingTask

FILES = ("eng.train", "eng.testa", "eng.testb")
RUNS = {"with ELMo, computed": "input", "with ELMo, cached": "input", "without ELMo": "none"}


def child(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train, and report the memory and time."""
    torch.set_num_threads(arguments.threads)
    words = WordsConfig(elmo=arguments.child, word_dim=100, character_dim=100)
    config = FitConfig(max_epochs=arguments.epochs, patience=arguments.epochs, device="cpu")
    files = [arguments.data / name for name in FILES]
    model = None if arguments.child == "none" else arguments.model
    start = time.process_time()
    _, report = fit(
        TaggingTask(), *files, model=model, words=words, config=config, cache=arguments.cache
    )
    return {
        "peak_megabytes": peak_megabytes(),
        "epoch_seconds": round(median(epoch.seconds for epoch in report.epochs), 1),
        "seconds": round(report.seconds, 1),
        "processor_seconds": round(time.process_time() - start, 1),
        "examples": report.examples,
        "words": report.words,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help=f"directory with {', '.join(FILES)}"
    )
    parser.add_argument(
        "--model", help="name or directory of the biLM; the bundled one when not given"
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, default=RESULTS / "fit_cost.json")
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments)))
        return
    torch.set_num_threads(arguments.threads)  # which is recorded in the result file
    with TemporaryDirectory() as cache:
        for name, elmo in RUNS.items():
            command = [sys.executable, *sys.argv, "--child", elmo, "--cache", cache]
            printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            figures = json.loads(printed.splitlines()[-1])
            write_result(arguments.output, figures, name)
            print(f"{name}: {figures}", flush=True)


if __name__ == "__main__":
    main()
