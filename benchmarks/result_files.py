"""Result files: the figures that docs/results.md is generated from (tools/make_results.py).

A file is a JSON object. Every measurement carries the commit, the date, the command and the machine of its run: at the
top of the file, or, where parts of it are measured at different times, in each part.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from elmokit.fs.atomic import atomic_path

BENCHMARKS = Path(__file__).parent
RESULTS = BENCHMARKS / "results"
Figures = dict[str, Any]


def machine() -> Figures:
    """The hardware, as far as the system tells, and the versions of what runs elmokit."""
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        processor = told.get("model name", processor)
        if {"cpu family", "model"} <= told.keys():  # a virtual machine's name may stand for several generations
            processor += f" (family {told['cpu family']}, model {told['model']})"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else None
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": memory and round(memory, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def commit() -> str:
    """The commit that is checked out, marked where tracked files differ from it; "unknown" without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        described = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return described.stdout.strip() or "unknown"


COMMIT = commit()  # of the code that runs: writing results changes files that git tracks


def without_directories(figures: Any) -> Any:
    """Figures in which absolute paths are names: where a file lay on the machine of the run says nothing to others."""
    if isinstance(figures, str):
        return Path(figures).name if Path(figures).is_absolute() else figures
    if isinstance(figures, list | tuple):
        return [without_directories(each) for each in figures]
    if isinstance(figures, dict):
        return {name: without_directories(each) for name, each in figures.items()}
    return figures


def command() -> str:
    """How this process was started, the script relative to the repository."""
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(BENCHMARKS.parent) if script.is_relative_to(BENCHMARKS.parent) else script.name
    return " ".join(["python", str(name), *without_directories(sys.argv[1:])])


def write_result(path: Path | None, figures: Figures, *part: str) -> None:
    """Write figures into a result file, with the commit, the date, the command and the machine of the run.

    Args:
        path: The file, which is replaced as a whole or not at all. None: nothing is written.
        figures: Values that JSON can hold.
        part: The keys under which the figures go; other parts of the file stay. None: they are the whole file.
    """
    if path is None:
        return
    stamped = {
        "commit": COMMIT, "date": time.strftime("%Y-%m-%d"), "command": command(), "machine": machine(), **figures
    }  # fmt: skip
    # read now, since another process may have written other parts meanwhile
    report = json.loads(path.read_text(encoding="utf-8")) if part and path.is_file() else {}
    target = report
    for name in part:
        target = target.setdefault(name, {})
    target.clear()
    target.update(without_directories(stamped))
    with atomic_path(path) as partial:
        partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
