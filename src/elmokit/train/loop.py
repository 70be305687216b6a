"""The training loop: step, log, evaluate, save and recover until the run ends or is interrupted."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from elmokit.data.corpus import CorpusReport, check_corpus
from elmokit.fs.atomic import remove_directory
from elmokit.lm.measures import Measure
from elmokit.progress import ProgressBar
from elmokit.train.config import PretrainConfig
from elmokit.train.divergence import LossMonitor
from elmokit.train.early_stopping import EarlyStopping
from elmokit.train.snapshots import latest_snapshot, read_snapshot, remove_latest_snapshot, write_snapshot
from elmokit.train.tracker import Tracker
from elmokit.train.trainer import Trainer

CHECKPOINTS, BEST = "checkpoints", "best"
MIN_RATE_FACTOR = 1e-6  # below it, the learning rate is not the cause of the divergence
RECOVERIES_PER_CHECKPOINT = 2  # after them, the checkpoint itself is presumed bad
OVERDUE = 5  # intervals without a checkpoint, after which one is written although the loss is a little high

Reason = Literal["end", "words", "hours", "patience"]


@dataclass(frozen=True)
class Outcome:
    """The result of `train`: why and at which step it ended, and the measure of all held-out text."""

    reason: Reason
    step: int
    heldout: Measure | None


def words_per_step(settings: PretrainConfig, report: CorpusReport) -> float:
    """Words that a step reads on average: its positions of the token stream without the sentence boundaries."""
    return settings.batch_size * settings.unroll_steps * report.words / report.stream_tokens


def _named(result: Measure) -> dict[str, Any]:
    """The values of a measure for the log, with its name."""
    return {"measure": result.measure, **asdict(result)}


class _EvaluationStopped(Exception):
    """A signal ended an evaluation before its result."""


@contextmanager
def _stop_request() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets, so that the current step is completed and saved.

    A second SIGINT interrupts at once. Outside the main thread, signals cannot be handled and the event stays unset.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, previous[0])

    previous = [signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield stop
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), previous, strict=True):
            signal.signal(number, handler)


class _Loop:
    """State of one call of `train`: the trainer, its directories, and when the last entry of the log was written."""

    def __init__(
        self, trainer: Trainer, directory: Path, tracker: Tracker, heldout: list[Path], words_per_step: float
    ) -> None:
        self.trainer, self.settings, self.tracker, self.heldout = trainer, trainer.settings, tracker, heldout
        self.checkpoints, self.best = directory / CHECKPOINTS, directory / BEST
        self.words_per_step = words_per_step
        # A cool-down has a planned end, towards which the perplexity falls.
        self.patience = None if trainer.schedule.cool_down is not None else trainer.settings.patience
        self.recoveries = 0  # since the last checkpoint
        self.saved_step = trainer.step
        self.start_time = time.monotonic()
        self.processes = trainer.processes
        self.progress = ProgressBar(
            total=trainer.last_step, initial=trainer.step, unit=" steps", desc="train",
            disable=not self.processes.is_first,
        )  # fmt: skip
        self._begin_interval()

    def run(self, stop: threading.Event) -> Reason:
        """Run the remaining steps. KeyboardInterrupt if `stop` is set before the last."""
        trainer, settings = self.trainer, self.settings
        if self.processes.of_first(lambda: latest_snapshot(self.checkpoints)) is None:
            self._save()  # so that there is always a checkpoint to recover from
        while (reason := self._reason_to_end()) is None:
            trainer.losses.append(trainer.train_step())
            self.progress.update()
            step, last = trainer.step, trainer.step == trainer.last_step
            if (step % settings.log_every == 0 or last) and not self._log() and not self._text_is_harder(stop):
                self._recover()
                continue
            # All held-out text is measured at the end; with patience the last step is also compared with those before.
            if self.heldout and (self.patience is not None if last else step % settings.evaluate_every == 0):
                self._evaluate(stop)
            is_stopped = self.processes.any(stop.is_set())
            if is_stopped or last or step % settings.checkpoint_every == 0:
                self._checkpoint(is_end=last)
            if is_stopped and not last:
                raise KeyboardInterrupt(
                    f"stopped at step {step}; run the same command again to resume from step {self.saved_step}"
                )
        if reason != "end":  # whose checkpoint has been written above
            self._checkpoint(is_end=reason != "hours")
            if self.saved_step != trainer.step:
                self._print(f"the loss is rising: the run will resume from step {self.saved_step:,}")
        return reason

    def _reason_to_end(self) -> Reason | None:
        trainer, settings = self.trainer, self.settings
        if trainer.last_step is not None and trainer.step >= trainer.last_step:
            return "end"
        if self.patience is not None and trainer.early_stopping.evaluations_since >= self.patience:
            return "patience"
        # In runs with a planned end, last_step already accounts for max_words.
        if trainer.last_step is None and trainer.step * self.words_per_step >= (settings.max_words or math.inf):
            return "words"
        if settings.max_hours is not None:
            is_over = time.monotonic() - self.start_time >= 3600 * settings.max_hours
            if self.processes.any(is_over):
                return "hours"
        return None

    def _begin_interval(self) -> None:
        self.interval_step = self.trainer.step
        self.interval_start, self.interval_processor_start = time.perf_counter(), time.process_time()

    def _log(self) -> bool:
        """Log the steps since the last entry; return False if the loss has diverged."""
        trainer = self.trainer
        losses = torch.stack(trainer.losses).mean(dim=0).tolist()
        trainer.losses = []
        named = {f"loss_{name}": loss for name, loss in zip(trainer.objective.losses, losses, strict=True)}
        mean, gradient_norm = sum(losses) / len(losses), float(trainer.gradient_norm)
        # A run that was resumed has made a part of these steps before.
        steps = trainer.step - self.interval_step
        speed = self.words_per_step * steps / (time.perf_counter() - self.interval_start)
        left = None if trainer.last_step is None else trainer.last_step - trainer.step
        self.tracker.event(
            "train", trainer.step, **named, words=round(trainer.step * self.words_per_step),
            learning_rate=trainer.learning_rate, gradient_norm=gradient_norm, words_per_second=round(speed, 1),
            processor_seconds=round(time.process_time() - self.interval_processor_start, 3),
            seconds_left=None if left is None else round(left * self.words_per_step / speed),
        )  # fmt: skip
        self.progress.set_postfix_str(f"loss {mean:.3f}, {speed:,.0f} words/s", refresh=False)
        self._begin_interval()
        return not trainer.monitor.has_diverged(mean, gradient_norm)

    def _print(self, event: str) -> None:
        if self.processes.is_first:
            self.progress.clear()
            print(event, flush=True)

    def _evaluate(self, stop: threading.Event) -> None:
        """Measure the held-out text, unless `stop` is set before the end."""
        trainer, start, processor_start = self.trainer, time.perf_counter(), time.process_time()
        result = self.processes.of_first(lambda: self._measured(stop))
        if result is None:
            return
        self.tracker.event("heldout", trainer.step, **_named(result))
        unknown = f"{result.unknown_share:.1%} of the words unknown"
        self._print(f"step {trainer.step:,}: held-out {result.measure} {result.value:.2f}, {unknown}")
        if trainer.early_stopping.improves(result.value, trainer.step) and self.patience is not None:
            self._write(self.best, keep=1)
        self.interval_start += time.perf_counter() - start  # an entry's speed is that of training alone
        self.interval_processor_start += time.process_time() - processor_start

    def _measured(self, stop: threading.Event) -> Measure | None:
        """The measure of the beginnings of the held-out text; None if `stop` was set.

        With early stopping the run depends on the result, so that the evaluation is finished.
        """

        def check() -> None:
            if stop.is_set() and self.patience is None:
                raise _EvaluationStopped

        try:
            return self.trainer.measure_heldout(self.heldout, self.settings.evaluate_words, check)
        except _EvaluationStopped:
            return None

    def compare_on_heldout(self) -> None:
        """Begin to compare evaluations anew if those before the run was resumed cannot be used.

        They are of other held-out text; or early stopping begins now, and a call without it did not keep the weights of
        the best one.
        """
        if not self.heldout:
            return
        trainer, words = self.trainer, self.settings.evaluate_words
        text = self.processes.of_first(lambda: f"{check_corpus(self.heldout).digest}, {words} words")
        if not trainer.early_stopping.is_of(text):
            self._print("the held-out text has changed: its perplexities are not compared with those before")
            trainer.early_stopping = EarlyStopping()
        trainer.early_stopping.text = text
        if self.patience is None:
            return
        if not self.processes.of_first(self._has_best_weights):
            trainer.early_stopping = EarlyStopping(text=text)
            if self.processes.is_first and self.best.exists():  # the weights of an evaluation that was not the best
                remove_directory(self.best)

    def _has_best_weights(self) -> bool:
        """Whether there are weights of the best evaluation so far, if there was any."""
        so_far, best = self.trainer.early_stopping, latest_snapshot(self.best)
        if best is None or math.isinf(so_far.best):
            return math.isinf(so_far.best)
        measured = EarlyStopping.from_dict(read_snapshot(best).progress["early_stopping"])
        return measured.is_of(so_far.text) and measured.best <= so_far.best

    def restore_best(self) -> None:
        """With early stopping, restore the weights of the best evaluation."""
        best = self.processes.of_first(lambda: latest_snapshot(self.best))
        if self.patience is None or best is None:
            return
        snapshot, so_far = read_snapshot(best), self.trainer.early_stopping
        measured = EarlyStopping.from_dict(snapshot.progress["early_stopping"])
        if measured.is_of(so_far.text) and measured.best <= so_far.best:
            self.trainer.restore(snapshot, of_any_cycle=True)

    def _checkpoint(self, is_end: bool) -> None:
        """Write a checkpoint, unless the run may be diverging; recover if it has diverged.

        At the end of the run, the model is written, and so is the checkpoint that belongs to it. A loss that stays a
        little above its minimum, as on harder text, is no divergence, and then checkpoints are written less often.
        """
        trainer = self.trainer
        if not math.isfinite(float(trainer.gradient_norm) + sum(float(loss.sum()) for loss in trainer.losses)):
            self._recover()
            return
        is_overdue = trainer.step - self.saved_step >= OVERDUE * self.settings.checkpoint_every
        if is_end or trainer.monitor.is_calm or (is_overdue and not trainer.monitor.high_intervals):
            self._save()
            self.recoveries = 0

    def _save(self) -> None:
        self.saved_step = self.trainer.step
        self._write(self.checkpoints, self.settings.keep_checkpoints)

    def _write(self, directory: Path, keep: int) -> None:
        snapshot = self.trainer.snapshot()
        self.processes.of_first(lambda: write_snapshot(directory, self.trainer.step, snapshot, keep))

    def _text_is_harder(self, stop: threading.Event) -> bool:
        """Whether the loss is high because the text is harder, as where another domain begins, and not by divergence.

        The weights of the last checkpoint are run without learning on the text read since then. If their loss is as
        high, the loss monitor starts anew; otherwise the training has diverged. If `stop` interrupts this, the answer
        is yes: no checkpoint is written while the loss is high, so the resumed run checks again.
        """
        trainer, end = self.trainer, self.trainer.step
        finite = all(bool(parameter.isfinite().all()) for parameter in trainer.parameters)
        if not finite or not math.isfinite(float(trainer.gradient_norm)):
            return False
        here, high = trainer.snapshot(), trainer.monitor.lowest + trainer.monitor.margin
        trainer.restore(read_snapshot(self._last_checkpoint()), of_any_cycle=True)
        trainer.rate_factor, losses, is_stopped = 0.0, [], False
        while trainer.step < end and not is_stopped:
            losses.append(trainer.train_step())
            is_stopped = self.processes.any(stop.is_set())
        before = float(torch.stack(losses[-self.settings.log_every :]).mean())
        trainer.restore(here)
        self._begin_interval()
        if is_stopped:
            return True
        if not before > high:  # also where it is not a number
            return False
        trainer.monitor = LossMonitor()
        self.tracker.event("harder_text", end, loss_before=before)
        self._print(
            f"step {end:,}: the loss is high, but with the weights of the last checkpoint it is {before:.2f} on this "
            "text: the text is harder here, and the run goes on (`elmokit prepare` shuffles a corpus)"
        )
        return True

    def _last_checkpoint(self) -> Path:
        last = self.processes.of_first(lambda: latest_snapshot(self.checkpoints))
        assert last is not None, "`run` writes a checkpoint before the first step"
        return last

    def _recover(self) -> None:
        """Restore the last checkpoint, which precedes the divergence, and lower the learning rate."""
        diverged_at = self.trainer.step
        self.recoveries += 1
        if self.recoveries > RECOVERIES_PER_CHECKPOINT:
            self.processes.of_first(lambda: remove_latest_snapshot(self.checkpoints))
        last = self._last_checkpoint()
        # Divide by 2, then 4, then 8: a spike costs little, and a rate that is far too high is soon low enough.
        rate_factor = self.trainer.rate_factor * 0.5**self.recoveries
        if rate_factor < MIN_RATE_FACTOR:
            raise ValueError(
                f"the loss diverged at step {diverged_at}, even after lowering the learning rate repeatedly: check the "
                "corpus, set a lower learning rate, or use dtype float32; the last checkpoint precedes the divergence"
            )
        measured = self.trainer.early_stopping
        self.trainer.restore(read_snapshot(last), of_any_cycle=True)
        if self.patience is not None:
            # An evaluation after that checkpoint may have been the best so far: best/ has its weights.
            self.trainer.early_stopping.keep_best_of(measured)
        self.trainer.rate_factor = rate_factor
        self.saved_step = self.trainer.step
        self.progress.update(self.trainer.step - self.progress.n)
        self.tracker.event(
            "diverged", diverged_at, restored=self.trainer.step, rate_factor=self.trainer.rate_factor,
            recoveries=self.recoveries,
        )  # fmt: skip
        self._print(
            f"step {diverged_at:,}: the loss diverged; resuming from step {self.trainer.step:,} with the learning "
            f"rate multiplied by {self.trainer.rate_factor:g}"
        )
        self._begin_interval()


def train(trainer: Trainer, directory: Path, report: CorpusReport, heldout: list[Path]) -> Outcome:
    """Run the remaining steps, starting from the latest snapshot in `directory` if there is one.

    Args:
        trainer: A trainer at step 0.
        directory: Directory for log.jsonl, checkpoints/ and, with early stopping, best/.
        report: Statistics of the corpus.
        heldout: Files to measure: the beginning of each during training, all text at the end.

    Returns:
        Why the run ended, and the final measure of the held-out text. With early stopping, the trainer holds the
        weights of the best evaluation.

    Raises:
        KeyboardInterrupt: The run was interrupted by a signal; its last step is saved, or, while the loss is rising,
            the last checkpoint before.
        ValueError: The loss diverged repeatedly.
    """
    processes = trainer.processes
    last = processes.of_first(lambda: latest_snapshot(directory / CHECKPOINTS))
    if last is not None:
        trainer.restore(read_snapshot(last))
    with closing(Tracker(directory if processes.is_first else None, trainer.settings.tensorboard)) as tracker:
        kind = "start" if last is None else "resume"
        settings = asdict(trainer.settings) | {"dtype": str(trainer.dtype).removeprefix("torch.")}  # not "auto"
        tracker.event(kind, trainer.step, total_steps=trainer.last_step, settings=settings, **asdict(report))
        loop = _Loop(trainer, directory, tracker, heldout, words_per_step(trainer.settings, report))
        loop.compare_on_heldout()
        with closing(loop.progress), _stop_request() as stop:
            reason, step = loop.run(stop), trainer.step
        loop.restore_best()
        result = processes.of_first(lambda: trainer.measure_heldout(heldout, None)) if heldout else None
        cut = trainer.cut_sentences
        tracker.event("end", trainer.step, reason=reason, cut_sentences=cut, **(_named(result) if result else {}))
    return Outcome(reason, step, result)
