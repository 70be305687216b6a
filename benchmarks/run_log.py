"""The log of a training run, log.jsonl in its directory."""

import json
from pathlib import Path
from typing import Any


def read_events(run: Path) -> list[dict[str, Any]]:
    """The events in the order in which they happened."""
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def training_records(
    run: Path, after: int = 0, until: float = float("inf")
) -> list[dict[str, Any]]:
    """The "train" events of the steps above `after`, up to `until`, by step.

    A resumed run repeats steps, and the last event of each counts.
    """
    records = {event["step"]: event for event in read_events(run) if event["event"] == "train"}
    return [records[step] for step in sorted(records) if after < step <= until]
