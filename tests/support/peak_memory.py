"""The peak memory of a process of its own, where the system tells it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Not what getrusage says, which includes the process that started this one.
STATUS = Path("/proc/self/status")

needs_peak_memory = pytest.mark.skipif(not STATUS.is_file(), reason="only Linux tells a process's own peak memory")


def peak_megabytes(program: str, *arguments: object) -> float:
    """Run a Python program on one thread; its arguments are `sys.argv[1:]`."""
    command = [sys.executable, "-c", f"{program}\nprint(open({str(STATUS)!r}).read())", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    (peak,) = (line.split()[1] for line in printed.splitlines() if line.startswith("VmHWM"))
    return int(peak) * 1024 / 1e6
