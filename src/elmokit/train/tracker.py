"""The log of a run, written and read: one JSON line per event."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

LOG = "log.jsonl"


class Tracker:
    """Appends events to `log.jsonl`; a resumed run continues the file. Without a directory it does nothing."""

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
        For each event its "time" (seconds since 1970), its kind as "event", its "step" and its own values.

    Raises:
        FileNotFoundError: If the directory has no log.
    """
    content = (directory / LOG).read_bytes()
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
