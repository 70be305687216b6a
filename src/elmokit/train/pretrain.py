"""Pretraining a biLM on plain text: the loop, and what it needs to be stopped and resumed at any step."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from elmokit.config import BiLMConfig
from elmokit.data.corpus import CorpusReport, Position, SentenceReader, check_corpus, find_files
from elmokit.data.streams import TrainingStream, Window, word_ids
from elmokit.files import read_lines
from elmokit.io.checkpoint import save
from elmokit.io.pretrained import Pretrained
from elmokit.lm.evaluate import Perplexity, perplexity
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.packing import Packing
from elmokit.nn.softmax import FullSoftmax, LogUniformSampler
from elmokit.runtime import pick_device, pick_dtype, seed_everything
from elmokit.text.vocab import Vocab, count_words
from elmokit.train.optim import make_optimizer, optimizer_tensors, recipe, restore_optimizer, set_rate
from elmokit.train.settings import PretrainSettings
from elmokit.train.snapshots import Snapshot, latest_snapshot, read_snapshot, with_prefix, write_snapshot
from elmokit.train.tracker import Tracker

# What may differ between a run and its resumption: where it is written, what it tells, how many cores it has.
FREE_SETTINGS = {
    "corpus", "output", "heldout", "vocab", "config", "device", "threads", "log_every", "evaluate_every",
    "evaluate_words", "checkpoint_every", "keep_checkpoints", "tokenizer", "tensorboard",
}  # fmt: skip


class Trainer:
    """A model in training: everything that a step reads and changes."""

    def __init__(
        self, settings: PretrainSettings, config: BiLMConfig, vocab: Vocab, files: list[Path], total_steps: int
    ) -> None:
        seed_everything(settings.seed)
        self.settings, self.config, self.vocab, self.total_steps = settings, config, vocab, total_steps
        self.device = pick_device(settings.device)
        self.dtype = pick_dtype(settings.dtype, self.device)
        self.bilm = BiLM(config).to(self.device)
        self.softmax = FullSoftmax(len(vocab), config.lstm.projection_dim).to(self.device)
        self.parameters: list[nn.Parameter] = [*self.bilm.parameters(), *self.softmax.parameters()]
        self.recipe = recipe(settings.recipe, settings.learning_rate)
        self.optimizer = make_optimizer(settings.recipe, self.parameters, self.recipe.learning_rate)
        self.sampler = LogUniformSampler(len(vocab), settings.num_samples) if settings.num_samples else None
        self.draws = torch.Generator().manual_seed(settings.seed)
        self.state = self.bilm.initial_state(settings.batch_size)
        self.packing = Packing.rectangle(settings.unroll_steps, settings.batch_size)
        self._files = files
        self.read_from(Position(), None)
        self.step = 0

    def read_from(self, position: Position, rows: Any) -> None:
        settings = self.settings
        self.reader = SentenceReader(self._files, settings.seed, position)
        self.stream = TrainingStream(self.reader, self.vocab, settings.batch_size, settings.unroll_steps, rows)

    def train_step(self) -> Tensor:
        """One window: forward, backward, update. Returns the two directions' mean losses."""
        set_rate(self.optimizer, self.recipe.rate(self.step, self.total_steps))
        losses = self._losses(next(self.stream))
        loss = losses.mean()
        (loss * self.settings.unroll_steps if self.recipe.multiply_loss_by_steps else loss).backward()
        self.gradient_norm = nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return losses.detach()

    def _losses(self, window: Window) -> Tensor:
        ids = word_ids(window.words, self.config, self.vocab).to(self.device)
        tokens, targets = window.tokens.to(self.device), window.targets.to(self.device)
        low = self.dtype != torch.float32
        with torch.autocast(self.device.type, self.dtype) if low else nullcontext():
            words = self.bilm.encode_words(ids)
            layers, state = self.bilm.run_packed(words, tokens, self.packing, self.state, dropout=self.settings.dropout)
            self.state = BiLMState(state.h.detach(), state.c.detach())
            return torch.stack([self._loss(layers[-1][d], targets[d]) for d in range(2)])

    def _loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        if self.sampler is None:
            return self.softmax.log_losses(hidden, targets).mean()
        return self.softmax.sampled_losses(hidden, targets, self.sampler.sample(self.draws), self.sampler).mean()

    def snapshot(self) -> Snapshot:
        tensors = (
            with_prefix("bilm", self.bilm.state_dict())
            | with_prefix("softmax", self.softmax.state_dict())
            | with_prefix("optimizer", optimizer_tensors(self.optimizer))
            | with_prefix("state", {"h": self.state.h, "c": self.state.c})
            | with_prefix("random", {"torch": torch.get_rng_state(), "draws": self.draws.get_state()})
        )
        if self.device.type == "cuda":
            tensors |= with_prefix("random", {"cuda": torch.cuda.get_rng_state(self.device)})
        progress = {
            "step": self.step,
            "position": self.reader.position.to_dict(),
            "rows": self.stream.rows,
            "settings": _fixed_settings(self.settings),
            "config": self.config.to_dict(),
        }
        return Snapshot(tensors, progress)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot. ValueError naming every setting in which it was made differently."""
        _check_same(snapshot.progress, _fixed_settings(self.settings), self.config)
        self.bilm.load_state_dict(snapshot.part("bilm"))
        self.softmax.load_state_dict(snapshot.part("softmax"))
        restore_optimizer(self.optimizer, snapshot.part("optimizer"))
        self.state = BiLMState(**{name: tensor.to(self.device) for name, tensor in snapshot.part("state").items()})
        random = snapshot.part("random")
        torch.set_rng_state(random["torch"])
        self.draws.set_state(random["draws"])
        if "cuda" in random and self.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self.device)
        self.read_from(Position(**snapshot.progress["position"]), snapshot.progress["rows"])
        self.step = snapshot.progress["step"]

    def heldout_perplexity(self, files: list[Path], words: int | None) -> Perplexity:
        """Exact perplexity of the files, or of about `words` words, the first of each file."""
        each = None if words is None else words // len(files)
        sentences = chain.from_iterable(_first_sentences(file, each) for file in files)
        return perplexity(self.bilm, self.softmax, self.vocab, sentences, batch_size=32)

    def pretrained(self, tokenizer: str | None, card: str = "") -> Pretrained:
        return Pretrained(self.bilm, softmax=self.softmax, vocab=self.vocab, tokenizer=tokenizer, card=card)


def pretrain(settings: PretrainSettings) -> Path:
    """Train, or go on training, a biLM as `settings` say; returns the directory of the finished model."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    files, heldout = find_files(settings.corpus), find_files(settings.heldout)
    settings.output.mkdir(parents=True, exist_ok=True)
    config = _model_config(settings)
    report = check_corpus(files, config.char_cnn.max_characters if config.char_cnn else 50)
    vocab = _vocabulary(settings, files)
    config = _with_words(config, vocab)
    total_steps = _total_steps(settings, report)
    trainer = Trainer(settings, config, vocab, files, total_steps)
    checkpoints = settings.output / "checkpoints"
    if (last := latest_snapshot(checkpoints)) is not None:
        trainer.restore(read_snapshot(last))
    tracker = Tracker(settings.output, settings.tensorboard)
    tracker.event(
        "resume" if last else "start",
        trainer.step,
        total_steps=total_steps,
        settings=asdict(settings),
        **asdict(report),
    )
    with _stop_request() as stop:
        _loop(trainer, tracker, heldout, checkpoints, stop, words_per_step(settings, report))
    tokenizer = settings.tokenizer or _corpus_tokenizer(settings.corpus)
    final = trainer.heldout_perplexity(heldout, None) if heldout else None
    tracker.event("end", trainer.step, **(asdict(final) if final else {}))
    tracker.close()
    model = settings.output / "model"
    save(trainer.pretrained(tokenizer, _card(settings, report, trainer.step, final)), model, overwrite=True)
    return model


def _loop(
    trainer: Trainer, tracker: Tracker, heldout: list[Path], checkpoints: Path, stop: threading.Event, words: float
) -> None:
    settings = trainer.settings
    bar = tqdm(total=trainer.total_steps, initial=trainer.step, unit="step", desc="pretrain", mininterval=1)
    since, losses = time.perf_counter(), []
    while trainer.step < trainer.total_steps:
        losses.append(trainer.train_step())
        bar.update()
        step, last = trainer.step, trainer.step == trainer.total_steps
        if step % settings.log_every == 0 or last:
            seconds = time.perf_counter() - since
            _log(tracker, bar, trainer, torch.stack(losses).mean(dim=0), words * len(losses) / seconds)
            since, losses = time.perf_counter(), []
        if heldout and (step % settings.evaluate_every == 0) and not last:
            result = trainer.heldout_perplexity(heldout, settings.evaluate_words)
            tracker.event("heldout", step, **asdict(result))
            since = time.perf_counter()
        if step % settings.checkpoint_every == 0 or last or stop.is_set():
            write_snapshot(checkpoints, step, trainer.snapshot(), settings.keep_checkpoints)
        if stop.is_set() and not last:
            raise KeyboardInterrupt(f"stopped at step {step}; the same command goes on from there")
    bar.close()


def _log(tracker: Tracker, bar: Any, trainer: Trainer, losses: Tensor, words_per_second: float) -> None:
    forward, backward = losses.tolist()
    if not math.isfinite(forward + backward):
        raise ValueError(
            f"the loss is not a finite number at step {trainer.step}: lower the learning rate, or use dtype float32; "
            "the last checkpoint is from before"
        )
    left = (
        (trainer.total_steps - trainer.step)
        * trainer.settings.batch_size
        * trainer.settings.unroll_steps
        / words_per_second
    )
    rate = trainer.optimizer.param_groups[0]["lr"]
    tracker.event(
        "train", trainer.step, loss_forward=forward, loss_backward=backward, learning_rate=rate,
        gradient_norm=float(trainer.gradient_norm), words_per_second=round(words_per_second, 1),
        seconds_left=round(left),
    )  # fmt: skip
    bar.set_postfix_str(f"loss {(forward + backward) / 2:.3f}, {words_per_second:.0f} words/s")


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


def words_per_step(settings: PretrainSettings, report: CorpusReport) -> float:
    """Words of text that a step reads: positions of the stream less its boundaries."""
    return settings.batch_size * settings.unroll_steps * report.words / report.stream_tokens


def _total_steps(settings: PretrainSettings, report: CorpusReport) -> int:
    words = settings.epochs * report.words
    if settings.max_words is not None:
        words = min(words, settings.max_words)
    return max(1, int(words / words_per_step(settings, report)))


def _model_config(settings: PretrainSettings) -> BiLMConfig:
    if settings.config is None:
        return BiLMConfig.preset(settings.preset)
    return BiLMConfig.from_dict(json.loads(settings.config.read_text(encoding="utf-8")))


def _with_words(config: BiLMConfig, vocab: Vocab) -> BiLMConfig:
    """A word-id model has a row for each word of its vocabulary."""
    if config.char_cnn is not None:
        return config
    return BiLMConfig(config.lstm, None, len(vocab), (vocab.bos, vocab.eos))


def _vocabulary(settings: PretrainSettings, files: list[Path]) -> Vocab:
    """The given vocabulary, or the one of the run, made from the corpus the first time."""
    made = settings.output / "vocab.txt"
    if settings.vocab is not None:
        return Vocab.read(settings.vocab)
    if not made.exists():
        Vocab.from_counts(count_words(files), settings.min_count, settings.vocab_size).write(made)
    return Vocab.read(made)


def _fixed_settings(settings: PretrainSettings) -> dict[str, Any]:
    return {name: value for name, value in asdict(settings).items() if name not in FREE_SETTINGS}


def _check_same(progress: dict[str, Any], settings: dict[str, Any], config: BiLMConfig) -> None:
    before = progress["settings"] | {"model": BiLMConfig.from_dict(progress["config"])}
    now = settings | {"model": config}
    differing = [
        f"{name} was {before.get(name)}, is {now.get(name)}" for name in now if before.get(name) != now.get(name)
    ]
    if differing:
        raise ValueError(
            "the checkpoint in the output directory is of another run: "
            + "; ".join(differing)
            + ". Use the same settings to resume it, or another output directory"
        )


def _first_sentences(file: Path, words: int | None) -> Iterator[list[str]]:
    count = 0
    for line in read_lines(file):
        if words is not None and count >= words:
            return
        sentence = line.split()
        count += len(sentence)
        if sentence:
            yield sentence


def _corpus_tokenizer(corpus: tuple[Path, ...]) -> str | None:
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
