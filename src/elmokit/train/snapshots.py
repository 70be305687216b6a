"""Everything a killed run needs to go on as if nothing had happened: one atomic, complete directory per snapshot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmokit.fs.atomic import atomic_directory

TENSORS, PROGRESS = "tensors.safetensors", "progress.json"


@dataclass(frozen=True)
class Snapshot:
    """Named tensors (weights, optimiser, LSTM and random state), and what JSON can say (step, position, settings)."""

    tensors: dict[str, Tensor]
    progress: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix` and a dot, without it."""
        return {
            name[len(prefix) + 1 :]: tensor for name, tensor in self.tensors.items() if name.startswith(prefix + ".")
        }


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in main memory, their names as `Snapshot.part` looks for them."""
    return {f"{prefix}.{name}": tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _snapshots(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("step-*") if path.is_dir())


def snapshot_path(directory: Path, step: int) -> Path:
    """Where the snapshot of a step lies."""
    return directory / f"step-{step:08d}"


def step_of(snapshot: Path) -> int:
    """The step of a snapshot's path."""
    return int(snapshot.name.removeprefix("step-"))


def write_snapshot(directory: Path, step: int, snapshot: Snapshot, keep: int) -> Path:
    """Write `step-NNNNNNNN` into `directory` and remove all but the last `keep`."""
    for left_by_a_kill in directory.glob(".partial-*-step-*"):
        shutil.rmtree(left_by_a_kill)
    path = snapshot_path(directory, step)
    with atomic_directory(path, overwrite=True) as partial:
        save_file(snapshot.tensors, partial / TENSORS)
        (partial / PROGRESS).write_text(json.dumps(snapshot.progress), encoding="utf-8")
    for old in _snapshots(directory)[:-keep]:
        shutil.rmtree(old)
    return path


def latest_snapshot(directory: Path) -> Path | None:
    """The last complete snapshot; None where there is none."""
    found = _snapshots(directory)
    return found[-1] if found else None


def remove_latest_snapshot(directory: Path) -> Path:
    """Remove the last snapshot, unless it is the only one; returns the one that is the last then."""
    *before, last = _snapshots(directory)
    if not before:
        return last
    shutil.rmtree(last)
    return before[-1]


def read_snapshot(path: Path) -> Snapshot:
    """ValueError where the files are damaged."""
    try:
        progress = json.loads((path / PROGRESS).read_text(encoding="utf-8"))
        return Snapshot(load_file(path / TENSORS), progress)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read ({error}): remove it to go on from the snapshot before it") from error
