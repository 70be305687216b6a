"""Pretraining a biLM on tokenized text, from settings to a finished model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from elmokit.checkpoints.loading import load, save
from elmokit.checkpoints.overwriting import check_overwritable
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.data.corpus import CorpusReport, check_corpus, find_files
from elmokit.data.text_files import check_language, tokenized_files, tokenizer_of_shard
from elmokit.fs.atomic import atomic_directory
from elmokit.fs.json_files import from_json, read_json
from elmokit.fs.lock import only_one_in
from elmokit.lm.measures import Perplexity, PseudoPerplexity, warn_of_unknown
from elmokit.runtime import own_random_state, pytorch_threads
from elmokit.text.tokenizers import get_tokenizer, tokenizer_for
from elmokit.text.vocab import Vocab
from elmokit.train.config import PretrainConfig
from elmokit.train.loop import CHECKPOINTS, Outcome, Reason, train, words_per_step
from elmokit.train.processes import joined_processes
from elmokit.train.schedule import CoolDown
from elmokit.train.snapshots import latest_snapshot, snapshot_path, step_of
from elmokit.train.trainer import Trainer, recipe_of
from elmokit.train.vocabulary import FULL_SOFTMAX, WordSample, vocabulary

MODEL = "model"  # the directory of the finished model, in that of the run
TEXT = "text"  # the directory of tokenized copies of raw text, in that of the run


def _model_config(settings: PretrainConfig, vocab: Vocab) -> BiLMConfig:
    if settings.config is None:
        return BiLMConfig.preset(settings.preset)
    try:
        values = from_json(dict[str, Any], read_json(settings.config))
        config = BiLMConfig.from_dict(values.get("model", values))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{settings.config} is not the configuration of a model ({error})") from error
    if config.num_words is None:
        return config
    # The embedding table of a word-id model has one row per word of the vocabulary.
    return replace(config, num_words=len(vocab), boundary_words=(vocab.bos, vocab.eos))


def _initial_model(settings: PretrainConfig) -> Pretrained | None:
    """The model that the run starts from, if any. ValueError if it has no softmax, so that it cannot predict words."""
    if settings.initial_model is None:
        return None
    model = load(settings.initial_model)
    if model.softmax is None or model.vocab is None:
        raise ValueError(f"{settings.initial_model} has no softmax to start from: `elmokit finetune` trains one for it")
    return model


def _vocabulary(settings: PretrainConfig, start: Pretrained | None, files: list[Path]) -> Vocab:
    """The vocabulary of the initial model, checked on a sample of the corpus; or without one that of the settings."""
    if start is None or start.vocab is None:
        return vocabulary(settings, files)
    sample = WordSample(files)
    sample.warn_of_unknown(start.vocab, "train a new model, or a new softmax with `elmokit finetune --new-vocab`")
    sample.check_ranks(start.vocab, f"the vocabulary of {settings.initial_model}", settings.num_samples, FULL_SOFTMAX)
    return start.vocab


def total_steps(settings: PretrainConfig, report: CorpusReport) -> int | None:
    """Steps of the whole run, from `epochs` and `max_words`; None with a constant schedule."""
    if recipe_of(settings).schedule == "constant":
        return None
    words = settings.epochs * report.words
    if settings.max_words is not None:
        words = min(words, settings.max_words)
    return max(1, int(words / words_per_step(settings, report)))


def note_heldout_in_corpus(corpus: Sequence[Path], heldout: Sequence[Path]) -> None:
    """Print a note if a held-out file is also trained on."""
    if in_both := {os.path.realpath(file) for file in corpus} & {os.path.realpath(file) for file in heldout}:
        print(f"{min(in_both)} is also trained on: its perplexity says nothing about new text", flush=True)


def print_statistics(name: str, report: CorpusReport) -> None:
    """Print the size of a corpus."""
    statistics = f"{name}: {report.files} files, {report.sentences:,} sentences, {report.words:,} words"
    if report.long_words:
        statistics += f"; {report.long_words:,} words exceed 48 bytes and are truncated by a character CNN"
    print(statistics, flush=True)


def corpus_tokenizer(files: Sequence[Path]) -> str | None:
    """The tokenizer of the first shard that `elmokit prepare` wrote; None for text from other sources."""
    return next(filter(None, map(tokenizer_of_shard, files)), None)


def _tokenizer(settings: PretrainConfig, files: Sequence[Path]) -> str | None:
    """The name of the tokenizer of the corpus, which the model records; None for tokenized text of other sources."""
    of_shards = corpus_tokenizer(files)
    if settings.tokenizer is not None:
        name = get_tokenizer(settings.tokenizer).name
        if of_shards not in (None, name):
            advice = "omit tokenizer"
            if settings.initial_model is not None:
                advice = f"the initial model reads {name}: prepare the text with --tokenizer {name}"
            raise ValueError(f"`elmokit prepare` has split the corpus with {of_shards}, not {name}: {advice}")
        return name
    if not settings.tokenize or all(map(tokenizer_of_shard, files)):
        return of_shards
    return of_shards or tokenizer_for(None, settings.language).name


class _Text(NamedTuple):
    """Tokenized files to train on, held-out ones, and the name of their tokenizer."""

    files: list[Path]
    heldout: list[Path]
    report: CorpusReport
    tokenizer: str | None


@dataclass(frozen=True)
class PretrainReport:
    """The outcome of pretraining.

    Attributes:
        model: Directory of the model; None if the run stopped before its planned end.
        reason: Why this call ended: "end" (the planned end of the run), "words" (max_words), "hours" (max_hours) or
            "patience".
        step: Steps of the run so far.
        words: Words read in these steps.
        perplexity: Perplexity of all held-out text; None without held-out text.
        pseudo_perplexity: Its pseudo-perplexity, for a model that merges the two directions and so has no perplexity.
        cut_sentences: Number of sentences that were cut because they were longer than a batch, where whole ones are
            read.
    """

    model: Path | None
    reason: Reason
    step: int
    words: int
    perplexity: Perplexity | None
    pseudo_perplexity: PseudoPerplexity | None = None
    cut_sentences: int = 0

    def __str__(self) -> str:
        reasons = {"end": "finished", "words": "max_words", "hours": "max_hours", "patience": "held-out text"}
        lines = [f"{self.step:,} steps, {self.words:,} words; ended by: {reasons[self.reason]}"]
        if self.cut_sentences:
            lines.append(f"sentences that were cut, being longer than a batch: {self.cut_sentences:,}")
        for heldout in filter(None, (self.perplexity, self.pseudo_perplexity)):
            lines.append(f"held-out {heldout}")
        none_yet = "model: none yet, run the same command again to resume"
        lines.append(none_yet if self.model is None else f"model: {self.model}")
        return "\n".join(lines)


def _card(trainer: Trainer, text: _Text, words: int, outcome: Outcome) -> str:
    config, report = trainer.config, text.report
    parameters = sum(parameter.numel() for parameter in trainer.bilm.parameters())
    settings, final, cool_down = trainer.settings, outcome.heldout, trainer.schedule.cool_down
    lines = [
        "# An ELMo biLM trained by elmokit",
        "",
        f"- vectors: {config.output_dim} dimensions, {config.num_representations} layers; {parameters / 1e6:.3g} "
        "million parameters without the softmax",
        f"- tokenizer: {text.tokenizer or 'not known; spaces separate the words'}; vocabulary of the softmax: "
        f"{len(trainer.vocab):,} words",
        f"- words seen: {words:,} of a corpus of {report.words:,} ({words / report.words:.2f} passes)",
        f"- recipe: {settings.recipe}, learning rate {trainer.recipe.learning_rate:g} ({trainer.schedule.name}), "
        f"batch {settings.batch_size} x {settings.unroll_steps}, {trainer.step:,} steps",
        f"- seed: {settings.seed}",
    ]
    if settings.initial_model is not None:
        lines.append(f"- initial weights: those of {settings.initial_model}, whose own training is not counted here")
    if cool_down is not None:
        lines.append(f"- cool-down: from step {cool_down.start:,} over {cool_down.steps:,} steps")
    elif trainer.last_step is None:
        lines.append("- stopped at a constant learning rate: `--cool-down` yields a better model from this run")
    if trainer.rate_factor != 1:
        lines.append(
            f"- the loss diverged during training; the learning rate was multiplied by {trainer.rate_factor:g}"
        )
    if trainer.cut_sentences:
        lines.append(f"- sentences that were cut, being longer than a batch: {trainer.cut_sentences:,}")
    unknown = "" if final is None else f"{final.unknown_share:.1%} of the words unknown"
    if isinstance(final, PseudoPerplexity):
        lines.append(f"- held-out pseudo-perplexity (exact softmax): {final.value:.2f}; {unknown}")
    elif final is not None:
        state = "state carried" if trainer.config.sequence_encoder.carries_state else "each sentence by itself"
        lines.append(
            f"- held-out perplexity (exact softmax, {state}): forward {final.forward:.2f}, "
            f"backward {final.backward:.2f}, mean {final.mean:.2f}; {unknown}"
        )
    return "\n".join(lines) + "\n"


def _cool_down(settings: PretrainConfig, report: CorpusReport) -> tuple[CoolDown | None, Path]:
    """The cool-down of the settings, if they ask for one, and the directory of the run.

    The directory of a cool-down is given a copy of the initial checkpoint.
    """
    if settings.cool_down is None:
        return None, settings.output
    begin = settings.cool_down_from
    checkpoints = settings.output / CHECKPOINTS
    if begin is None:
        newest = latest_snapshot(checkpoints)
        if newest is None:
            raise ValueError(f"{checkpoints} has no checkpoint to cool down from: pretrain without cool_down first")
        begin = step_of(newest)
    steps_per_word = 1 / words_per_step(settings, report)
    words = settings.cool_down if settings.cool_down >= 1 else settings.cool_down * begin / steps_per_word
    cool_down = CoolDown(begin, max(1, round(words * steps_per_word)))
    directory = settings.output / f"cool-down-{begin:08d}-{cool_down.steps}"
    if latest_snapshot(directory / CHECKPOINTS) is None:
        source = snapshot_path(checkpoints, begin)
        if not source.is_dir():
            raise ValueError(f"there is no checkpoint {source}: choose one of those in {checkpoints}")
        # Copy it, because the run itself may be resumed and remove its old checkpoints.
        with atomic_directory(snapshot_path(directory / CHECKPOINTS, begin)) as partial:
            shutil.copytree(source, partial, dirs_exist_ok=True)
    return cool_down, directory


def check_run_directory(output: Path) -> None:
    """FileExistsError, before training, if a model cannot be written to the directory afterwards."""
    if output.exists() and not output.is_dir():
        raise FileExistsError(f"{output} is a file: name a directory for the run")
    check_overwritable(output / MODEL)


def pretrain(settings: PretrainConfig) -> PretrainReport:
    """Pretrain a biLM (Peters et al., 2018, section 3), or resume an interrupted run.

    The objective is the likelihood of both directions; where the sequence encoder merges them, hidden words are
    predicted from all others of their sentence (`elmokit.train.objectives`).

    A run with a constant schedule has no planned end: it writes its model when max_words, max_hours or patience stops
    it. `cool_down` produces a better model from one of its checkpoints, in the subdirectory cool-down-STEP-STEPS, as
    often as wanted.

    Args:
        settings: The text, the model and the optimization; a call with the same settings resumes a run. Processes that
            `torchrun` started share each batch; without dropout, which each draws for itself, the model is that of a
            single process up to rounding.

    Returns:
        The directory of the model, and a summary of the run.

    Raises:
        FileExistsError: The output directory is a file, or its model/ holds something else.
        ValueError: The settings are inconsistent, the text is unreadable, the output directory has a checkpoint of
            another run, or the loss diverges at every learning rate.
        FileNotFoundError: The text does not exist.
        KeyboardInterrupt: Interrupted by SIGINT or SIGTERM, after writing a checkpoint.
    """
    check_run_directory(settings.output)
    start = _initial_model(settings)
    if start is not None and settings.tokenizer is None:
        settings = replace(settings, tokenizer=start.tokenizer)
    with joined_processes(settings.device) as processes, own_random_state():
        text = processes.of_first(lambda: _text_of(settings))
        cool_down, directory = processes.of_first(lambda: _cool_down(settings, text.report))
        with only_one_in(directory) if processes.is_first else nullcontext(), pytorch_threads(settings.threads):
            vocab = processes.of_first(lambda: _vocabulary(settings, start, text.files))
            config = start.config if start else _model_config(settings, vocab)
            steps = total_steps(settings, text.report)
            trainer = Trainer(settings, config, vocab, text.files, steps, text.report.digest, cool_down, processes)
            if start is not None:
                trainer.start_from(start)
            outcome = train(trainer, directory, text.report, text.heldout)
            return processes.of_first(lambda: _finish(trainer, start, text, outcome, directory))


def _text_of(settings: PretrainConfig) -> _Text:
    """Find the text, tokenize it where it is raw, count it, and print its size."""
    files, heldout = find_files(settings.corpus), find_files(settings.heldout)
    if not files:
        raise ValueError("there is no corpus to train on: give at least one file or directory")
    check_language(settings.language, [*files, *heldout])
    for directory in (*settings.corpus, *settings.heldout):
        if os.path.realpath(directory) == os.path.realpath(settings.output):
            raise ValueError(
                f"{directory} is both read and written to, so that vocab.txt would be text: choose another output"
            )
    note_heldout_in_corpus(files, heldout)
    tokenizer = _tokenizer(settings, files)
    rules = settings.output / TEXT, tokenizer, settings.tokenize, settings.language
    files, heldout = (tokenized_files(each, *rules) for each in (files, heldout))
    report = check_corpus(files)
    print_statistics("corpus", report)
    if heldout:
        print_statistics("held-out text", check_corpus(heldout))
    return _Text(report.in_order(files), heldout, report, tokenizer)


def _finish(
    trainer: Trainer, start: Pretrained | None, text: _Text, outcome: Outcome, directory: Path
) -> PretrainReport:
    """Write the model, with the mix and states of the initial one, unless the run stopped before its planned end."""
    heldout = outcome.heldout
    if heldout is not None:
        advice = "raise vocab_size or lower min_count"
        warn_of_unknown(heldout.unknown_share, "held-out text", advice, heldout.measure)
    # With early stopping, the model is that of the best step, and the run has gone further.
    model_words, words = (
        round(step * words_per_step(trainer.settings, text.report)) for step in (trainer.step, outcome.step)
    )
    model = None
    if outcome.reason != "hours" or trainer.last_step is None:
        model, card = directory / MODEL, _card(trainer, text, model_words, outcome)
        trained = trainer.pretrained(text.tokenizer, card)
        if start is not None:
            trained = replace(trained, mix=start.mix, state_policy=start.state_policy, warm_state=start.warm_state)
        save(trained, model, overwrite=True)
    measured = (None, heldout) if isinstance(heldout, PseudoPerplexity) else (heldout, None)
    return PretrainReport(model, outcome.reason, outcome.step, words, *measured, trainer.cut_sentences)
