"""Builds the compiled LSTM cell when elmokit is installed, where there is a C compiler; elmokit works without it."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/elmokit/nn/kernels/cell.c")
# No -ffast-math: linking with it would change how the whole process rounds tiny numbers.
FLAGS = ["-std=c11", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]


ONE_PROCESSOR = ["-DFOR_EACH_PROCESSOR="]  # for a compiler that cannot build each function for several of them


def build_library(source: Path, library: Path) -> None:
    """Compile the cell, for several processors where the compiler can. OSError, CalledProcessError where it cannot."""
    partial = library.with_suffix(".partial")
    command = [*shlex.split(os.environ.get("CC", "cc")), *FLAGS]
    output = [str(source), "-o", str(partial)]
    try:
        subprocess.run([*command, *output], check=True, capture_output=True)
    except subprocess.CalledProcessError:
        subprocess.run([*command, *ONE_PROCESSOR, *output], check=True, capture_output=True)
    os.replace(partial, library)


class CellBuilder(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        source = Path(self.root) / SOURCE
        library = source.with_name("_cell.so")
        try:
            build_library(source, library)
        except (OSError, subprocess.CalledProcessError) as error:
            library.unlink(missing_ok=True)
            self.app.display_warning(f"no compiled LSTM cell ({error}): elmokit will work, but slower on a CPU")
            return
        build_data["artifacts"].append(str(SOURCE.with_name("_cell.so")))
        build_data["pure_python"], build_data["infer_tag"] = False, True
