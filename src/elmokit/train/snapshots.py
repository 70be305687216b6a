"""Snapshots of a training run, from which it resumes exactly: one directory per snapshot, written atomically.

tensors.safetensors   weights, optimizer, LSTM and random number generator state
progress.json         the rest of the state
checksums.json        the CRC-32 of both; missing from snapshots of versions before 0.1
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmokit.fs.atomic import atomic_directory, remove_directory, remove_leftovers
from elmokit.fs.json_files import from_json, read_json
from elmokit.fs.reading import crc32_of, open_regular

TENSORS, PROGRESS, CHECKSUMS = "tensors.safetensors", "progress.json", "checksums.json"
MAX_PROGRESS = 1 << 34  # bytes: the pending text of each row may be a line as long as a book


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
            name[len(prefix) + 1 :]: tensor for name, tensor in self.tensors.items() if name.startswith(prefix + ".")
        }


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors in main memory, with `prefix` and a dot before their names."""
    return {f"{prefix}.{name}": tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _snapshots(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("step-????????") if path.name[5:].isdecimal() and path.is_dir())


def snapshot_path(directory: Path, step: int) -> Path:
    """The path of the snapshot of a step."""
    return directory / f"step-{step:08d}"


def step_of(snapshot: Path) -> int:
    """The step of a snapshot's path."""
    return int(snapshot.name.removeprefix("step-"))


def write_snapshot(directory: Path, step: int, snapshot: Snapshot, keep: int) -> Path:
    """Write the snapshot `step-NNNNNNNN` to `directory`, and remove all but the latest `keep`.

    Snapshots of later steps are removed, too: they are from before the run was set back.
    """
    remove_leftovers(directory)
    path = snapshot_path(directory, step)
    with atomic_directory(path, overwrite=True) as partial:
        save_file(snapshot.tensors, partial / TENSORS)
        (partial / PROGRESS).write_text(json.dumps(snapshot.progress), encoding="utf-8")
        checksums = {name: crc32_of(partial / name) for name in (TENSORS, PROGRESS)}
        (partial / CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")
    for other in _snapshots(directory):
        if step_of(other) > step:
            remove_directory(other)
    for old in _snapshots(directory)[:-keep]:
        remove_directory(old)
    return path


def latest_snapshot(directory: Path) -> Path | None:
    """The latest complete snapshot; None if there is none."""
    snapshots = _snapshots(directory)
    return snapshots[-1] if snapshots else None


def remove_latest_snapshot(directory: Path) -> None:
    """Remove the latest snapshot, unless it is the only one."""
    *earlier, latest = _snapshots(directory)
    if earlier:
        remove_directory(latest)


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot. ValueError if its files are missing or damaged; OSError if they cannot be read otherwise."""
    try:
        if (path / CHECKSUMS).exists():
            for name, checksum in from_json(dict[str, str], read_json(path / CHECKSUMS)).items():
                if name in (TENSORS, PROGRESS) and crc32_of(path / name) != checksum:
                    raise ValueError(f"{name} does not have its checksum")
        progress = from_json(dict[str, Any], read_json(path / PROGRESS, MAX_PROGRESS))
        open_regular(path / TENSORS).close()
        return Snapshot(load_file(path / TENSORS), progress)
    except (FileNotFoundError, ValueError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read ({error}): remove it to resume from the snapshot before it") from error
