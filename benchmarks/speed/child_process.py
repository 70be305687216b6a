"""Shared by the memory benchmarks: embed in a child process, so that its peak memory is that of embedding alone.

A script starts itself with `--child=VECTORS`; the child embeds one text and prints its figures as a line of JSON.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from measuring import RESULTS

MEGABYTE = 1_000_000
SETTINGS = ("model", "layers", "dtype", "storage_dtype", "device")  # arguments that both processes take


def argument_parser(document: str | None, layers: str) -> argparse.ArgumentParser:
    """The arguments of a script that embeds text in a child process; `layers` is the default of `--layers`."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--model", help="directory or name; the bundled English model when not given")
    parser.add_argument("--layers", default=layers, choices=("mix", "average", "top", "all"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "auto"))
    parser.add_argument("--storage-dtype", default="float16", choices=("float32", "float16"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--temporary", type=Path, help="directory for the vectors while it runs")
    parser.add_argument("--output", type=Path, default=RESULTS / f"{Path(parser.prog).stem}.json")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser


def embed_in_child(arguments: argparse.Namespace, text: Path, vectors: Path, **other: str) -> dict[str, Any]:
    """Run this script as a child that embeds `text`; returns its figures, with the size of the vectors.

    `other` are arguments that differ from those of this process.
    """
    options = {name: getattr(arguments, name) for name in SETTINGS} | other
    command = [sys.executable, sys.argv[0], str(text), f"--child={vectors}"]
    command += [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    size = sum(part.stat().st_size for part in vectors.iterdir())
    return {**json.loads(printed.splitlines()[-1]), "vectors_megabytes": round(size / MEGABYTE)}


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of a run, for the result file."""
    return {name: getattr(arguments, name) for name in SETTINGS} | {"model": arguments.model or "en-small"}


def peak_megabytes() -> int:
    """Peak resident memory of this process. (On Linux, getrusage includes that of the parent.)"""
    status = Path("/proc/self/status")
    if status.is_file():
        (peak,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return round(int(peak) * 1024 / MEGABYTE)
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MEGABYTE)
