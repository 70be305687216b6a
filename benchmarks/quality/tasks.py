"""Measure every task with and without ELMo: mean and deviation over seeds, time and speed of the
training.

    python benchmarks/quality/tasks.py --eval DIRECTORY --work DIRECTORY [--model NAME_OR_PATH]
    [--language zh] [--only TASK ...]

The directory of --eval holds the data sets, each in a folder; task_sets.py says which files are
read, and how they are split. Apart from ELMo, both settings are the same. Every run is written to
the results as soon as it is finished, and its model to --work. Repeating the command skips finished
runs. Results without ELMo are shared by all models. --max-minutes limits the training of each run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from sys import path as import_path
from typing import Any

HERE = Path(__file__).parent
import_path[:0] = [str(HERE), str(HERE.parent)]

import torch
from result_files import RESULTS, write_result
from task_sets import BY_LANGUAGE, Benchmark
from task_table import WITHOUT, table

from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.tasks import FitConfig
from elmokit.tasks.fitting import fit

Figures = dict[str, Any]


def setup_of(
    benchmark: Benchmark, sets: Sequence[Sequence[Any]], config: FitConfig, model: Pretrained | None
) -> str:
    """A hash of settings, model and data, without the seed; different setups are never averaged."""
    words = asdict(benchmark.words_for(model is not None))
    settings = {
        "words": words,
        "task": asdict(benchmark.task.config),
        "fit": asdict(replace(config, seed=0)),
    }
    content = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    content.update(model.fingerprint().encode() if model is not None else b"")
    for examples in sets:
        for example in examples:
            content.update(repr(example).encode("utf-8", "surrogatepass"))
    return content.hexdigest()[:16]


def recorded(path: Path, *part: str) -> Figures:
    """A part of the results; empty if nothing is recorded yet."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for name in part:
        found = found.get(name, {})
    return found


def run(
    benchmark: Benchmark,
    sets: Sequence[Sequence[Any]],
    config: FitConfig,
    model: Pretrained | None,
    arguments: argparse.Namespace,
    output: Path,
) -> Figures:
    """Train and score one model."""
    options = {
        "words": benchmark.words_for(model is not None),
        "config": config,
        "cache": arguments.cache,
        "overwrite": True,
    }
    task_model, report = fit(benchmark.task, *sets, model=model, output=output, **options)
    assert report.test is not None
    more = benchmark.more_scores(task_model, arguments.eval) if benchmark.more_scores else {}
    figures = asdict(report)
    kept = (
        "best_epoch",
        "mixes",
        "parameters",
        "examples",
        "words",
        "words_per_second",
        "settings",
    )
    return {
        "scores": [benchmark.score, *more],
        "paper": benchmark.paper,
        "dev": report.dev,
        "test": {**report.test, **more},
        "epochs": len(report.epochs),
        "seconds": report.seconds,
        **{name: figures[name] for name in kept},
    }


# --- The command ----------------------------------------------------------------------------------


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--eval", type=Path, required=True, help="directory of the data sets")
    parser.add_argument(
        "--work",
        type=Path,
        required=True,
        help="directory for the trained models",
    )
    parser.add_argument(
        "--model", help="name or directory of the biLM; the bundled one when not given"
    )
    parser.add_argument(
        "--label", help="the model's name in the results; that of its directory when not given"
    )
    parser.add_argument("--language", choices=BY_LANGUAGE, default="en", help="of the tasks")
    parser.add_argument("--only", nargs="+", metavar="TASK", help="tasks to run, instead of all")
    parser.add_argument(
        "--words", choices=("both", "with", "without"), default="both", help="with or without ELMo"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--max-epochs", type=int, help="fewer epochs than the task's default")
    parser.add_argument("--max-minutes", type=float, help="limit on the training time of each run")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--cache", type=Path, help="directory for cached layers; elmokit's own when not given"
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "tasks.json")
    return parser.parse_args(argv)


def config_of(benchmark: Benchmark, arguments: argparse.Namespace) -> FitConfig:
    """The settings of the training, with the limits given on the command line."""
    config = replace(benchmark.fit_config, max_minutes=arguments.max_minutes, device="cpu")
    return (
        config if arguments.max_epochs is None else replace(config, max_epochs=arguments.max_epochs)
    )


def main(argv: Sequence[str] | None = None) -> None:
    arguments = arguments_of(argv)
    torch.set_num_threads(arguments.threads)
    model = load(arguments.model, softmax=False)
    label = arguments.label or (Path(arguments.model).name if arguments.model else "en-small")
    kinds = {"both": (None, model), "with": (model,), "without": (None,)}[arguments.words]
    benchmarks = BY_LANGUAGE[arguments.language]
    for name in arguments.only or benchmarks:
        benchmark = benchmarks[name]
        sets = benchmark.read(benchmark.task, arguments.eval)
        for seed in arguments.seeds:
            for bilm in kinds:
                kind = WITHOUT if bilm is None else label
                config = replace(config_of(benchmark, arguments), seed=seed)
                setup = setup_of(benchmark, sets, config, bilm)
                if others := {
                    each["setup"] for each in recorded(arguments.output, name, kind).values()
                } - {setup}:
                    raise SystemExit(
                        f"{arguments.output} has results of {name}, {kind}, of another setup "
                        f"({', '.join(others)}): give another --label or --output"
                    )
                if recorded(arguments.output, name, kind, str(seed)):
                    continue
                print(f"{name}, {kind}, seed {seed}", flush=True)
                folder = arguments.work / name / kind.replace(" ", "-") / f"seed-{seed}"
                figures = run(benchmark, sets, config, bilm, arguments, folder)
                write_result(arguments.output, {"setup": setup, **figures}, name, kind, str(seed))
    print(table(recorded(arguments.output)))


if __name__ == "__main__":
    main()
