"""Pretraining a biLM on plain text: from settings to a finished model, by a loop that can be stopped at any step."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from elmokit.checkpoints.loading import save
from elmokit.config import BiLMConfig
from elmokit.data.corpus import CorpusReport, check_corpus, find_files
from elmokit.fs.lock import only_one_in
from elmokit.fs.reading import read_lines
from elmokit.lm.evaluate import Perplexity
from elmokit.runtime import keep_freed_memory
from elmokit.text.vocab import SPECIALS, Vocab, count_words
from elmokit.train.settings import PretrainSettings
from elmokit.train.snapshots import latest_snapshot, read_snapshot, write_snapshot
from elmokit.train.tracker import Tracker
from elmokit.train.trainer import Trainer

LINES_TO_CHECK_ORDER = 100_000


def _model_config(settings: PretrainSettings, vocab: Vocab) -> BiLMConfig:
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


def vocabulary(settings: PretrainSettings, files: list[Path]) -> Vocab:
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


def words_per_step(settings: PretrainSettings, report: CorpusReport) -> float:
    """Words of text that a step reads: positions of the stream less its boundaries."""
    return settings.batch_size * settings.unroll_steps * report.words / report.stream_tokens


def total_steps(settings: PretrainSettings, report: CorpusReport) -> int:
    """Steps of the whole run, by the passes or by the words that are asked for."""
    words = settings.epochs * report.words
    if settings.max_words is not None:
        words = min(words, settings.max_words)
    return max(1, int(words / words_per_step(settings, report)))


@contextmanager
def _stop_request() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C or SIGTERM: the step under way ends and is written. A second Ctrl-C stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before[0])

    before = [signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield stop
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


def _check_finite(trainer: Trainer, losses: Tensor) -> None:
    """Asked before a line of the log and before a checkpoint: a gradient that is no number has spoilt the weights."""
    if not math.isfinite(float(losses.sum()) + float(trainer.gradient_norm)):
        raise ValueError(
            f"the loss is not a finite number at step {trainer.step}: lower the learning rate, or use dtype float32; "
            "the last checkpoint is from before"
        )


def tell(what: str, report: CorpusReport) -> None:
    """Print what a corpus holds."""
    too_long = f"; {report.long_words:,} words have more than 48 bytes, of which a model of characters reads no more"
    long = too_long if report.long_words else ""
    print(f"{what}: {report.files} files, {report.sentences:,} sentences, {report.words:,} words{long}", flush=True)


def _log(tracker: Tracker, bar: Any, trainer: Trainer, losses: Tensor, words_per_second: float, words: float) -> None:
    _check_finite(trainer, losses)
    forward, backward = losses.tolist()
    left = (trainer.total_steps - trainer.step) * words / words_per_second
    tracker.event(
        "train", trainer.step, loss_forward=forward, loss_backward=backward,
        words=round(trainer.step * words), learning_rate=trainer.optimizer.param_groups[0]["lr"],
        gradient_norm=float(trainer.gradient_norm),
        words_per_second=round(words_per_second, 1), seconds_left=round(left),
    )  # fmt: skip
    bar.set_postfix_str(f"loss {(forward + backward) / 2:.3f}, {words_per_second:.0f} words/s")


def _loop(trainer: Trainer, tracker: Tracker, heldout: list[Path], stop: threading.Event, words: float) -> None:
    """Step, log, evaluate, save, until all steps are done or a stop is asked for. `words` are those of a step."""
    settings, checkpoints = trainer.settings, trainer.settings.output / "checkpoints"
    bar = tqdm(total=trainer.total_steps, initial=trainer.step, unit="step", desc="pretrain", disable=None)
    since, losses = time.perf_counter(), []
    while trainer.step < trainer.total_steps:
        losses.append(loss := trainer.train_step())
        bar.update()
        step, last = trainer.step, trainer.step == trainer.total_steps
        if step % settings.log_every == 0 or last:
            seconds = time.perf_counter() - since
            _log(tracker, bar, trainer, torch.stack(losses).mean(dim=0), words * len(losses) / seconds, words)
            since, losses = time.perf_counter(), []
        if heldout and step % settings.evaluate_every == 0 and not last:
            result = trainer.heldout_perplexity(heldout, settings.evaluate_words)
            tracker.event("heldout", step, **asdict(result))
            since, losses = time.perf_counter(), []
        if step % settings.checkpoint_every == 0 or last or stop.is_set():
            _check_finite(trainer, loss)
            write_snapshot(checkpoints, step, trainer.snapshot(), settings.keep_checkpoints)
        if stop.is_set() and not last:
            raise KeyboardInterrupt(f"stopped at step {step}; the same command goes on from there")
    bar.close()


def train(trainer: Trainer, report: CorpusReport, heldout: list[Path]) -> Perplexity | None:
    """All steps that are left, from the last snapshot where there is one; then the perplexity of all held-out text."""
    settings = trainer.settings
    keep_freed_memory()
    last = latest_snapshot(settings.output / "checkpoints")
    if last is not None:
        trainer.restore(read_snapshot(last))
    with closing(Tracker(settings.output, settings.tensorboard)) as tracker:
        kind = "start" if last is None else "resume"
        tracker.event(kind, trainer.step, total_steps=trainer.total_steps, settings=asdict(settings), **asdict(report))
        with _stop_request() as stop:
            _loop(trainer, tracker, heldout, stop, words_per_step(settings, report))
        final = trainer.heldout_perplexity(heldout, None) if heldout else None
        tracker.event("end", trainer.step, **(asdict(final) if final else {}))
    return final


def corpus_tokenizer(corpus: tuple[Path, ...]) -> str | None:
    """The tokenizer that `elmokit prepare` noted; None where the text came from elsewhere."""
    for path in corpus:
        note = (path if path.is_dir() else path.parent) / "corpus.json"
        if note.is_file():
            return json.loads(note.read_text(encoding="utf-8"))["options"]["tokenizer"]
    return None


def _card(settings: PretrainSettings, report: CorpusReport, steps: int, final: Perplexity | None) -> str:
    words = round(steps * words_per_step(settings, report))
    lines = [
        "# An ELMo biLM trained by elmokit",
        "",
        f"- words seen: {words:,} of a corpus of {report.words:,} ({words / report.words:.2f} passes)",
        f"- recipe: {settings.recipe}, batch {settings.batch_size} x {settings.unroll_steps}, {steps:,} steps",
        f"- seed: {settings.seed}",
    ]
    if final is not None:
        lines.append(
            f"- held-out perplexity (exact softmax, state carried): forward {final.forward:.2f}, "
            f"backward {final.backward:.2f}, mean {final.mean:.2f}"
        )
    return "\n".join(lines) + "\n"


def pretrain(settings: PretrainSettings) -> Path:
    """Train, or go on training, a biLM as `settings` say; returns the directory of the finished model."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    with only_one_in(settings.output):
        files, heldout = find_files(settings.corpus), find_files(settings.heldout)
        if not files:
            raise ValueError("there is no corpus to train on: name files or directories")
        report = check_corpus(files)
        tell("corpus", report)
        if heldout:
            tell("held out", check_corpus(heldout))
        vocab = vocabulary(settings, files)
        config = _model_config(settings, vocab)
        trainer = Trainer(settings, config, vocab, files, total_steps(settings, report), report.digest)
        final = train(trainer, report, heldout)
        card = _card(settings, report, trainer.step, final)
        model = settings.output / "model"
        tokenizer = settings.tokenizer or corpus_tokenizer(settings.corpus)
        save(trainer.pretrained(tokenizer, card), model, overwrite=True)
    return model
