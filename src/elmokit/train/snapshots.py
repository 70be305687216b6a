"""Snapshots of a training run, from which it resumes exactly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from elmokit.fs import atomic_directory, remove_directory

TENSORS, PROGRESS = "tensors.safetensors", "progress.json"


@dataclass(frozen=True)
class Snapshot:
    """The state of a run.

    Attributes:
        tensors: Weights, optimizer, LSTM and random number generator state, by name.
        progress: JSON values: step, position in the corpus, settings.
    """

    tensors: dict[str, Tensor]
    progress: dict[str, Any]

    def with_prefix(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix` and a dot, by the rest of their names."""
        return {
            name[len(prefix) + 1 :]: tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix + ".")
        }


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors in main memory, with `prefix` and a dot before their names."""
    return {
        f"{prefix}.{name}": tensor.detach().cpu().contiguous().clone()
        for name, tensor in tensors.items()
    }


def snapshot_path(directory: Path, step: int) -> Path:
    """The path of the snapshot of a step."""
    return directory / f"step-{step:08d}"


def step_of(snapshot: Path) -> int:
    """The step of a snapshot's path."""
    return int(snapshot.name.removeprefix("step-"))


def _snapshots(directory: Path) -> list[Path]:
    return sorted(directory.glob("step-????????"))


def write_snapshot(directory: Path, step: int, snapshot: Snapshot, keep: int) -> Path:
    """Write the snapshot `step-NNNNNNNN` to `directory`, and remove all but the latest `keep`.

    Snapshots of later steps are removed, too: they are from before the run was set back.
    """
    path = snapshot_path(directory, step)
    with atomic_directory(path, overwrite=True) as partial:
        save_file(snapshot.tensors, partial / TENSORS)
        (partial / PROGRESS).write_text(json.dumps(snapshot.progress), encoding="utf-8")
    # With keep = 2, after step 30:   10 20 [30] 40  ->  20 [30]
    snapshots = _snapshots(directory)
    current = snapshots.index(path)
    for other in (*snapshots[: max(0, current + 1 - keep)], *snapshots[current + 1 :]):
        remove_directory(other)
    return path


def latest_snapshot(directory: Path) -> Path | None:
    """The latest complete snapshot; None if there is none."""
    return max(_snapshots(directory), default=None)


def remove_latest_snapshot(directory: Path) -> None:
    """Remove the latest snapshot, unless it is the only one."""
    *earlier, latest = _snapshots(directory)
    if earlier:
        remove_directory(latest)


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot."""
    return Snapshot(load_file(path / TENSORS), json.loads((path / PROGRESS).read_bytes()))
