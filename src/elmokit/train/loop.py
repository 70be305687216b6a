"""The training loop of pretraining and fine-tuning: evaluate, save, step, log, until a run ends."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from elmokit.checkpoints import Pretrained
from elmokit.fs import read_lines
from elmokit.lm import Perplexity
from elmokit.progress import ProgressBar
from elmokit.train.corpus import CorpusReport
from elmokit.train.snapshots import (
    latest_snapshot,
    read_snapshot,
    remove_latest_snapshot,
    write_snapshot,
)
from elmokit.train.trainer import Settings, Trainer

CHECKPOINTS, LOG = "checkpoints", "log.jsonl"  # in the directory of a run
MAX_CHECKPOINTS = 2  # older snapshots are removed
SMOOTHING = 0.9  # weight of the past in the smoothed loss
# Training has diverged if the smoothed loss exceeds its minimum by so many nats per word.
DIVERGENCE_THRESHOLD = 1.5
MAX_LR_HALVINGS = 3  # in a run: after these, the learning rate is not what makes it diverge

Reason = Literal["end", "words", "hours"]


def words_per_step(settings: Settings, report: CorpusReport) -> float:
    """Words that a step reads on average: its positions without the sentence boundaries."""
    return settings.batch_size * settings.unroll_steps * report.words / report.stream_tokens


def measure_heldout(model: Pretrained, files: Sequence[Path], words: int | None) -> Perplexity:
    """The perplexity of files, or of `words` words from their beginnings; as `evaluate`."""

    def sentences(file: Path, words: int) -> Iterator[list[str]]:
        for line in read_lines(file):
            if sentence := line.split()[:words]:
                yield sentence
            if (words := words - len(sentence)) <= 0:
                return

    share = sys.maxsize if words is None else max(1, words // len(files))
    # 300 words of three files: the first 100 of each. The state is carried through each file, but
    # not from one to the next.
    texts = (sentences(file, share) for file in files if next(sentences(file, 1), None))
    return reduce(add, (Perplexity.of(model, text) for text in texts))


@contextmanager
def _stop_request() -> Iterator[threading.Event]:
    """An event that SIGINT or SIGTERM sets, so that the current step is completed and saved.

    A second SIGINT interrupts at once. Outside the main thread, signals cannot be handled and the
    event stays unset.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before[signal.SIGINT])

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _now() -> np.ndarray:
    """Wall-clock and CPU seconds."""
    return np.array([time.perf_counter(), time.process_time()])


class EventLog:
    """Appends events to `log.jsonl`, one JSON line each; without a directory it does nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._file: Any = None
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / LOG
            if path.is_file():  # the run may have been killed while it wrote a line
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append a line: time (seconds since 1970), kind of event, step, values.

        Numbers that are not finite, which JSON lacks, become null.
        """
        if self._file is not None:
            event = {"time": round(time.time(), 3), "event": kind, "step": step}
            for name, value in values.items():
                is_missing = isinstance(value, float) and not math.isfinite(value)
                event[name] = None if is_missing else value
            self._file.write(json.dumps(event, default=str) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@dataclass
class _Curve:
    """The smoothed loss, and its lowest value so far; a snapshot has it, too."""

    lowest: float
    smoothed: float | None = None


class _Run:
    """A run in a directory: its trainer, log and snapshots, and the parts of an iteration."""

    def __init__(
        self, trainer: Trainer, directory: Path, identity: dict[str, Any], report: CorpusReport
    ) -> None:
        self.trainer, self.settings, self.processes = trainer, trainer.settings, trainer.processes
        self.on_rank_zero = self.processes.run_on_rank_zero
        self.checkpoints, self.identity = directory / CHECKPOINTS, identity
        self.words_per_step = words_per_step(self.settings, report)
        self.last_step = trainer.schedule.last_step
        self.curve = _Curve(lowest=math.log(len(trainer.vocab)))
        self.losses: list[torch.Tensor] = []  # losses since the last entry of the log
        self.saved = self.restored = -1  # steps of the latest snapshot, and of going back
        self.began = time.monotonic()
        is_resumed = self.restore()
        is_first = self.processes.rank == 0
        self.events = EventLog(directory if is_first else None)
        self.bar = ProgressBar(
            total=self.last_step,
            initial=trainer.step,
            unit=" steps",
            desc="train",
            disable=not is_first,
        )
        used = asdict(self.settings) | {"dtype": str(trainer.dtype).removeprefix("torch.")}
        kind = "resume" if is_resumed else "start"
        values = {"settings": used, "total_steps": self.last_step, **asdict(report)}
        self.events.write(kind, trainer.step, **values)
        self.start_clock()

    def close(self) -> None:
        self.bar.close()
        self.events.close()

    def start_clock(self) -> None:
        """Measure the speed from here on."""
        self.clock, self.clock_step = _now(), self.trainer.step

    def say(self, line: str) -> None:
        """Print a line above the progress bar."""
        if self.processes.rank == 0:
            self.bar.clear()
            print(line, flush=True)

    def save(self) -> None:
        """Write a snapshot, and remove older ones."""
        snapshot, step = self.trainer.snapshot(), self.trainer.step
        losses = [loss.tolist() for loss in self.losses]
        snapshot.progress.update(loop=asdict(self.curve), losses=losses, run=self.identity)
        self.on_rank_zero(lambda: write_snapshot(self.checkpoints, step, snapshot, MAX_CHECKPOINTS))
        self.saved = step

    def restore(self) -> bool:
        """Go to the latest snapshot, if there is one.

        Raises:
            ValueError: It is of another run; the message names the settings that differ.
        """
        latest = self.on_rank_zero(lambda: latest_snapshot(self.checkpoints))
        if latest is None:
            return False
        snapshot, now = read_snapshot(latest), self.identity
        before = snapshot.progress["run"]
        if different := [name for name in now | before if before.get(name) != now.get(name)]:
            raise ValueError(
                "the checkpoint in the output directory belongs to another run "
                f"({', '.join(different)} differ): use the same settings to resume it, or choose "
                "another output directory"
            )
        self.trainer.restore(snapshot)
        self.curve = _Curve(**snapshot.progress["loop"])
        self.losses = list(torch.tensor(snapshot.progress["losses"], device=self.trainer.device))
        self.saved = self.trainer.step
        return True

    def reason_to_end(self) -> Reason | None:
        """Why the run ends before the next step, if it does."""
        step, settings = self.trainer.step, self.settings
        if self.last_step is not None and step >= self.last_step:
            return "end"
        # In runs with a planned end, last_step already accounts for max_words.
        if self.last_step is None and step * self.words_per_step >= (
            settings.max_words or math.inf
        ):
            return "words"
        hours = (time.monotonic() - self.began) / 3600
        if settings.max_hours is not None and self.processes.any(hours >= settings.max_hours):
            return "hours"
        return None

    def measure(self, files: Sequence[Path], words: int | None) -> Perplexity:
        """The perplexity of held-out files."""
        model = self.trainer.model
        return self.on_rank_zero(lambda: measure_heldout(model, files, words))

    def evaluate(self, files: Sequence[Path]) -> None:
        """Measure the beginning of the held-out text."""
        pause, step = _now(), self.trainer.step
        perplexity = self.measure(files, self.settings.evaluate_words)
        self.events.write("heldout", step, **perplexity.to_json())
        self.say(f"step {step:,}: held-out {perplexity}")
        self.clock += _now() - pause  # the speed excludes evaluation

    def log(self, losses: list[float], norm: float) -> None:
        """Write the losses, each direction's mean since the last entry, and the speed."""
        trainer, curve, step = self.trainer, self.curve, self.trainer.step
        names = [f"loss_{name}" for name in trainer.objective.names]
        seconds, processor_seconds = _now() - self.clock
        speed = self.words_per_step * (step - self.clock_step) / seconds
        self.events.write(
            "train",
            step,
            **dict(zip(names, losses, strict=True)),
            words=round(step * self.words_per_step),
            learning_rate=trainer.learning_rate,
            gradient_norm=norm,
            words_per_second=round(speed, 1),
            processor_seconds=round(processor_seconds, 3),
        )
        loss = sum(losses) / len(losses)
        self.bar.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} words/s", refresh=False)
        past = loss if curve.smoothed is None else curve.smoothed
        curve.smoothed = SMOOTHING * past + (1 - SMOOTHING) * loss
        curve.lowest = min(curve.lowest, curve.smoothed)
        self.losses = []
        self.start_clock()

    def has_diverged(self, losses: list[float], norm: float) -> bool:
        """True if the loss is not finite, or has clearly risen."""
        smoothed = self.curve.smoothed
        has_risen = smoothed is not None and smoothed > self.curve.lowest + DIVERGENCE_THRESHOLD
        return has_risen or not math.isfinite(sum(losses) + norm)

    def go_back(self) -> None:
        """Train on from the latest snapshot with half the learning rate.

        Raises:
            ValueError: It has been halved often enough.
        """
        trainer, step, factor = self.trainer, self.trainer.step, self.trainer.rate_factor / 2
        if factor < 0.5**MAX_LR_HALVINGS:
            raise ValueError(
                f"the loss diverged at step {step}, even with 1/{2**MAX_LR_HALVINGS} of the "
                "learning rate: check the corpus, set a lower learning rate, or use dtype float32"
            )
        # Where it diverges from the same snapshot again, the snapshot itself is presumed bad.
        if self.saved == self.restored:
            self.on_rank_zero(lambda: remove_latest_snapshot(self.checkpoints))
        self.restore()
        trainer.rate_factor, self.restored = factor, trainer.step
        self.bar.update(trainer.step - self.bar.n)
        self.events.write("diverged", step, restored=trainer.step, rate_factor=factor)
        self.say(
            f"step {step:,}: the loss diverged; training goes on from step {trainer.step:,} with "
            f"the learning rate multiplied by {factor:g}"
        )
        self.start_clock()


def train(
    trainer: Trainer,
    directory: Path,
    identity: dict[str, Any],
    report: CorpusReport,
    heldout: Sequence[Path],
) -> tuple[Reason, Perplexity | None]:
    """Run the remaining steps, starting from the latest snapshot in `directory` if there is one.

    Args:
        trainer: A trainer at step 0.
        directory: Directory for log.jsonl and checkpoints/.
        identity: JSON values on which the result depends; a run is resumed with equal ones.
        report: Statistics of the corpus.
        heldout: Files to measure: the beginning of each during training, all text at the end.

    Returns:
        Why the run ended, and the measure of the held-out text, if there is any.

    Raises:
        KeyboardInterrupt: The run was interrupted by a signal; its last step is saved.
        ValueError: The loss diverged, even at lower learning rates; or the snapshot is of another
            run.
    """
    settings, is_stopped = trainer.settings, False
    with closing(_Run(trainer, directory, identity, report)) as run, _stop_request() as stop:
        while True:
            step, reason = trainer.step, run.reason_to_end()

            # Evaluate; at the end all held-out text is measured.
            is_due = step % settings.evaluate_every == 0 and reason is None
            if heldout and is_due and step not in (0, run.saved):
                run.evaluate(heldout)

            # Save: also before the first step, so that there is always a snapshot to go back to.
            is_due = step % settings.checkpoint_every == 0 or reason is not None or is_stopped
            if is_due and step != run.saved:
                run.save()
            if reason is not None:
                break
            if is_stopped:
                raise KeyboardInterrupt(
                    f"stopped at step {step}; run the same command again to resume"
                )

            # Step
            run.losses.append(trainer.train_step())
            run.bar.update()
            step, is_stopped = trainer.step, run.processes.any(stop.is_set())

            # Log; before a snapshot, look at the losses as well.
            is_logged = step % settings.log_every == 0 or step == run.last_step
            if is_logged or step % settings.checkpoint_every == 0 or is_stopped:
                # Only here does the loop wait for a GPU.
                losses = torch.stack(run.losses).mean(dim=0).tolist()
                norm = float(trainer.gradient_norm)
                if is_logged:
                    run.log(losses, norm)
                if run.has_diverged(losses, norm):
                    run.go_back()

        measured = run.measure(heldout, None) if heldout else None
        values = {} if measured is None else measured.to_json()
        run.events.write("end", trainer.step, reason=reason, **values)
    return reason, measured
