"""Damage files of many kinds, by default a thousand times each, and read them.

    python benchmarks/reliability/mutants.py [--mutants 1000] [--kinds store zip] [--output
    FILE]

Each mutant is a small, intact model or store with one change: it is truncated, bytes are
flipped or overwritten, a file is removed, or a value in its JSON, in the header of a tensor or in
an entry is replaced by an absurd one. The outcomes:

    refused   an error meant for users: ValueError or OSError
    equal     read, and equal to the intact one
    other     read, and different: legal values under no checksum (see `Kind.checked`)
    silent    read, and different, although a checksum covers the change
    crash     any other exception, or the end of the process
    hang      more than 10 seconds
    memory    more than 2 GB

The last four are defects, for which the exit status is 1. Every kind runs in a process of its own,
which is restarted after a mutant that ends it.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests" / "support")]
from mutants_of_files import (
    ANYWHERE,
    MUTATIONS,
    WRITERS,
    change_json,
    change_safetensors,
    mutate,
    remove,
)
from result_files import RESULTS, write_result

from elmokit.checkpoints.loading import load
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file
from elmokit.storage.store import EmbeddingStore

SECONDS, BYTES = 10, 2 << 30
ADDRESS_SPACE = 6 << 30  # allocations beyond it fail, before the machine runs out of memory
DEFECTS = ("silent", "crash", "hang", "memory")


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        write: Writes an intact file or directory of this kind to a new directory, and returns its
            path.
        read: Reads it, and returns arrays that can be compared.
        checked: The suffixes of files that a checksum covers, so that no change may go unnoticed.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    checked: tuple[str, ...] = ()


# --- Models ---------------------------------------------------------------------------------------


def read_model(path: Path) -> dict[str, np.ndarray]:
    """The weights of the biLM."""
    return {name: tensor.numpy() for name, tensor in load(path).bilm.state_dict().items()}


# --- Stores ---------------------------------------------------------------------------------------

LINES = [
    "the cat sat",
    "",
    "naïve 词向量 the",
    "a b",
    "c",
    "the the",
    "x",
    "the dog and the cat",
    "y z",
]


@cache
def embedder() -> Embedder:
    """The same tiny model for all stores, since their index contains its fingerprint."""
    with tempfile.TemporaryDirectory() as folder:
        return Embedder(load(WRITERS["native"](Path(folder) / "model")), "cpu")


def write_store(folder: Path) -> Path:
    """The store of a short text, next to it."""
    folder.mkdir()
    (folder / "text.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    embed_file(
        folder / "text.txt", folder / "store", embedder(), state="carry", sentences_per_part=2
    )
    return folder / "store"


def read_vectors(path: Path) -> dict[str, np.ndarray]:
    """The words and vectors of every line."""
    lines = list(EmbeddingStore(path))
    words = json.dumps([words for words, _ in lines]).encode()
    return {
        "words": np.frombuffer(words, np.uint8),
        "vectors": np.concatenate([vectors for _, vectors in lines]),
    }


# --- Mutants --------------------------------------------------------------------------------------

EVERYWHERE = (*ANYWHERE, remove, change_json, change_safetensors)
KINDS = {
    **{name: Kind(write, read_model) for name, write in WRITERS.items()},
    "store": Kind(write_store, read_vectors),
}
KINDS["tensorflow"] = KINDS["tensorflow"]._replace(checked=(".index", "-of-00001"))
KINDS["zip"] = KINDS["zip"]._replace(checked=(".zip",))
MUTATIONS["store"] = EVERYWHERE


def is_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Whether the same arrays have the same bytes."""
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


def outcome(kind: Kind, mutant: Path, sound: dict[str, np.ndarray], change: str) -> str:
    """Read a mutant; returns one of the outcomes above, for a crash with the error."""
    signal.alarm(SECONDS)
    try:
        content = kind.read(mutant)
    except _Hang:
        return "hang"
    except (ValueError, OSError):
        return "refused"
    except Exception as error:
        return f"crash {type(error).__name__}: {error}"[:200].replace("\n", " ")
    finally:
        signal.alarm(0)
    if is_equal(content, sound):
        return "equal"
    return "silent" if change.split(":")[0].endswith(kind.checked or "\0") else "other"


class _Hang(BaseException):
    """Reading took too long. A BaseException, since readers convert exceptions to errors of their
    own.
    """


def _hang(*_: object) -> None:
    raise _Hang


def run_kind(name: str, folder: Path, begin: int, end: int) -> None:
    """Write the number, change, outcome and peak memory (bytes) of each mutant to `lines`, a JSON
    list a line.
    """
    torch.set_num_threads(1)
    kind, lines = KINDS[name], (folder / "lines").open("w", buffering=1)
    sound = kind.write(folder / "sound")
    shutil.copytree(sound, folder / "reference") if sound.is_dir() else shutil.copy(
        sound, folder / "reference"
    )
    content = kind.read(sound)
    if not is_equal(kind.read(sound), content):
        sys.exit(f"{name}: two readings of the same differ")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    signal.signal(signal.SIGALRM, _hang)
    warnings.simplefilter("ignore")
    mutant = sound  # at the path of the intact one, since some files may contain that path
    for number in range(begin, end):
        shutil.rmtree(mutant) if mutant.is_dir() else mutant.unlink(missing_ok=True)
        reference = folder / "reference"
        shutil.copytree(reference, mutant) if reference.is_dir() else shutil.copy(reference, mutant)
        change = damage(mutant, name, number)
        lines.write(json.dumps([number, change]) + "\n")
        result = outcome(kind, mutant, content, change)
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        lines.write(json.dumps([number, change, result, peak]) + "\n")
        if peak > BYTES:
            return  # the next mutant gets a new process


def damage(mutant: Path, name: str, number: int) -> str:
    """Change one file of a mutant; returns the file and the change."""
    return mutate(mutant, name, random.Random(f"{name} {number}"))


def results_of(name: str, count: int) -> Iterator[tuple[str, str, int]]:
    """The change, outcome and peak memory of each mutant of a kind, from separate processes."""
    done = 0
    while done < count:
        with tempfile.TemporaryDirectory(prefix="elmokit-mutants-") as folder:
            # Forked, so that PyTorch is imported once; nothing has computed in this process.
            run = get_context("fork").Process(
                target=run_kind, args=(name, Path(folder), done, count)
            )
            run.start()
            run.join()
            lines = [json.loads(line) for line in (Path(folder) / "lines").read_text().splitlines()]
        for line in lines:
            if len(line) == 4:
                done, change, result, peak = line[0] + 1, *line[1:]
                yield change, "memory" if peak > BYTES else result, peak
        if run.exitcode and lines and len(lines[-1]) == 2:
            done = lines[-1][0] + 1
            yield lines[-1][1], f"crash: the process ended with {run.exitcode}", 0
        elif run.exitcode:
            sys.exit(f"{name}: cannot be tried, status {run.exitcode}")


def main() -> int:
    """Try all kinds; the status is 1 if there is a defect."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=1000, help="mutants of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument(
        "--output", type=Path, default=None, help=f"e.g. {RESULTS / 'mutants.json'}"
    )
    arguments = parser.parse_args()
    kinds: dict[str, dict[str, Any]] = {}
    for name in arguments.kinds:
        results = list(results_of(name, arguments.mutants))
        counts = Counter(result.split()[0].rstrip(":") for _, result, _ in results)
        kinds[name] = {**counts, "peak_bytes": max(peak for *_, peak in results)}
        print(f"{name}: {kinds[name]}", flush=True)
        for change, result, _ in results:
            if result.split()[0].rstrip(":") in DEFECTS:
                print(f"  {change}: {result}", flush=True)
    defects = sum(counts.get(defect, 0) for counts in kinds.values() for defect in DEFECTS)
    write_result(
        arguments.output,
        {"mutants_of_each_kind": arguments.mutants, "defects": defects, "kinds": kinds},
    )
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
