"""Builds the compiled kernels when elmokit is installed, where there is a C compiler; elmokit works without them."""

import hashlib
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path("src/elmokit/ops/native/csrc")
LIBRARY = SOURCES.parent / "_native.so"
# No -ffast-math: linking with it would change how the whole process rounds tiny numbers.
FLAGS = ["-std=c11", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
ONE_TARGET = "-DFOR_EACH_TARGET="  # for a compiler that cannot build each function for several processors
NO_AVX512 = "-DNO_AVX512"  # for one that does not know these instructions
WAYS: list[list[str]] = [[], [ONE_TARGET], [ONE_TARGET, NO_AVX512]]


def digest(folder: Path) -> str:
    """Of all sources in the folder, as elmokit/ops/native/library.py computes it."""
    files = sorted([*folder.glob("*.c"), *folder.glob("*.h")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def build_library(folder: Path, library: Path) -> None:
    """Compile the kernels in the first way that the compiler can. OSError, CalledProcessError where there is none."""
    partial = library.with_suffix(".partial")
    command = [*shlex.split(os.environ.get("CC", "cc")), *FLAGS, f'-DELMOKIT_SOURCES="{digest(folder)}"']
    output = [*map(str, sorted(folder.glob("*.c"))), "-o", str(partial)]
    for way in WAYS:
        try:
            subprocess.run([*command, *way, *output], check=True, capture_output=True)
            break
        except subprocess.CalledProcessError:
            if way is WAYS[-1]:
                raise
    os.replace(partial, library)


class KernelBuilder(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        folder, library = Path(self.root) / SOURCES, Path(self.root) / LIBRARY
        try:
            build_library(folder, library)
        except (OSError, subprocess.CalledProcessError) as error:
            library.unlink(missing_ok=True)
            self.app.display_warning(f"no compiled kernels ({error}): elmokit will work, but slower on a CPU")
            return
        build_data["artifacts"].append(LIBRARY.as_posix())
        build_data["pure_python"], build_data["infer_tag"] = False, True
