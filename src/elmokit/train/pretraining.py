"""Pretraining a biLM on tokenized text, from settings to a finished model."""

from __future__ import annotations

import json
import shutil
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from elmokit.checkpoints import Pretrained, load, save
from elmokit.config import BiLMConfig
from elmokit.data import TextFile
from elmokit.fs import atomic_directory, check_output, directory_lock, read_json, read_lines
from elmokit.lm import Perplexity
from elmokit.runtime import fork_rng, pytorch_threads
from elmokit.text import Vocab, get_tokenizer
from elmokit.train.config import PretrainConfig, TrainingConfig
from elmokit.train.corpus import CorpusReport
from elmokit.train.loop import CHECKPOINTS, Reason, train, words_per_step
from elmokit.train.objectives import Objective
from elmokit.train.optim import recipe_of
from elmokit.train.processes import join_processes
from elmokit.train.snapshots import latest_snapshot, snapshot_path, step_of
from elmokit.train.trainer import Settings, Trainer

MODEL = "model"  # subdirectory of a run: the finished model
FEW_STEPS = 50  # fewer are warned of
SAMPLE_LINES = 100_000  # lines of a corpus that check a vocabulary
TEXT = "text"  # subdirectory of a run: tokenized copies of raw text


@dataclass(frozen=True)
class PretrainReport:
    """The outcome of pretraining.

    Attributes:
        model: Directory of the model.
        reason: Why this call ended: "end" (the planned end of the run), "words" (max_words) or
            "hours" (max_hours).
        step: Steps of the run so far.
        words: Words read in these steps.
        heldout: Perplexity of all held-out text, or its pseudo-perplexity, for a model that merges
            the two directions; None without held-out text.
    """

    model: Path
    reason: Reason
    step: int
    words: int
    heldout: Perplexity | None

    def __str__(self) -> str:
        lines = [f"{self.step:,} steps, {self.words:,} words; ended by: {self.reason}"]
        if self.heldout is not None:
            lines.append(f"held-out {self.heldout}")
        if self.reason == "hours":
            lines.append("not at its end: run the same command again to resume")
        lines.append(f"model: {self.model}")
        return "\n".join(lines)


# --- Text -----------------------------------------------------------------------------------------


class Text(NamedTuple):
    """Tokenized training and held-out files, and statistics of the training files."""

    files: list[Path]
    heldout: list[Path]
    report: CorpusReport


def read_texts(
    settings: TrainingConfig,
    tokenizer: str | None,
    language: str | None,
    others: Sequence[Path] = (),
    whole_lines: bool = False,
) -> Text:
    """Tokenize the text of a run where it is raw, count it, and print its size.

    Args:
        settings: The settings of the run.
        tokenizer: The tokenizer of raw text.
        language: The language of the model.
        others: More held-out files.
        whole_lines: Do not split the lines of the corpus into sentences.
    """
    files = TextFile.find(settings.corpus)
    heldout = TextFile.find([*settings.heldout, *others])
    given = settings.language if settings.tokenize else None
    texts = TextFile.open(
        [*files, *heldout], tokenizer, settings.tokenize, given, model_language=language
    )
    copies = settings.output / TEXT
    heldout = [text.tokenized(copies) for text in texts[len(files) :]]
    files = [text.tokenized(copies, whole_lines) for text in texts[: len(files)]]
    report = _check("corpus", files)
    if heldout:
        _check("held-out text", heldout)
    return Text(files, heldout, report)


def _check(name: str, files: list[Path]) -> CorpusReport:
    """Read the text once, and print its size."""
    report = CorpusReport.of(files)
    line = f"{name}: {report.files} files, {report.sentences:,} sentences, {report.words:,} words"
    if report.long_words:
        line += (
            f"; {report.long_words:,} words exceed 48 bytes and are truncated by a character CNN"
        )
    print(line, flush=True)
    return report


def language_of(settings: TrainingConfig, tokenizer: str | None, before: str | None) -> str | None:
    """The language of the settings, of `elmokit prepare`, or of the initial model (`before`)."""
    given = settings.language or TextFile.prepared(settings.corpus).get("language") or before
    return given or ("en" if tokenizer == get_tokenizer().name else None)


def _tokenizer(settings: PretrainConfig) -> str | None:
    """The name of the tokenizer of the corpus; None for tokenized text of other sources."""
    of_shards = TextFile.prepared(settings.corpus).get("tokenizer")
    if settings.tokenizer is not None:
        name = get_tokenizer(settings.tokenizer).name
        if of_shards not in (None, name):
            raise ValueError(
                f"`elmokit prepare` has split the corpus with {of_shards}, not {name}: prepare it "
                f"again"
            )
        return name
    if of_shards or not settings.tokenize:
        return of_shards
    return get_tokenizer(None, settings.language).name


# --- Model ----------------------------------------------------------------------------------------


def check_output_of(settings: TrainingConfig, *inputs: str | Path | None) -> None:
    """Check that the finished model can be written, and that its directory holds no input."""
    inputs = *settings.corpus, *settings.heldout, *inputs
    check_output(settings.output / MODEL, inputs, overwrite=True, directory_of="config.json")


def _model_config(settings: PretrainConfig, vocab: Vocab) -> BiLMConfig:
    if settings.config is None:
        return BiLMConfig.preset(settings.preset)
    values = read_json(settings.config)
    config = BiLMConfig.from_dict(values.get("model", values))
    if config.num_words is None:
        return config
    # The embedding table of a word-id model has one row per word of the vocabulary.
    return replace(config, num_words=len(vocab), boundary_words=(vocab.bos, vocab.eos))


def vocabulary(settings: Settings, files: list[Path], vocab: Vocab | None) -> Vocab:
    """The vocabulary of a run, checked on the first lines of its corpus, before hours are spent.

    Args:
        settings: How to build a vocabulary before the first step.
        files: The corpus.
        vocab: The vocabulary that is given; None: build one.

    Raises:
        ValueError: No word is frequent enough; or the softmax is sampled, for which words are drawn
            as often as their ranks suggest, and the special words are not the first, or the second
            half of the words is more frequent than the first.
    """
    built = settings.output / "vocab.txt"
    if vocab is None and latest_snapshot(settings.output / CHECKPOINTS) is not None:
        vocab = Vocab.read(built)
    elif vocab is None:
        vocab = Vocab.from_counts(Vocab.count_words(files), settings.min_count, settings.vocab_size)
        if len(vocab) == len(vocab.SPECIALS):
            raise ValueError(
                f"no word of the corpus occurs {settings.min_count} times: give more text, or a "
                f"lower min_count"
            )
        vocab.write(built)
    counts: Counter[str] = Counter()
    for line in islice(chain.from_iterable(map(read_lines, files)), SAMPLE_LINES):
        counts.update(line.split())
    known = sum(map(counts.__getitem__, vocab.words)) / counts.total()
    print(f"vocabulary: {len(vocab):,} words, {known:.1%} of the corpus", flush=True)
    frequencies = [counts[word] for word in vocab.words[len(vocab.SPECIALS) :]]
    is_ascending = 2 * sum(frequencies[: len(frequencies) // 2]) < sum(frequencies)
    if 0 < settings.num_samples < len(vocab) and (
        is_ascending or vocab.words[: len(vocab.SPECIALS)] != vocab.SPECIALS
    ):
        raise ValueError(
            "the vocabulary is not sorted by descending frequency after "
            f"{' '.join(vocab.SPECIALS)}, as the sampled softmax needs it: sort it, build one from "
            "the corpus, or use the full softmax (num_samples 0)"
        )
    return vocab


def total_steps(settings: Settings, report: CorpusReport) -> int | None:
    """Steps of the whole run, from `epochs` and `max_words`; None with a constant schedule."""
    if recipe_of(settings).schedule == "constant":
        return None
    words = min(settings.epochs * report.words, settings.max_words or float("inf"))
    steps = max(1, int(words / words_per_step(settings, report)))
    if steps < FEW_STEPS and settings.max_words is None:
        warnings.warn(
            f"{steps} steps teach a model hardly anything: lower --batch-size "
            f"({settings.batch_size}) or raise --epochs ({settings.epochs})",
            stacklevel=2,
        )
    return steps


def run_identity(trainer: Trainer, text: Text, start: Pretrained | None) -> dict[str, Any]:
    """Everything that determines the steps of a run, as JSON values."""
    settings, recipe, total = trainer.settings, trainer.recipe, trainer.schedule.total_steps
    same = "warm_up_steps", "batch_size", "unroll_steps", "num_samples", "dropout", "dtype", "seed"
    identity = {
        "recipe": recipe.name,
        "schedule": recipe.schedule,
        "learning_rate": recipe.learning_rate,
        "fresh_starts": recipe.fresh_starts,
        **{name: getattr(settings, name) for name in same},
        "objective": type(trainer.objective).__name__,
        "total_steps": total if recipe.schedule == "cosine" else None,
        "model": trainer.config.to_dict(),
        "vocabulary": trainer.vocab.checksum(),
        "corpus": text.report.digest,
        "start": None if start is None else start.fingerprint(),
    }
    return json.loads(json.dumps(identity))  # as a snapshot has it, with lists in place of tuples


def _cool_down(
    settings: PretrainConfig, report: CorpusReport
) -> tuple[tuple[int, int] | None, Path]:
    """The first step of a cool-down and the number of its steps, if any; the run's directory.

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
    #   run           0 ........... 5000 ........ the run itself may go on from here
    #   cool-down                   5000 ... 6000     a copy of the checkpoint, in a directory
    begin, per_word = step_of(newest), 1 / words_per_step(settings, report)
    steps = max(1, round(settings.cool_down * (per_word if settings.cool_down >= 1 else begin)))
    directory = settings.output / f"cool-down-{begin:08d}-{steps}"
    if latest_snapshot(directory / CHECKPOINTS) is None:
        # Copy it, because the run itself may be resumed and remove its old checkpoints.
        with atomic_directory(snapshot_path(directory / CHECKPOINTS, begin)) as partial:
            shutil.copytree(newest, partial, dirs_exist_ok=True)
    return (begin, steps), directory


def _card(
    settings: PretrainConfig,
    trainer: Trainer,
    text: Text,
    tokenizer: str | None,
    language: str | None,
    report: PretrainReport,
) -> str:
    config, schedule = trainer.config, trainer.schedule
    parameters = sum(map(Tensor.numel, trainer.bilm.parameters()))
    passes = report.words / text.report.words
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


def pretrain(settings: PretrainConfig, objective: type[Objective] | None = None) -> PretrainReport:
    """Pretrain a biLM (Peters et al., 2018, section 3), or resume an interrupted run.

    A run with a constant schedule has no planned end: it goes on until max_words or
    max_hours stops it. `cool_down` produces a better model from its latest checkpoint, in the
    subdirectory cool-down-STEP-STEPS, as often as wanted.

    Args:
        settings: The text, the model and the optimization; a call with the same settings resumes a
            run. Processes that `torchrun` started share each batch; without dropout, which each
            draws for itself, the model is that of a single process up to rounding.
        objective: What is minimized, a class derived from `elmokit.train.objectives.Objective`;
            None: the likelihood of both directions, or where the sequence encoder merges them, of
            masked words given all others of their sentence.

    Returns:
        The directory of the model, and a summary of the run.

    Raises:
        FileExistsError: The model/ of the output directory holds something else.
        ValueError: The settings are inconsistent, the text is unreadable, the output directory has
            a checkpoint of another run, or the loss diverges at every learning rate.
        FileNotFoundError: The text does not exist.
        KeyboardInterrupt: Interrupted by SIGINT or SIGTERM, after writing a checkpoint.
    """
    check_output_of(settings, settings.initial_model, settings.config, settings.vocab)
    start = None if settings.initial_model is None else load(settings.initial_model)
    if start is not None and (start.softmax is None or start.vocab is None):
        raise ValueError(
            f"{settings.initial_model} has no softmax to start from: `elmokit finetune` trains "
            f"one for it"
        )
    if start is not None and settings.tokenizer is None:
        settings = replace(settings, tokenizer=start.tokenizer)
    with join_processes(settings.device) as processes, fork_rng():
        on_rank_zero = processes.run_on_rank_zero
        tokenizer = _tokenizer(settings)
        language = language_of(settings, tokenizer, start and start.language)
        text = on_rank_zero(lambda: read_texts(settings, tokenizer, language))
        cool_down, directory = on_rank_zero(lambda: _cool_down(settings, text.report))
        with (
            directory_lock(directory / CHECKPOINTS) if processes.rank == 0 else nullcontext(),
            pytorch_threads(settings.threads),
        ):
            given = Vocab.read(settings.vocab) if settings.vocab else start and start.vocab
            vocab = on_rank_zero(lambda: vocabulary(settings, text.files, given))
            config = start.config if start else _model_config(settings, vocab)
            steps = total_steps(settings, text.report)
            trainer = Trainer(
                settings, config, vocab, text.files, steps, cool_down, processes, objective
            )
            if start is not None:
                trainer.start_from(start)
            identity = run_identity(trainer, text, start)
            reason, heldout = train(trainer, directory, identity, text.report, text.heldout)
            words = round(trainer.step * words_per_step(settings, text.report))
            report = PretrainReport(directory / MODEL, reason, trainer.step, words, heldout)
            card = _card(settings, trainer, text, tokenizer, language, report)
            trained = replace(trainer.model, tokenizer=tokenizer, language=language, card=card)
            if start is not None:
                trained = replace(
                    trained,
                    mix=start.mix,
                    state_policy=start.state_policy,
                    warm_state=start.warm_state,
                )
            on_rank_zero(lambda: save(trained, report.model, overwrite=True))
            return report
