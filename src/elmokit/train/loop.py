"""The training loop of pretraining and fine-tuning: evaluate, save, step, log, until the run ends;
and its log.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from elmokit.data import CorpusReport
from elmokit.lm import Perplexity
from elmokit.progress import ProgressBar
from elmokit.train.config import PretrainConfig
from elmokit.train.trainer import (
    Trainer,
    latest_snapshot,
    read_snapshot,
    remove_latest_snapshot,
    write_snapshot,
)

CHECKPOINTS, BEST = "checkpoints", "best"
KEPT = 2  # checkpoints
SMOOTHING = 0.9  # weight of the past in the smoothed loss
RISE = (
    1.5  # nats per word by which the smoothed loss exceeds its minimum where training has diverged
)
HALVINGS = 3  # of the learning rate in a run, after which it is not the cause of a divergence

Reason = Literal["end", "words", "hours", "patience"]


@dataclass
class _State:
    """What the loop itself keeps in a snapshot."""

    lowest: float  # smoothed loss so far
    smoothed: float | None = None
    best: float = math.inf  # held-out (pseudo-)perplexity so far
    evaluations_since: int = 0  # the best one


def words_per_step(settings: PretrainConfig, report: CorpusReport) -> float:
    """Words that a step reads on average: its positions of the token stream without the sentence
    boundaries.
    """
    return settings.batch_size * settings.unroll_steps * report.words / report.stream_tokens


def _named(result: Perplexity) -> dict[str, Any]:
    """The values of a measure for the log, with its name."""
    return result.to_json()


def _now() -> np.ndarray:
    """Seconds of time, and of this process."""
    return np.array([time.perf_counter(), time.process_time()])


@contextmanager
def _stop_request() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets, so that the current step is completed and
    saved.

    A second SIGINT interrupts at once. Outside the main thread, signals cannot be handled and the
    event stays unset.
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


def train(
    trainer: Trainer, directory: Path, report: CorpusReport, heldout: list[Path]
) -> tuple[Reason, Perplexity | None]:
    """Run the remaining steps, starting from the latest snapshot in `directory` if there is one.

    Args:
        trainer: A trainer at step 0. With `patience`, it ends with the weights of the best
            evaluation.
        directory: Directory for log.jsonl, checkpoints/ and, with `patience`, best/.
        report: Statistics of the corpus.
        heldout: Files to measure: the beginning of each during training, all text at the end.

    Returns:
        Why the run ended, and the measure of the held-out text, if there is any.

    Raises:
        KeyboardInterrupt: The run was interrupted by a signal; its last step is saved.
        ValueError: The loss diverged, even at lower learning rates.
    """
    settings, processes = trainer.settings, trainer.processes
    checkpoints, best, words = (
        directory / CHECKPOINTS,
        directory / BEST,
        words_per_step(settings, report),
    )
    # A cool-down has a planned end, towards which the perplexity falls.
    patience = settings.patience if trainer.schedule.cool_down is None else None
    last_step, state = trainer.schedule.last_step, _State(lowest=math.log(len(trainer.vocab)))
    recent: list[torch.Tensor] = []  # losses of the steps since the last entry of the log
    start = time.monotonic()

    def save(to: Path, keep: int) -> None:
        snapshot = trainer.snapshot()
        snapshot.progress.update(
            {"loop": asdict(state), "losses": [losses.tolist() for losses in recent]}
        )
        processes.of_first(lambda: write_snapshot(to, trainer.step, snapshot, keep))

    def go_back() -> bool:
        """Restore the latest snapshot, if there is one."""
        nonlocal state, recent
        latest = processes.of_first(lambda: latest_snapshot(checkpoints))
        if latest is None:
            return False
        snapshot = read_snapshot(latest)
        trainer.restore(snapshot)
        state = _State(**snapshot.progress["loop"])
        recent = list(torch.tensor(snapshot.progress["losses"], device=trainer.device))
        return True

    def reason_to_end() -> Reason | None:
        if last_step is not None and trainer.step >= last_step:
            return "end"
        if patience is not None and state.evaluations_since >= patience:
            return "patience"
        # In runs with a planned end, last_step already accounts for max_words.
        if last_step is None and trainer.step * words >= (settings.max_words or math.inf):
            return "words"
        limit = settings.max_hours
        return (
            "hours"
            if limit is not None and processes.any(time.monotonic() - start >= 3600 * limit)
            else None
        )

    is_resumed = go_back()
    saved = trainer.step if is_resumed else -1  # step of the latest snapshot
    restored, is_stopped = -1, False  # the step to which training went back
    with (
        closing(Tracker(directory if processes.is_first else None)) as tracker,
        closing(ProgressBar(total=last_step, initial=trainer.step, unit=" steps", desc="train",
                            disable=not processes.is_first)) as progress,
        _stop_request() as stop,
    ):  # fmt: skip

        def say(line: str) -> None:
            if processes.is_first:
                progress.clear()
                print(line, flush=True)

        used = asdict(settings) | {"dtype": str(trainer.dtype).removeprefix("torch.")}  # not "auto"
        run = {"settings": used, "total_steps": last_step, **asdict(report)}
        tracker.event("resume" if is_resumed else "start", trainer.step, **run)
        begin, begin_step = _now(), trainer.step
        while True:
            step, reason = trainer.step, reason_to_end()

            # Evaluate. At the end all held-out text is measured, but with patience the last step is
            # also compared.
            is_due = step % settings.evaluate_every == 0 and reason is None
            if heldout and (is_due or (patience and reason == "end")) and step not in (0, saved):
                pause = _now()
                result = processes.of_first(
                    lambda: trainer.measure_heldout(heldout, settings.evaluate_words)
                )
                tracker.event("heldout", step, **_named(result))
                say(f"step {step:,}: held-out {result}")
                state.evaluations_since += 1
                if result.value < state.best:
                    state.best, state.evaluations_since = result.value, 0
                    if patience is not None:
                        save(best, keep=1)
                reason = reason_to_end()
                begin += _now() - pause  # an entry's speed is that of training alone

            # Save: also before the first step, so that there is always a snapshot to go back to.
            if step != saved and (
                step % settings.checkpoint_every == 0 or reason is not None or is_stopped
            ):
                save(checkpoints, KEPT)
                saved = step
            if reason is not None:
                break
            if is_stopped:
                raise KeyboardInterrupt(
                    f"stopped at step {step}; run the same command again to resume"
                )

            # Step
            recent.append(trainer.train_step())
            progress.update()
            step, is_stopped = trainer.step, processes.any(stop.is_set())
            is_logged = step % settings.log_every == 0 or step == last_step
            if not is_logged and step % settings.checkpoint_every and not is_stopped:
                continue

            # Log
            losses, norm = torch.stack(recent).mean(dim=0).tolist(), float(trainer.gradient_norm)
            loss = sum(losses) / len(losses)
            if is_logged:
                recent = []
                seconds, processor_seconds = _now() - begin
                speed = (
                    words * (step - begin_step) / seconds
                )  # a run that was resumed has made other steps before
                named = {
                    f"loss_{name}": value
                    for name, value in zip(trainer.objective.losses, losses, strict=True)
                }
                tracker.event(
                    "train",
                    step,
                    **named,
                    words=round(step * words),
                    learning_rate=trainer.learning_rate,
                    gradient_norm=norm,
                    words_per_second=round(speed, 1),
                    processor_seconds=round(processor_seconds, 3),
                    seconds_left=last_step and round((last_step - step) * words / speed),
                )
                progress.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} words/s", refresh=False)
                begin, begin_step = _now(), step
                past = loss if state.smoothed is None else state.smoothed
                state.smoothed = SMOOTHING * past + (1 - SMOOTHING) * loss
                state.lowest = min(state.lowest, state.smoothed)

            # Diverged: go back, with half the learning rate.
            has_risen = state.smoothed is not None and state.smoothed > state.lowest + RISE
            if has_risen or not math.isfinite(loss + norm):
                rate_factor = trainer.rate_factor / 2
                if rate_factor < 0.5**HALVINGS:
                    raise ValueError(
                        f"the loss diverged at step {step}, even with 1/{2**HALVINGS} of the "
                        "learning rate: check the corpus, set a lower learning rate, or use dtype "
                        "float32"
                    )
                if (
                    saved == restored
                ):  # it diverges from there again: the snapshot itself is presumed bad
                    processes.of_first(lambda: remove_latest_snapshot(checkpoints))
                go_back()
                trainer.rate_factor, saved, restored = rate_factor, trainer.step, trainer.step
                progress.update(trainer.step - progress.n)
                tracker.event("diverged", step, restored=trainer.step, rate_factor=rate_factor)
                factor = f"the learning rate multiplied by {rate_factor:g}"
                say(
                    f"step {step:,}: the loss diverged; training goes on from step "
                    f"{trainer.step:,} with {factor}"
                )
                begin, begin_step = _now(), trainer.step

        if (
            patience is not None
            and (kept := processes.of_first(lambda: latest_snapshot(best))) is not None
        ):
            trainer.load_weights(read_snapshot(kept))
        measured = (
            processes.of_first(lambda: trainer.measure_heldout(heldout, None)) if heldout else None
        )
        named = {} if measured is None else _named(measured)
        tracker.event("end", trainer.step, reason=reason, **named)
    return reason, measured


# --- The log: one JSON line per event -------------------------------------------------------------

LOG = "log.jsonl"


class Tracker:
    """Appends events to `log.jsonl`; a resumed run continues the file. Without a directory it does
    nothing.
    """

    def __init__(self, directory: Path | None) -> None:
        self._file: Any = None
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            log = directory / LOG
            if log.is_file():  # the run may have been killed while it wrote a line
                os.truncate(log, log.read_bytes().rfind(b"\n") + 1)
            self._file = log.open("a", encoding="utf-8")

    def event(self, kind: str, step: int, **values: Any) -> None:
        """Append one line: time (seconds since 1970), kind of event, step, values.

        Numbers that are not finite, which JSON lacks, become null.
        """
        if self._file is None:
            return
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        record = {"time": round(time.time(), 3), "event": kind, "step": step, **finite}
        self._file.write(json.dumps(record, default=str) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_events(directory: Path) -> list[dict[str, Any]]:
    """The events of a run's log, in the order in which they happened.

    Args:
        directory: The directory of the run.

    Returns:
        For each event its "time" (seconds since 1970), its kind as "event", its "step" and its own
        values.

    Raises:
        FileNotFoundError: If the directory has no log.
    """
    content = (directory / LOG).read_bytes()
    complete = content[: content.rfind(b"\n") + 1]  # the last line may be unfinished
    return [json.loads(line) for line in complete.splitlines()]


def training_records(
    directory: Path, after: int = 0, until: int | None = None
) -> list[dict[str, Any]]:
    """The "train" events of a run's log by step; a resumed run repeats steps, and the last event of
    each is kept.

    Args:
        directory: The directory of the run.
        after: Only events of later steps are returned.
        until: The last step whose event is returned; None: the last of the log.

    Raises:
        FileNotFoundError: If the directory has no log.
    """
    records = {
        event["step"]: event
        for event in read_events(directory)
        if event["event"] == "train"
        and after < event["step"]
        and (until is None or event["step"] <= until)
    }
    return [records[step] for step in sorted(records)]
