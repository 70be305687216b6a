"""A copy of the package whose kernels report memory errors, for other processes.

    python tools/sanitized.py     # runs the tests of the operations on it

GCC builds the kernels, with AddressSanitizer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
OPERATIONS = (
    "native/test_gemm.py",
    "test_char_conv.py",
    "test_logsumexp.py",
    "test_lstm.py",
    "test_unpack.py",
)


def sanitized(folder: Path) -> dict[str, str]:
    """Copy the package to a folder, and build its kernels there with AddressSanitizer (GCC).

    Returns:
        The environment of processes that use the copy; the first access to memory outside an array
        ends them.
    """
    shutil.copytree(ROOT / "src" / "elmokit", folder / "elmokit")
    build = "from hatch_build import *; build_library(*map(Path, __import__('sys').argv[1:]))"
    native = folder / "elmokit" / "ops" / "native"
    environment = os.environ | {
        "CC": "gcc -fsanitize=address -fno-omit-frame-pointer -g",
        "PYTHONPATH": ".",
    }
    command = [sys.executable, "-c", build, str(native / "csrc"), str(native / "_native.so")]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    # The sanitizer needs libstdc++ as well, since PyTorch throws C++ exceptions.
    find = [["gcc", f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so")]
    preload = " ".join(subprocess.check_output(command, text=True).strip() for command in find)
    return os.environ | {
        "PYTHONPATH": str(folder),
        "LD_PRELOAD": preload,
        "ASAN_OPTIONS": "detect_leaks=0",
    }


def main() -> int:
    files = [str(ROOT / "tests" / "ops" / name) for name in OPERATIONS]
    # The sanitizer writes to the process's own standard error, which must not be captured.
    command = [sys.executable, "-m", "pytest", "--capture=sys", "-p", "no:cacheprovider", *files]
    with TemporaryDirectory() as folder:
        return subprocess.run(command, env=sanitized(Path(folder)), cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
