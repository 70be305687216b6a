"""Pretraining a biLM on plain text: from settings to a finished model."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import torch

from elmokit.checkpoints.loading import save
from elmokit.config import BiLMConfig
from elmokit.data.corpus import CorpusReport, check_corpus, find_files
from elmokit.fs.atomic import link_or_copy_directory
from elmokit.fs.lock import only_one_in
from elmokit.fs.reading import read_lines
from elmokit.lm.evaluate import Perplexity
from elmokit.text.vocab import SPECIALS, Vocab, count_words
from elmokit.train.config import PretrainConfig
from elmokit.train.loop import CHECKPOINTS, Outcome, Reason, train, words_per_step
from elmokit.train.schedule import CoolDown
from elmokit.train.snapshots import latest_snapshot, snapshot_path, step_of
from elmokit.train.trainer import Trainer, recipe_of

LINES_TO_CHECK_ORDER = 100_000


def _model_config(settings: PretrainConfig, vocab: Vocab) -> BiLMConfig:
    if settings.config is None:
        return BiLMConfig.preset(settings.preset)
    values = json.loads(settings.config.read_text(encoding="utf-8"))
    config = BiLMConfig.from_dict(values.get("model", values))
    if config.num_words is None:
        return config
    # A word-id model has a row for each word of its vocabulary.
    return BiLMConfig(config.lstm, None, len(vocab), (vocab.bos, vocab.eos))


def _check_order(vocab: Vocab, path: Path, files: list[Path]) -> None:
    """The sampled softmax draws by rank: it needs words by falling count, which a sample of the corpus shows.

    ValueError where the specials are not first, or later words are about as frequent as earlier ones.
    """
    if vocab.words[: len(SPECIALS)] != SPECIALS:
        raise ValueError(f"{path} must begin with {' '.join(SPECIALS)}, a line each")
    counts: Counter[str] = Counter()
    for line in islice(chain.from_iterable(map(read_lines, files)), LINES_TO_CHECK_ORDER):
        counts.update(line.split())
    words = vocab.words[len(SPECIALS) :]
    first, second = (
        sum(map(counts.__getitem__, half)) for half in (words[: len(words) // 2], words[len(words) // 2 :])
    )
    if second > first:
        raise ValueError(
            f"{path} is not sorted by falling count: its second half holds {second:,} words of the corpus's beginning, "
            f"its first {first:,}. Sort it, or let elmokit make a vocabulary (leave --vocab out)"
        )


def vocabulary(settings: PretrainConfig, files: list[Path]) -> Vocab:
    """The given vocabulary, or the one of the run, made from the corpus before its first step."""
    made = settings.output / "vocab.txt"
    if settings.vocab is not None:
        vocab = Vocab.read(settings.vocab)
        if settings.num_samples:
            _check_order(vocab, settings.vocab, files)
        return vocab
    if latest_snapshot(settings.output / "checkpoints") is None:
        Vocab.from_counts(count_words(files), settings.min_count, settings.vocab_size).write(made)
    return Vocab.read(made)


def total_steps(settings: PretrainConfig, report: CorpusReport) -> int | None:
    """Steps of the whole run, by the passes or by the words that are asked for; None for a constant schedule."""
    if recipe_of(settings).schedule == "constant":
        return None
    words = settings.epochs * report.words
    if settings.max_words is not None:
        words = min(words, settings.max_words)
    return max(1, int(words / words_per_step(settings, report)))


def tell(what: str, report: CorpusReport) -> None:
    """Print what a corpus holds."""
    too_long = f"; {report.long_words:,} words have more than 48 bytes, of which a model of characters reads no more"
    long = too_long if report.long_words else ""
    print(f"{what}: {report.files} files, {report.sentences:,} sentences, {report.words:,} words{long}", flush=True)


def corpus_tokenizer(corpus: tuple[Path, ...]) -> str | None:
    """The tokenizer that `elmokit prepare` noted; None where the text came from elsewhere."""
    for path in corpus:
        note = (path if path.is_dir() else path.parent) / "corpus.json"
        if note.is_file():
            return json.loads(note.read_text(encoding="utf-8"))["options"]["tokenizer"]
    return None


@dataclass(frozen=True)
class PretrainReport:
    """The outcome of pretraining.

    Attributes:
        model: Directory of the model; None where the run is to go on before there is one.
        reason: Why this call ended: at the planned end, or by max_words, max_hours or patience.
        step: Steps of the whole run.
        words: Words that were read in them.
        perplexity: That of all held-out text, where there is some.
    """

    model: Path | None
    reason: Reason
    step: int
    words: int
    perplexity: Perplexity | None

    def __str__(self) -> str:
        why = {"end": "finished", "words": "max_words", "hours": "max_hours", "patience": "held-out perplexity"}
        lines = [f"{self.step:,} steps, {self.words:,} words; ended by: {why[self.reason]}"]
        if self.perplexity is not None:
            found = self.perplexity
            lines.append(
                f"held-out perplexity: {found.mean:.2f} (forward {found.forward:.2f}, backward {found.backward:.2f})"
            )
        lines.append("model: none yet, the same command goes on" if self.model is None else f"model: {self.model}")
        return "\n".join(lines)


def _card(trainer: Trainer, report: CorpusReport, words: int, outcome: Outcome) -> str:
    settings, final, cool_down = trainer.settings, outcome.perplexity, trainer.schedule.cool_down
    lines = [
        "# An ELMo biLM trained by elmokit",
        "",
        f"- words seen: {words:,} of a corpus of {report.words:,} ({words / report.words:.2f} passes)",
        f"- recipe: {settings.recipe}, learning rate {trainer.recipe.learning_rate:g} ({trainer.schedule.name}), "
        f"batch {settings.batch_size} x {settings.unroll_steps}, {trainer.step:,} steps",
        f"- seed: {settings.seed}",
    ]
    if cool_down is not None:
        lines.append(f"- cool-down: from step {cool_down.start:,} over {cool_down.steps:,} steps")
    elif trainer.last_step is None:
        lines.append("- the learning rate was still constant: `--cool-down` makes a better model of this run")
    if trainer.rate_factor != 1:
        lines.append(f"- the loss diverged on the way; the learning rate was multiplied by {trainer.rate_factor:g}")
    if final is not None:
        lines.append(
            f"- held-out perplexity (exact softmax, state carried): forward {final.forward:.2f}, "
            f"backward {final.backward:.2f}, mean {final.mean:.2f}"
        )
    return "\n".join(lines) + "\n"


def _cool_down(settings: PretrainConfig, report: CorpusReport) -> tuple[CoolDown, Path]:
    """The cool-down that is asked for, and its directory, which has a copy of the checkpoint it begins with."""
    assert settings.cool_down is not None
    begin = settings.cool_down_from
    checkpoints = settings.output / CHECKPOINTS
    if begin is None:
        newest = latest_snapshot(checkpoints)
        if newest is None:
            raise ValueError(f"{checkpoints} holds no checkpoint to cool down from: pretrain without cool_down first")
        begin = step_of(newest)
    steps_per_word = 1 / words_per_step(settings, report)
    words = settings.cool_down if settings.cool_down >= 1 else settings.cool_down * begin / steps_per_word
    cool_down = CoolDown(begin, max(1, round(words * steps_per_word)))
    directory = settings.output / f"cool-down-{begin:08d}-{cool_down.steps}"
    if latest_snapshot(directory / CHECKPOINTS) is None:
        source = snapshot_path(checkpoints, begin)
        if not source.is_dir():
            raise ValueError(f"there is no checkpoint {source}: choose one of those in {checkpoints}")
        # The run may go on meanwhile, and remove its old checkpoints.
        link_or_copy_directory(source, snapshot_path(directory / CHECKPOINTS, begin))
    return cool_down, directory


def pretrain(settings: PretrainConfig) -> PretrainReport:
    """Train, or go on training, a biLM.

    A run of constant schedule has no planned end. Its model is written when it is stopped by max_words, max_hours or
    patience; `cool_down` makes a better one, in a directory of its own, cool-down-STEP-STEPS, any number of times.

    Args:
        settings: The text, the model and how to train; the same settings resume a run.

    Returns:
        Where the model is, and how it was made.

    Raises:
        ValueError: Settings that make no sense, text that cannot be read, a checkpoint of another run, or a loss that
            diverges at every learning rate.
        FileNotFoundError: There is no such text.
        KeyboardInterrupt: Stopped by SIGINT or SIGTERM, with a checkpoint.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    files, heldout = find_files(settings.corpus), find_files(settings.heldout)
    if not files:
        raise ValueError("there is no corpus to train on: name files or directories")
    report = check_corpus(files)
    tell("corpus", report)
    if heldout:
        tell("held out", check_corpus(heldout))
    cool_down, directory = None, settings.output
    if settings.cool_down is not None:
        cool_down, directory = _cool_down(settings, report)
    with only_one_in(directory):
        vocab = vocabulary(settings, files)
        config = _model_config(settings, vocab)
        trainer = Trainer(settings, config, vocab, files, total_steps(settings, report), report.digest, cool_down)
        outcome = train(trainer, directory, report, heldout)
        words = round(trainer.step * words_per_step(settings, report))
        model = None
        if outcome.reason != "hours" or trainer.last_step is None:
            model = directory / "model"
            tokenizer = settings.tokenizer or corpus_tokenizer(settings.corpus)
            save(trainer.pretrained(tokenizer, _card(trainer, report, words, outcome)), model, overwrite=True)
    return PretrainReport(model, outcome.reason, trainer.step, words, outcome.perplexity)
