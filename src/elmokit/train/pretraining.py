"""Pretraining a biLM on tokenized text, from settings to a finished model."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from elmokit.checkpoints import Pretrained, check_overwritable, load, save
from elmokit.config import BiLMConfig
from elmokit.data import (
    CorpusReport,
    check_corpus,
    check_language,
    find_files,
    option_of_shard,
    tokenized_files,
    tokenizer_of_shard,
)
from elmokit.fs import atomic_directory, only_one_in, read_json, read_lines
from elmokit.lm import Perplexity
from elmokit.runtime import fork_rng, pytorch_threads
from elmokit.text import SPECIALS, TOKENIZER_OF, Vocab, count_words, get_tokenizer, tokenizer_for
from elmokit.train.config import PretrainConfig, TrainingConfig
from elmokit.train.loop import CHECKPOINTS, Reason, train, words_per_step
from elmokit.train.processes import joined_processes
from elmokit.train.trainer import Trainer, latest_snapshot, recipe_of, snapshot_path, step_of

MODEL = "model"  # the directory of the finished model, in that of the run
SAMPLE_LINES = 100_000  # of a corpus, on which a vocabulary is checked
TEXT = "text"  # the directory of tokenized copies of raw text, in that of the run


@dataclass(frozen=True)
class PretrainReport:
    """The outcome of pretraining.

    Attributes:
        model: Directory of the model; None if the run stopped before its planned end.
        reason: Why this call ended: "end" (the planned end of the run), "words" (max_words),
            "hours" (max_hours) or "patience".
        step: Steps of the run so far.
        words: Words read in these steps.
        heldout: Perplexity of all held-out text, or its pseudo-perplexity, for a model that merges
            the two directions; None without held-out text.
    """

    model: Path | None
    reason: Reason
    step: int
    words: int
    heldout: Perplexity | None

    def __str__(self) -> str:
        lines = [f"{self.step:,} steps, {self.words:,} words; ended by: {self.reason}"]
        if self.heldout is not None:
            lines.append(f"held-out {self.heldout}")
        lines.append(f"model: {self.model or 'none yet, run the same command again to resume'}")
        return "\n".join(lines)


# --- Text -----------------------------------------------------------------------------------------


class Text(NamedTuple):
    """Tokenized files to train on, and to measure; statistics of both."""

    files: list[Path]
    heldout: list[Path]
    report: CorpusReport
    heldout_report: CorpusReport | None


def read_texts(
    settings: TrainingConfig,
    tokenizer: str | None,
    language: str | None,
    others: Sequence[Path] = (),
) -> Text:
    """Tokenize the text of a run where it is raw, count it, and print its size.

    Args:
        settings: The settings of the run.
        tokenizer: The tokenizer of raw text.
        language: The language of the model.
        others: More held-out files.
    """
    files, heldout = find_files(settings.corpus), find_files([*settings.heldout, *others])
    check_language(settings.language, [*files, *heldout])
    if in_both := {os.path.realpath(file) for file in files} & {
        os.path.realpath(file) for file in heldout
    }:
        print(
            f"{min(in_both)} is also trained on: its perplexity says nothing about new text",
            flush=True,
        )
    rules = settings.output / TEXT, tokenizer, settings.tokenize, settings.language, language
    files, heldout = (tokenized_files(each, *rules) for each in (files, heldout))
    reports = {
        name: check_corpus(each)
        for name, each in (("corpus", files), ("held-out text", heldout))
        if each or name == "corpus"
    }
    for name, report in reports.items():
        statistics = (
            f"{name}: {report.files} files, {report.sentences:,} sentences, {report.words:,} words"
        )
        if report.long_words:
            statistics += (
                f"; {report.long_words:,} words exceed 48 bytes and are truncated by a "
                f"character CNN"
            )
        print(statistics, flush=True)
    report = reports["corpus"]
    return Text(report.in_order(files), heldout, report, reports.get("held-out text"))


def corpus_tokenizer(corpus: Sequence[Path]) -> str | None:
    """The tokenizer of the first shard that `elmokit prepare` wrote; None for text from other
    sources.
    """
    return next(filter(None, map(tokenizer_of_shard, find_files(corpus))), None)


def language_of(
    settings: TrainingConfig, tokenizer: str | None, of_model: str | None
) -> str | None:
    """The language of the corpus: of the settings, of `elmokit prepare`, or of the model from which
    a run starts.
    """
    of_shards = filter(
        None, (option_of_shard(file, "language") for file in find_files(settings.corpus))
    )
    return (
        settings.language
        or next(of_shards, of_model)
        or ("en" if tokenizer == TOKENIZER_OF["en"] else None)
    )


def _tokenizer(settings: PretrainConfig) -> str | None:
    """The name of the tokenizer of the corpus, which the model records; None for tokenized text of
    other sources.
    """
    of_shards = corpus_tokenizer(settings.corpus)
    if settings.tokenizer is not None:
        name = get_tokenizer(settings.tokenizer).name
        if of_shards not in (None, name):
            raise ValueError(
                f"`elmokit prepare` has split the corpus with {of_shards}, not {name}: prepare it "
                f"again"
            )
        return name
    if not settings.tokenize or all(map(tokenizer_of_shard, find_files(settings.corpus))):
        return of_shards
    return of_shards or tokenizer_for(None, settings.language).name


# --- Model ----------------------------------------------------------------------------------------


def _initial_model(settings: PretrainConfig) -> Pretrained | None:
    """The model that the run starts from, if any. ValueError if it has no softmax, so that it
    cannot predict words.
    """
    if settings.initial_model is None:
        return None
    model = load(settings.initial_model)
    if model.softmax is None or model.vocab is None:
        raise ValueError(
            f"{settings.initial_model} has no softmax to start from: `elmokit finetune` trains "
            f"one for it"
        )
    return model


def _model_config(settings: PretrainConfig, vocab: Vocab) -> BiLMConfig:
    if settings.config is None:
        return BiLMConfig.preset(settings.preset)
    values = read_json(settings.config)
    config = BiLMConfig.from_dict(values.get("model", values))
    if config.num_words is None:
        return config
    # The embedding table of a word-id model has one row per word of the vocabulary.
    return replace(config, num_words=len(vocab), boundary_words=(vocab.bos, vocab.eos))


def vocabulary(settings: PretrainConfig, files: list[Path], given: Vocab | None = None) -> Vocab:
    """The vocabulary of a run, checked on the first lines of its corpus, before hours are spent on
    training.

    Args:
        settings: Where the vocabulary is, or how to build it before the first step.
        files: The corpus.
        given: The vocabulary of a model, which takes precedence.

    Raises:
        ValueError: No word is frequent enough; or the softmax is sampled, for which words are drawn
            as often as their ranks suggest, and the special words are not the first, or the second
            half of the words is more frequent than the first.
    """
    built = settings.output / "vocab.txt"
    if (
        given is None
        and settings.vocab is None
        and latest_snapshot(settings.output / CHECKPOINTS) is None
    ):
        vocab = Vocab.from_counts(count_words(files), settings.min_count, settings.vocab_size)
        if len(vocab) == len(SPECIALS):
            raise ValueError(
                f"no word of the corpus occurs {settings.min_count} times: give more text, or a "
                f"lower min_count"
            )
        vocab.write(built)
    vocab = given or Vocab.read(settings.vocab or built)
    counts: Counter[str] = Counter()
    for line in islice(chain.from_iterable(map(read_lines, files)), SAMPLE_LINES):
        counts.update(line.split())
    known = sum(map(counts.__getitem__, vocab.words)) / counts.total()
    print(f"vocabulary: {len(vocab):,} words, {known:.1%} of the corpus", flush=True)
    frequencies = [counts[word] for word in vocab.words[len(SPECIALS) :]]
    is_ascending = 2 * sum(frequencies[: len(frequencies) // 2]) < sum(frequencies)
    if 0 < settings.num_samples < len(vocab) and (
        is_ascending or vocab.words[: len(SPECIALS)] != SPECIALS
    ):
        raise ValueError(
            f"the vocabulary is not sorted by descending frequency after {' '.join(SPECIALS)}, as "
            "the sampled softmax needs it: sort it, build one from the corpus, or use the full "
            "softmax (num_samples 0)"
        )
    return vocab


def total_steps(settings: PretrainConfig, report: CorpusReport) -> int | None:
    """Steps of the whole run, from `epochs` and `max_words`; None with a constant schedule."""
    if recipe_of(settings).schedule == "constant":
        return None
    words = min(settings.epochs * report.words, settings.max_words or float("inf"))
    return max(1, int(words / words_per_step(settings, report)))


def _cool_down(
    settings: PretrainConfig, report: CorpusReport
) -> tuple[tuple[int, int] | None, Path]:
    """The first step of a cool-down and the number of its steps, if the settings ask for one; the
    run's directory.

    The directory of a cool-down is given a copy of the initial checkpoint.
    """
    if settings.cool_down is None:
        return None, settings.output
    newest = latest_snapshot(settings.output / CHECKPOINTS)
    if newest is None:
        raise ValueError(
            f"{settings.output} has no checkpoint to cool down from: pretrain without cool_down "
            f"first"
        )
    begin, per_word = step_of(newest), 1 / words_per_step(settings, report)
    steps = max(1, round(settings.cool_down * (per_word if settings.cool_down >= 1 else begin)))
    directory = settings.output / f"cool-down-{begin:08d}-{steps}"
    if latest_snapshot(directory / CHECKPOINTS) is None:
        # Copy it, because the run itself may be resumed and remove its old checkpoints.
        with atomic_directory(snapshot_path(directory / CHECKPOINTS, begin)) as partial:
            shutil.copytree(newest, partial, dirs_exist_ok=True)
    return (begin, steps), directory


def _card(
    trainer: Trainer,
    text: Text,
    tokenizer: str | None,
    language: str | None,
    report: PretrainReport,
) -> str:
    settings, config, schedule = trainer.settings, trainer.config, trainer.schedule
    parameters, passes = (
        sum(map(Tensor.numel, trainer.bilm.parameters())),
        report.words / text.report.words,
    )
    lines = [
        "# An ELMo biLM trained by elmokit",
        "",
        f"- vectors: {config.output_dim} dimensions, {config.num_representations} layers; "
        f"{parameters / 1e6:.3g} million parameters without the softmax",
        f"- language: {language or 'not known'}",
        f"- tokenizer: {tokenizer or 'not known; spaces separate the words'}; vocabulary of the "
        f"softmax: {len(trainer.vocab):,} words",
        f"- words seen: {report.words:,} of a corpus of {text.report.words:,} ({passes:.2f} "
        f"passes)",
        f"- recipe: {settings.recipe}, learning rate {trainer.recipe.learning_rate:g} "
        f"({schedule.name}), batch {settings.batch_size} x {settings.unroll_steps}, "
        f"{report.step:,} steps, seed {settings.seed}",
    ]
    if settings.initial_model is not None:
        lines.append(
            f"- initial weights: those of {settings.initial_model}, whose own training is not "
            f"counted here"
        )
    if schedule.cool_down is not None:
        lines.append("- cool-down: from step {:,} over {:,} steps".format(*schedule.cool_down))
    if trainer.rate_factor != 1:
        lines.append(
            f"- the loss diverged, and the learning rate was multiplied by {trainer.rate_factor:g}"
        )
    if report.heldout is not None:
        lines.append(f"- held-out {report.heldout}, with the exact softmax")
    return "\n".join(lines) + "\n"


def pretrain(settings: PretrainConfig) -> PretrainReport:
    """Pretrain a biLM (Peters et al., 2018, section 3), or resume an interrupted run.

    The objective is the likelihood of both directions; where the sequence encoder merges them,
    hidden words are predicted from all others of their sentence (`elmokit.train.objectives`).

    A run with a constant schedule has no planned end: it writes its model when max_words, max_hours
    or patience stops it. `cool_down` produces a better model from its latest checkpoint, in the
    subdirectory cool-down-STEP-STEPS, as often as wanted.

    Args:
        settings: The text, the model and the optimization; a call with the same settings resumes a
            run. Processes that `torchrun` started share each batch; without dropout, which each
            draws for itself, the model is that of a single process up to rounding.

    Returns:
        The directory of the model, and a summary of the run.

    Raises:
        FileExistsError: The model/ of the output directory holds something else.
        ValueError: The settings are inconsistent, the text is unreadable, the output directory has
            a checkpoint of another run, or the loss diverges at every learning rate.
        FileNotFoundError: The text does not exist.
        KeyboardInterrupt: Interrupted by SIGINT or SIGTERM, after writing a checkpoint.
    """
    check_overwritable(settings.output / MODEL)
    start = _initial_model(settings)
    if start is not None and settings.tokenizer is None:
        settings = replace(settings, tokenizer=start.tokenizer)
    with joined_processes(settings.device) as processes, fork_rng():
        tokenizer = _tokenizer(settings)
        language = language_of(settings, tokenizer, start and start.language)
        text = processes.of_first(lambda: read_texts(settings, tokenizer, language))
        cool_down, directory = processes.of_first(lambda: _cool_down(settings, text.report))
        with (
            only_one_in(directory) if processes.is_first else nullcontext(),
            pytorch_threads(settings.threads),
        ):
            vocab = processes.of_first(
                lambda: vocabulary(settings, text.files, start and start.vocab)
            )
            config = start.config if start else _model_config(settings, vocab)
            steps = total_steps(settings, text.report)
            trainer = Trainer(
                settings, config, vocab, text.files, steps, text.report.digest, cool_down, processes
            )
            if start is not None:
                trainer.start_from(start)
            if settings.patience is not None and text.heldout_report is not None:
                trainer.identity["heldout"] = (
                    text.heldout_report.digest
                )  # values of other text cannot be compared
            reason, heldout = train(trainer, directory, text.report, text.heldout)
            words = round(trainer.step * words_per_step(settings, text.report))
            model = (
                directory / MODEL
                if reason != "hours" or trainer.schedule.last_step is None
                else None
            )
            report = PretrainReport(model, reason, trainer.step, words, heldout)

            def finish() -> None:
                if model is not None:
                    trained = trainer.pretrained(
                        tokenizer, _card(trainer, text, tokenizer, language, report)
                    )
                    trained.language = language
                    if start is not None:
                        states = {
                            "state_policy": start.state_policy,
                            "warm_state": start.warm_state,
                        }
                        trained = replace(trained, mix=start.mix, **states)
                    save(trained, model, overwrite=True)

            processes.of_first(finish)
            return report
