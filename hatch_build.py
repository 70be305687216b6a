"""Compile the kernels when a wheel is built or the checkout installed, where there is a C compiler.

The library uses no Python ABI, so one wheel serves every Python 3: py3-none-PLATFORM. Without a
compiler, or with ELMOKIT_PURE=1 in the environment, the wheel is py3-none-any and elmokit computes
with PyTorch alone, slower on a CPU.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.macos import process_macos_plat_tag
from packaging.tags import sys_tags

SOURCES = Path("src/elmokit/ops/native/csrc")
LIBRARY = SOURCES.parent / "_native.so"
# No -ffast-math: linking with it would change how the whole process rounds tiny numbers.
FLAGS = ["-std=c11", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
FLAGS += [
    "-O3",
    "-falign-loops=64",
]  # a loop of a product at an unlucky address takes a seventh longer
# The same sources are compiled for each of these instruction sets that the compiler knows, and for
# the baseline of the platform; csrc/library.c says which of them a processor runs.
AVX2 = ["-mavx2", "-mfma"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512"]
TARGETS = {
    "avx512_bf16": [*AVX512, "-mavx512vnni", "-mavx512bf16"],
    "avx512_vnni": [*AVX512, "-mavx512vnni"],
    "avx512": AVX512,
    "avx2_vnni": [*AVX2, "-mavxvnni"],
    "avx2": AVX2,
    "neon_dotprod": ["-march=armv8.2-a+dotprod"],
    "baseline": [],
}
FAMILIES = {
    "x86_64": "avx",
    "aarch64": "neon",
    "arm64": "neon",
}  # of targets, by the first part of -dumpmachine


def digest(folder: Path) -> str:
    """SHA-256 of all sources in the folder, which elmokit/ops/native/library.py compares with its
    own.
    """
    files = sorted([*folder.glob("*.c"), *folder.glob("*.h")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def reason_of(error: BaseException) -> str:
    """The first lines that the compiler printed, or else the error itself."""
    printed = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
    return "\n".join(printed.splitlines()[:5]) or str(error)


def target_objects(compiler: list[str], folder: Path, target: str, objects: Path) -> list[Path]:
    """Compile all kernels for one target.

    Raises:
        CalledProcessError: The compiler cannot.
    """
    parts = [("characters", [])]
    parts += [("unpack", [f"-DTYPE={number}"]) for number in ("float", "float16")]
    parts += [("kernels", [f"-DTYPE={number}"]) for number in ("float", "bfloat16", "int8")]
    compiled = []
    for number, (name, options) in enumerate(parts):
        compiled.append(objects / f"{target}-{number}.o")
        options = [
            *FLAGS,
            *TARGETS[target],
            *options,
            f"-DTARGET={target}",
            "-c",
            str(folder / f"{name}.c"),
        ]
        subprocess.run(
            [*compiler, *options, "-o", str(compiled[-1])], check=True, capture_output=True
        )
    return compiled


def family_of(compiler: list[str]) -> str:
    """The family of targets for the processors that a compiler compiles for; "baseline" if there is
    none.
    """
    triple = subprocess.run(
        [*compiler, "-dumpmachine"], check=True, capture_output=True
    ).stdout.decode()
    # GCC keeps wide registers on a stack that Windows aligns to 16 bytes only, where they crash
    # (its bug 54412).
    return "baseline" if "mingw" in triple else FAMILIES.get(triple.split("-")[0], "baseline")


def build_library(folder: Path, library: Path) -> dict[str, str]:
    """Compile the kernels for each target, leaving out those for which it fails, as for one that
    the compiler lacks.

    Args:
        folder: The C sources.
        library: The file to write; it appears whole or not at all.

    Returns:
        Why each target that the library lacks could not be compiled.

    Raises:
        OSError: There is no compiler ($CC, else cc, gcc or clang).
        CalledProcessError: It cannot compile the sources.
    """
    compiler, partial = c_compiler(), library.with_suffix(f".{os.getpid()}.so")
    family = family_of(compiler)
    targets = [target for target in TARGETS if target.startswith((family, "baseline"))]
    with TemporaryDirectory() as objects, ThreadPoolExecutor(os.cpu_count()) as pool:
        compiling = [
            pool.submit(target_objects, compiler, folder, target, Path(objects))
            for target in targets
        ]
        errors = {target: each.exception() for target, each in zip(targets, compiling, strict=True)}
        if (error := errors["baseline"]) is not None:  # which every compiler knows
            raise error
        compiled = [
            str(file) for each in compiling if not each.exception() for file in each.result()
        ]
        options = [
            *FLAGS,
            f'-DELMOKIT_SOURCES="{digest(folder)}"',
            str(folder / "library.c"),
            "-shared",
        ]
        linked = Path(objects) / library.name
        subprocess.run(
            [*compiler, *options, *compiled, "-o", str(linked)], check=True, capture_output=True
        )
        shutil.copy(linked, partial)
    os.replace(partial, library)
    return {target: reason_of(error) for target, error in errors.items() if error is not None}


def c_compiler() -> list[str]:
    """The command of $CC, else the first of cc, gcc and clang that is there, else cc; on macOS with
    $ARCHFLAGS.
    """
    if named := os.environ.get("CC"):
        command = shlex.split(named, posix=os.name != "nt")
    else:
        command = [next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), "cc")]
    # On macOS this names the processors for which a wheel is built and called.
    return (
        command + shlex.split(os.environ.get("ARCHFLAGS", ""))
        if sys.platform == "darwin"
        else command
    )


def platform_tag() -> str:
    """The platform of this machine, as linux_x86_64; on macOS, the oldest one that the library is
    compiled for.

    On Linux it promises no version of glibc: for PyPI, build in a manylinux image, where auditwheel
    finds the oldest one that will do and renames the wheel.
    """
    platforms = (tag.platform for tag in sys_tags())
    tag = next(
        platform for platform in platforms if not platform.startswith(("manylinux", "musllinux"))
    )
    return process_macos_plat_tag(tag, compat=False) if tag.startswith("macosx") else tag


class KernelBuilder(BuildHookInterface):
    """Adds the library and top_level.txt to a wheel, and names the wheel's platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds a wheel, or installs a checkout to be edited."""
        if (
            self.target_name == "wheel"
        ):  # spaCy's packaging finds the distribution of a module by this file alone
            kind = "force_include_editable" if version == "editable" else "force_include"
            metadata = f"elmokit-{self.metadata.version}.dist-info/top_level.txt"
            build_data[kind][str(Path(self.root) / "top_level.txt")] = metadata
        library = Path(self.root) / LIBRARY
        if self.target_name == "wheel" and version == "editable":
            library.unlink(
                missing_ok=True
            )  # that of an earlier installation would be used where none is built
        if self.target_name != "wheel" or os.environ.get("ELMOKIT_PURE", "0") != "0":
            return
        try:
            omitted = build_library(Path(self.root) / SOURCES, library)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(
                f"\n*** elmokit WITHOUT COMPILED KERNELS: no C compiler could build them "
                f"({reason_of(error)}).\n"
                "*** It works, several times slower on a CPU. Install gcc or clang (or name one "
                "in CC), and\n"
                "*** install elmokit again; or set ELMOKIT_PURE=1 to do without. `elmokit info` "
                "lists the kernels.\n"
            )
            return
        for target, reason in omitted.items():
            self.app.display_warning(f"elmokit's kernels for {target} were left out: {reason}")
        build_data["artifacts"].append(LIBRARY.as_posix())
        build_data["pure_python"], build_data["tag"] = False, f"py3-none-{platform_tag()}"
