"""Result files: the figures that docs/results.md is generated from (tools/make_results.py).

A result file is a JSON object. Every measurement carries the commit, the date, the command and the
machine of its run: at the top of the file or, if parts of the file are measured at different times,
in each part.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
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
    """The hardware, as far as the system reports it, and the versions of the software that runs
    elmokit.
    """
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        told = {
            name.strip(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        processor = told.get("model name", processor)
        if {
            "cpu family",
            "model",
        } <= told.keys():  # a virtual machine has one model name for several generations
            processor += f" (family {told['cpu family']}, model {told['model']})"
    memory = (
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        if hasattr(os, "sysconf")
        else None
    )
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
    """The checked-out commit, marked "-dirty" if tracked files differ from it; "unknown" without
    git.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        described = subprocess.run(
            command, cwd=BENCHMARKS, capture_output=True, text=True, check=False
        )
    except OSError:
        return "unknown"
    return described.stdout.strip() or "unknown"


COMMIT = commit()  # read before any result is written, since result files are tracked by git


def without_directories(figures: Any) -> Any:
    """Figures with absolute paths reduced to file names: the directories of the machine mean
    nothing to others.
    """
    if isinstance(figures, str):
        return Path(figures).name if Path(figures).is_absolute() else figures
    if isinstance(figures, list | tuple):
        return [without_directories(each) for each in figures]
    if isinstance(figures, dict):
        return {name: without_directories(each) for name, each in figures.items()}
    return figures


def command() -> str:
    """The command that started this process: its script relative to the repository, arguments
    without directories.
    """
    script = Path(sys.argv[0]).resolve()
    name = (
        script.relative_to(BENCHMARKS.parent)
        if script.is_relative_to(BENCHMARKS.parent)
        else script.name
    )
    arguments = ("=".join(without_directories(each.split("=", 1))) for each in sys.argv[1:])
    return shlex.join(["python", str(name), *arguments])


def write_result(path: Path | None, figures: Figures, *part: str) -> None:
    """Write figures to a result file, with the commit, the date, the command and the machine of the
    run.

    Args:
        path: The file, which is replaced atomically. None: nothing is written.
        figures: Values that JSON can represent.
        part: The keys under which the figures are stored; other parts of the file are kept. Without
            keys, the figures replace the whole file.
    """
    if path is None:
        return
    stamped = {
        "commit": COMMIT,
        "date": time.strftime("%Y-%m-%d"),
        "command": command(),
        "machine": machine(),
        **figures,
    }
    # Read again now, since another process may have written other parts in the meantime.
    report = json.loads(path.read_text(encoding="utf-8")) if part and path.is_file() else {}
    target = report
    for name in part:
        target = target.setdefault(name, {})
    target.clear()
    target.update(without_directories(stamped))
    with atomic_path(path) as partial:
        partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
