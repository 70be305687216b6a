"""The log of a run, written and read: one JSON line per event, and optionally TensorBoard events."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _end_last_line(log: Path) -> None:
    """Repair the end of a log whose run was killed: complete the last line, or remove it if it is not valid JSON."""
    content = log.read_bytes() if log.is_file() else b""
    last = content[content.rfind(b"\n") + 1 :]
    if not last:
        return
    with log.open("r+b") as file:
        file.seek(len(content))
        if _is_json(last):
            file.write(b"\n")
        else:
            file.truncate(len(content) - len(last))


class Tracker:
    """Appends events to `log.jsonl`; a resumed run continues the file. Without a directory it does nothing."""

    def __init__(self, directory: Path | None, tensorboard: bool = False) -> None:
        self._file: Any = None
        self._writer: Any = None
        if directory is None:
            return
        directory.mkdir(parents=True, exist_ok=True)
        _end_last_line(directory / "log.jsonl")
        self._file = (directory / "log.jsonl").open("a", encoding="utf-8")
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise ValueError(
                    "TensorBoard is not installed: pip install tensorboard (elmokit's extra train)"
                ) from None
            self._writer = SummaryWriter(str(directory / "tensorboard"))

    def event(self, kind: str, step: int, **values: Any) -> None:
        """Append one line: time (seconds since 1970), kind of event, step, values.

        Numbers that are not finite, which JSON lacks, become null. In TensorBoard, the name of a value begins with the
        kind of event, and with `measure` if that is among the values.
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
        if self._writer is not None:
            group = "/".join([kind, values["measure"]] if "measure" in values else [kind])
            for name, value in values.items():
                if isinstance(value, int | float) and math.isfinite(value):
                    self._writer.add_scalar(f"{group}/{name}", value, step)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._writer is not None:
            self._writer.close()


def read_events(directory: Path) -> list[dict[str, Any]]:
    """The events of a run's log, in the order in which they happened.

    Args:
        directory: The directory of the run.

    Returns:
        For each event its "time" (seconds since 1970), its kind as "event", its "step" and its own values.

    Raises:
        FileNotFoundError: If the directory has no log.
    """
    content = (directory / "log.jsonl").read_bytes()
    complete = content[: content.rfind(b"\n") + 1]  # the last line may be unfinished
    return [json.loads(line) for line in complete.splitlines()]


def training_records(directory: Path, after: int = 0, until: int | None = None) -> list[dict[str, Any]]:
    """The "train" events of a run's log by step; a resumed run repeats steps, and the last event of each is kept.

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
        if event["event"] == "train" and after < event["step"] and (until is None or event["step"] <= until)
    }
    return [records[step] for step in sorted(records)]
