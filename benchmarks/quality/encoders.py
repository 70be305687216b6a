"""Compare the four sequence encoders at equal compute: each is pretrained for the same time on one
core.

    python benchmarks/quality/encoders.py pretrain --runs DIRECTORY --corpus SHARDS --minutes 90
    [--encoders lstm ...] python benchmarks/quality/encoders.py heldout --runs DIRECTORY --heldout
    FILE ... python benchmarks/quality/encoders.py probe senses ner --runs DIRECTORY --eval
    DIRECTORY

The configurations are recipes/encoders/*.json, which have about the same number of parameters.
training.json there has the settings that all share, and the learning rate of each, which was not
tuned. --corpus is a directory written by `elmokit prepare`, --heldout is tokenized text, and --eval
has the folders ud_english_ewt, coarsewsd20 and conll2003.

Four fifths of the minutes are trained at a constant learning rate. The rest is a cool-down, whose
number of words is estimated to take the last fifth. Minutes are processor time spent in training,
added up from the log; with one thread on an idle machine they equal wall-clock time. A run that was
stopped, paused or killed in between is therefore trained for as long as any other, and steps that a
killed run repeats count once. An encoder that is pretrained on another kind of processor than the
first gets --words in place of --minutes: the number of words that it would have read on the first
kind.

Every stage may be repeated: it resumes where it was stopped, and skips encoders for which the
result file already has figures of the same model. The figures of a stage are written as soon as an
encoder is finished.
"""

from __future__ import annotations

import os

os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # as the command line sets it; before torch is imported

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch
from result_files import RESULTS, write_result
from run_log import training_records
from sense_uses import nearest_uses, sense_pairs
from task_sets import BENCHMARKS
from word_senses import coarse_wsd

from elmokit.analysis.probe import probe_files
from elmokit.checkpoints import load
from elmokit.embed import Embedder
from elmokit.lm import Perplexity, evaluate
from elmokit.nn import BiLM
from elmokit.tasks.fitting import fit
from elmokit.train import PretrainConfig
from elmokit.train import pretrain as run_pretraining

RECIPES = HERE.parents[1] / "recipes" / "encoders"
ENCODERS = ("lstm", "interleaved", "transformer")
COOL_DOWN = 0.2  # of the minutes
# of the time at a constant rate: a further call would read the corpus again for a few steps
ENOUGH = 0.99
HELDOUT_ROWS = 32
THREADS = 1  # so that processor time is wall-clock time
NER = "conll2003"
Figures = dict[str, Any]


# --- Pretraining ----------------------------------------------------------------------------------


def settings_of(encoder: str, arguments: argparse.Namespace) -> PretrainConfig:
    """The settings of a run, except for when it stops."""
    shared = json.loads((RECIPES / "training.json").read_text(encoding="utf-8"))
    rate = shared.pop("learning_rate")[encoder]
    return PretrainConfig(
        corpus=tuple(arguments.corpus),
        output=arguments.runs / encoder,
        config=RECIPES / f"{encoder}.json",
        schedule="constant",
        learning_rate=rate,
        threads=THREADS,
        device="cpu",
        tokenize=False,
        log_every=10,
        **shared,
    )


def seconds_of(records: list[Figures]) -> float:
    """The processor time of the steps in the records of a log."""
    return sum(record["processor_seconds"] for record in records)


def seconds_so_far(run: Path) -> float:
    """The processor time that a run has taken so far; 0 before it has begun."""
    return seconds_of(training_records(run)) if (run / "log.jsonl").is_file() else 0.0


def cooled_down(directory: Path) -> Path | None:
    """The directory of a run's cool-down, if there is one."""
    return next(iter(sorted(directory.glob("cool-down-*/"))), None)


def pretrain(encoder: str, arguments: argparse.Namespace) -> Figures:
    """Pretrain, or resume; a finished run is only evaluated again."""
    settings = settings_of(encoder, arguments)
    constant = 60 * arguments.minutes * (1 - COOL_DOWN)
    if arguments.words is not None and cooled_down(settings.output) is None:
        run_pretraining(replace(settings, max_words=round(arguments.words * (1 - COOL_DOWN))))
    while arguments.words is None and cooled_down(settings.output) is None:
        before = seconds_so_far(settings.output)
        if before >= ENOUGH * constant:
            break
        run_pretraining(replace(settings, max_hours=(constant - before) / 3600))
        if seconds_so_far(settings.output) == before:  # too little time was left for a record
            break
    report = run_pretraining(replace(settings, cool_down=COOL_DOWN / (1 - COOL_DOWN)))
    assert report.model is not None
    return training_figures(settings, report.model.parent) | {
        "steps": report.step,
        "words": report.words,
    }


def training_figures(settings: PretrainConfig, finished: Path) -> Figures:
    """Time and speed of a run and its cool-down together, from their logs."""
    begin = int(finished.name.split("-")[2])  # cool-down-STEP-STEPS
    constant = training_records(settings.output, until=begin)
    cooling = training_records(finished, after=begin)
    seconds, words = seconds_of([*constant, *cooling]), cooling[-1]["words"]
    return {
        "processor_minutes": seconds / 60,
        "words_per_second": words / seconds,
        "settings": json.loads(json.dumps(asdict(settings), default=lambda path: Path(path).name)),
    }


def finished_model(encoder: str, arguments: argparse.Namespace) -> Path | None:
    """The directory of the pretrained model, or None if it is not finished."""
    finished = cooled_down(arguments.runs / encoder)
    return finished / "model" if finished is not None and (finished / "model").is_dir() else None


def model_of(encoder: str, arguments: argparse.Namespace) -> Path:
    """The directory of the pretrained model."""
    if (model := finished_model(encoder, arguments)) is None:
        raise SystemExit(
            f"{arguments.runs / encoder} has no finished model: run the stage pretrain first"
        )
    return model


# --- Measures -------------------------------------------------------------------------------------


def named(found: Perplexity) -> Figures:
    return {**found.to_json(), "unknown_percent": 100 * found.unknown_share}


def heldout(encoder: str, arguments: argparse.Namespace) -> Figures:
    """Perplexity (with carried state, if the encoder has one) or pseudo-perplexity."""
    found = evaluate(
        arguments.heldout,
        load(model_of(encoder, arguments)),
        batch_size=HELDOUT_ROWS,
        tokenize=False,
    )
    domains = {Path(name).name.split(".")[0]: named(part) for name, part in found.files.items()}
    return {"measure": found.total.measure, "domains": domains, "all": named(found.total)}


def probe(encoder: str, arguments: argparse.Namespace) -> Figures:
    """Part-of-speech tags of UD EWT from each layer."""
    names = ("train.reassembled", "dev", "test")
    files = [arguments.eval / "ud_english_ewt" / f"en_ewt-ud-{name}.conllu" for name in names]
    return asdict(probe_files(*files, Embedder(model_of(encoder, arguments)), "zeros"))


def senses(encoder: str, arguments: argparse.Namespace) -> Figures:
    """Sense pairs, nearest uses and CoarseWSD-20."""
    embedder = Embedder(model_of(encoder, arguments))
    return {
        "pairs": sense_pairs(embedder, "zeros"),
        "uses": nearest_uses(embedder, "zeros"),
        "coarsewsd": coarse_wsd(arguments.eval / "coarsewsd20", embedder),
    }


def ner(encoder: str, arguments: argparse.Namespace) -> Figures:
    """Scores of a tagger on CoNLL-2003 entities, with a learned mix of the frozen biLM's layers."""
    benchmark, model = BENCHMARKS[NER], load(model_of(encoder, arguments), softmax=False)
    options = {
        "words": benchmark.words_for(True),
        "config": replace(benchmark.fit_config, seed=1, device="cpu"),
    }
    sets, output = benchmark.read(benchmark.task, arguments.eval), arguments.runs / encoder / "ner"
    _, report = fit(benchmark.task, *sets, model=model, output=output, overwrite=True, **options)
    return {
        "score": benchmark.score,
        "dev": report.dev,
        "test": report.test,
        "epochs": len(report.epochs),
    }


STAGES: dict[str, Callable[[str, argparse.Namespace], Figures]] = {
    stage.__name__: stage for stage in (pretrain, heldout, probe, senses, ner)
}
NEEDS = {
    "pretrain": "corpus",
    "heldout": "heldout",
    "probe": "eval",
    "senses": "eval",
    "ner": "eval",
}


# --- The command ----------------------------------------------------------------------------------


def is_done(stage: str, encoder: str, arguments: argparse.Namespace) -> bool:
    """Whether the result file has figures of this stage for the present model."""
    model = finished_model(encoder, arguments)
    if model is None or not arguments.output.is_file():
        return False
    found = json.loads(arguments.output.read_text(encoding="utf-8")).get(encoder, {}).get(stage, {})
    return found.get("fingerprint") == load(model, softmax=False).fingerprint()


def parameters_of(bilm: BiLM) -> dict[str, int]:
    """The number of parameters of the sequence encoder, and of the whole biLM."""
    modules = {"sequence_encoder": bilm.sequence_encoder, "bilm": bilm}
    return {
        name: sum(each.numel() for each in module.parameters()) for name, module in modules.items()
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "stages", nargs="+", choices=STAGES, metavar="STAGE", help=", ".join(STAGES)
    )
    parser.add_argument("--encoders", nargs="+", default=ENCODERS, choices=ENCODERS)
    parser.add_argument(
        "--runs", type=Path, required=True, help="directory of the runs, a folder for each encoder"
    )
    parser.add_argument(
        "--corpus", type=Path, nargs="+", help="tokenized files, or the output of `elmokit prepare`"
    )
    parser.add_argument("--heldout", type=Path, nargs="+", help="tokenized files")
    parser.add_argument("--eval", type=Path, help="directory of the data sets")
    parser.add_argument("--minutes", type=float, default=90, help="processor time for training")
    parser.add_argument("--words", type=int, help="total words to read, in place of the minutes")
    parser.add_argument("--output", type=Path, default=RESULTS / "encoders.json")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(THREADS)
    for stage in arguments.stages:
        if getattr(arguments, NEEDS[stage]) is None:
            parser.error(f"the stage {stage} needs --{NEEDS[stage]}")
        for encoder in arguments.encoders:
            if is_done(stage, encoder, arguments):
                print(f"{encoder}: {stage} is in {arguments.output.name}")
                continue
            print(f"{encoder}: {stage}", flush=True)
            figures = STAGES[stage](encoder, arguments)
            model = load(model_of(encoder, arguments), softmax=False)
            stamp = {"fingerprint": model.fingerprint(), "parameters": parameters_of(model.bilm)}
            write_result(arguments.output, stamp | figures, encoder, stage)


if __name__ == "__main__":
    main()
