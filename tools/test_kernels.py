"""Test the kernels in ways that pytest cannot: as programs with sanitizers, and in emulation.

    python tools/test_kernels.py     # status 1 if a result is wrong or a sanitizer reports an error

The program is tests/ops/native/kernels_test.c. It is compiled by $CC, else cc, gcc or clang, with
AddressSanitizer and UndefinedBehaviorSanitizer, for each target (instruction set) that this
processor runs. If aarch64-linux-gnu-gcc and qemu-aarch64 are installed (Debian:
gcc-aarch64-linux-gnu, qemu-user), the targets for ARM run in emulation, optimised as they are in
the library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from elmokit.ops.native import library

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

import hatch_build  # noqa: E402

SANITIZERS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
NUMBERS = ("float", "bfloat16", "int8")


def run(
    compiler: list[str],
    options: list[str],
    emulator: list[str],
    target: str,
    number: str,
    folder: str,
) -> int:
    """Compile the test of one target and number type, and run it."""
    program = f"{folder}/{target}-{number}-{len(emulator)}"
    options = [
        *hatch_build.FLAGS,
        *hatch_build.TARGETS[target],
        *options,
        f"-DTARGET={target}",
        f"-DTYPE={number}",
    ]
    source = ROOT / "tests" / "ops" / "native" / "kernels_test.c"
    include = ROOT / hatch_build.SOURCES
    command = [
        *compiler,
        *options,
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{include}",
        str(source),
        "-lm",
        "-o",
        program,
    ]
    subprocess.run(command, check=True)
    return subprocess.run([*emulator, program]).returncode


def main() -> int:
    if not library.targets():
        sys.exit(f"no kernels to test ({library.why_none()}): install elmokit again")
    ways = [(hatch_build.c_compiler(), SANITIZERS, [], target) for target in library.targets()]
    if shutil.which(CROSS_COMPILER) and shutil.which(EMULATOR):
        options = ["-static"]
        ways += [
            ([CROSS_COMPILER], options, [EMULATOR], target)
            for target in ("neon_dotprod", "baseline")
        ]
    else:
        print(f"not emulated: {CROSS_COMPILER} or {EMULATOR} is missing")
    with TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        running = [pool.submit(run, *way, number, folder) for way in ways for number in NUMBERS]
        statuses = [each.result() for each in running]
    return int(any(statuses))  # that of a program that a signal has ended is negative


if __name__ == "__main__":
    sys.exit(main())
