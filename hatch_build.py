"""Compile the kernels when a wheel is built or the checkout installed, where there is a C compiler.

The library uses no Python ABI, so one wheel serves every Python 3: py3-none-PLATFORM. Without a compiler, or with
ELMOKIT_PURE=1 in the environment, the wheel is py3-none-any and elmokit computes with PyTorch alone, slower on a CPU.
"""

import hashlib
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

SOURCES = Path("src/elmokit/ops/native/csrc")
LIBRARY = SOURCES.parent / "_native.so"
# No -ffast-math: linking with it would change how the whole process rounds tiny numbers.
FLAGS = ["-std=c11", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
ONE_TARGET = "-DFOR_EACH_TARGET="  # for a compiler that cannot build each function for several processors
NO_AVX512 = "-DNO_AVX512"  # for one that does not know these instructions
FALLBACKS: list[list[str]] = [[], [ONE_TARGET], [ONE_TARGET, NO_AVX512]]


def digest(folder: Path) -> str:
    """SHA-256 of all sources in the folder, which elmokit/ops/native/library.py compares with its own."""
    files = sorted([*folder.glob("*.c"), *folder.glob("*.h")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def build_library(folder: Path, library: Path) -> None:
    """Compile the kernels, with fewer instruction sets where the compiler does not know them all.

    Args:
        folder: The C sources.
        library: The file to write; it appears whole or not at all.

    Raises:
        OSError: There is no compiler ($CC, else cc).
        CalledProcessError: It cannot compile the sources.
    """
    partial = library.with_suffix(".partial")
    command = [*shlex.split(os.environ.get("CC", "cc")), *FLAGS, f'-DELMOKIT_SOURCES="{digest(folder)}"']
    output = [*map(str, sorted(folder.glob("*.c"))), "-o", str(partial)]
    for options in FALLBACKS:
        try:
            subprocess.run([*command, *options, *output], check=True, capture_output=True)
            break
        except subprocess.CalledProcessError:
            if options is FALLBACKS[-1]:
                raise
    os.replace(partial, library)


def platform_tag() -> str:
    """The platform of this machine, as linux_x86_64.

    On Linux it promises no version of glibc: for PyPI, build in a manylinux image, where auditwheel finds the oldest
    one that will do and renames the wheel.
    """
    platforms = (tag.platform for tag in sys_tags())
    return next(platform for platform in platforms if not platform.startswith(("manylinux", "musllinux")))


class KernelBuilder(BuildHookInterface):
    """Adds the library to a wheel, and names the wheel's platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds a wheel, or installs a checkout to be edited."""
        if self.target_name != "wheel" or os.environ.get("ELMOKIT_PURE", "0") != "0":
            return
        try:
            build_library(Path(self.root) / SOURCES, Path(self.root) / LIBRARY)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(
                f"\n*** elmokit WITHOUT COMPILED KERNELS: no C compiler could build them ({error}).\n"
                "*** It works, several times slower on a CPU. Install gcc or clang, and install elmokit again; or set\n"
                "*** ELMOKIT_PURE=1 where that is meant. `elmokit info` shows which kernels there are.\n"
            )
            return
        build_data["artifacts"].append(LIBRARY.as_posix())
        build_data["pure_python"], build_data["tag"] = False, f"py3-none-{platform_tag()}"
