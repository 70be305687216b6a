"""Atomic writing under simulated failures: a file is complete, or absent."""

import os
import re
import signal
import stat
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from elmokit.fs.atomic import (
    atomic_directory,
    atomic_path,
    check_output,
    directory_lock,
    remove_directory,
    write_lines,
)
from elmokit.fs.reading import read_lines


@pytest.mark.parametrize("name", ["a.txt", "a.gz", "a.zst", "a.txt.GZ", "A.ZST"])
def test_written_lines_are_read_back(tmp_path: Path, name: str) -> None:
    for directory in ("one", "other"):
        (tmp_path / directory).mkdir()
        write_lines(tmp_path / directory / name, iter(["one", "zwölf"]))
    written = (tmp_path / "one" / name).read_bytes()
    assert list(read_lines(tmp_path / "one" / name)) == ["one", "zwölf"]
    assert (written == "one\nzwölf\n".encode()) == (name == "a.txt")
    assert written == (tmp_path / "other" / name).read_bytes()


@pytest.mark.parametrize("is_directory", [False, True])
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("by_link", [False, True])
def test_output_appears_when_complete(
    tmp_path: Path, is_directory: bool, exists: bool, fails: bool, by_link: bool
) -> None:
    target = tmp_path / "new" / "a.txt"
    path = tmp_path / "link" if by_link else target
    if by_link:
        path.symlink_to(target)
    file = target / "file" if is_directory else target
    if exists:
        file.parent.mkdir(parents=True)
        file.write_text("old")
    atomic = atomic_directory if is_directory else atomic_path
    try:
        with atomic(path, overwrite=True) as partial:
            (partial / "file" if is_directory else partial).write_text("new")
            assert partial.name == "a.txt"
            assert file.read_text() if exists else not file.exists()
            if fails:
                raise RuntimeError
    except RuntimeError:
        pass
    expected = ("old" if exists else None) if fails else "new"
    assert (file.read_text() if file.exists() else None) == expected
    assert path.is_symlink() == by_link
    assert list(target.parent.iterdir()) == [target] * (expected is not None)
    if expected is not None:
        with pytest.raises(FileExistsError), atomic(path, overwrite=False):
            pytest.fail("the block was entered")


def test_empty_directory_is_filled_and_a_directory_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with atomic_directory(tmp_path / "a") as partial:
        (partial / "file").touch()
    with pytest.raises(IsADirectoryError), atomic_path(tmp_path / "a") as partial:
        partial.touch()
    remove_directory(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o002])
def test_files_have_the_mode_of_new_ones_whatever_wrote_them(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with atomic_path(tmp_path / "a.txt") as partial:
            partial.touch(0o600)
        with atomic_directory(tmp_path / "a") as partial:
            (partial / "file").touch(0o600)
    finally:
        os.umask(before)
    for file in (tmp_path / "a.txt", tmp_path / "a" / "file"):
        assert file.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_file_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    replace = os.replace
    fsync = os.fsync

    def record_sync(descriptor: int) -> None:
        calls.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(
        os, "replace", lambda source, target: calls.append("rename") or replace(source, target)
    )
    with atomic_path(tmp_path / "a") as partial:
        partial.write_text("whole")
    assert calls == ["file", "rename", "directory"]


# --- Kills ----------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from elmokit.fs import atomic

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

path, moment, rename = Path(sys.argv[1]), sys.argv[2], os.rename
if moment == "between two renames":
    os.rename = lambda source, target: rename(source, target) if source == path else kill()
if moment == "after the renames":
    os.rename = lambda source, target: rename(source, target) or (target == path and kill())
with atomic.atomic_directory(path, overwrite=True) as partial:
    (partial / "new").write_text("new")
    if moment == "while writing":
        kill()
"""


@pytest.mark.parametrize(
    ("moment", "left"),
    [("while writing", "old"), ("between two renames", None), ("after the renames", "new")],
)
def test_killed_writer_leaves_one_of_both_and_the_next_run_no_litter(
    tmp_path: Path, moment: str, left: str | None
) -> None:
    target = tmp_path / "model"
    with atomic_directory(target) as partial:
        (partial / "old").write_text("old")
    run = subprocess.run([sys.executable, "-c", KILLED, str(target), moment], check=False)
    assert run.returncode == -signal.SIGKILL
    assert (os.listdir(target) if target.exists() else []) == [left] * (left is not None)
    assert left == "old" or os.listdir(tmp_path / ".replaced-model") == ["old"]
    with atomic_directory(target, overwrite=True) as partial:
        (partial / "newer").touch()
    if (
        left is not None
    ):  # else what was replaced is the user's only copy, until the output is replaced again
        with atomic_directory(target, overwrite=True) as partial:
            (partial / "newer").touch()
        assert os.listdir(tmp_path) == ["model"]
    assert os.listdir(target) == ["newer"]


def test_leftovers_of_others_and_of_runs_that_live_are_kept(tmp_path: Path) -> None:
    for name in (".partial-01234567-a.txt", ".partial-01234567-b.txt"):
        (tmp_path / name).mkdir()
    with atomic_path(tmp_path / "a.txt") as first:
        check_output(tmp_path / "a.txt", [])
        assert first.parent.exists()
        assert not (tmp_path / ".partial-01234567-a.txt").exists()
        first.write_text("first")
    assert sorted(os.listdir(tmp_path)) == [".partial-01234567-b.txt", "a.txt"]
    with directory_lock(tmp_path):
        pass
    assert os.listdir(tmp_path) == ["a.txt"]


# --- Before the work ------------------------------------------------------------------------------


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """A file, a link to it, the directory of a model, and one with what a killed run left."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"lstm": 1}')
    (tmp_path / "model" / "part-1").touch()
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / ".partial-01234567-x").mkdir()
    return tmp_path


MODEL: dict[str, Any] = {"directory_of": "config.json", "overwrite": True}


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        *(
            (name, {"inputs": ["file"], "overwrite": True}, ValueError, "the input")
            for name in ("file", "link", ".")
        ),
        ("model/../file", {"inputs": ["file"], "overwrite": True}, ValueError, "the input"),
        ("model", {"inputs": ["model/config.json"], **MODEL}, ValueError, "the input"),
        ("file", {}, FileExistsError, "exists: remove it"),
        ("model", {"directory_of": "config.json"}, FileExistsError, "exists: remove it"),
        ("file", MODEL, ValueError, "is not a directory"),
        ("model", {"overwrite": True}, ValueError, "is not a file"),
        ("model", {**MODEL, "directory_of": "index.json"}, FileExistsError, r"has no index\.json"),
        ("model", {**MODEL, "keys": {"lstm", "char_cnn"}}, FileExistsError, r"has no config\.json"),
        ("model", {**MODEL, "own_files": re.compile("x")}, FileExistsError, "also holds part-1"),
        ("file/below", {}, OSError, "file"),
        ("file", {"overwrite": True}, None, ""),
        ("left", {"directory_of": "x"}, None, ""),
        ("model", {**MODEL, "keys": {"lstm"}, "own_files": re.compile("part-[0-9]+")}, None, ""),
        ("new/one", {}, None, ""),
    ],
)
def test_outputs_are_checked_before_the_work(
    name: str, options: dict[str, Any], error: type[Exception] | None, message: str, outputs: Path
) -> None:
    before = sorted(outputs.rglob("[!.]*"))
    inputs = [outputs / file for file in options.get("inputs", ())]
    with nullcontext() if error is None else pytest.raises(error, match=message):
        check_output(outputs / name, **{**options, "inputs": inputs})
    assert name == "new/one" or sorted(outputs.rglob("[!.]*")) == before


# --- One writer ---------------------------------------------------------------------------------


def test_directory_is_locked_by_one_process_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with directory_lock(tmp_path / "run") as is_locked:
        code = (
            "from elmokit.fs.atomic import directory_lock\nwith "
            f"directory_lock({str(tmp_path / 'run')!r}): pass"
        )
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert is_locked
        assert "another process is writing in" in other.stderr
    with directory_lock(tmp_path / "run") as is_locked:
        assert is_locked  # free again


@pytest.mark.skipif(os.name == "nt", reason="no locks")
def test_output_is_written_while_others_clean_up_beside_it(tmp_path: Path) -> None:
    is_over = threading.Event()

    def clean() -> None:
        while not is_over.is_set():
            with directory_lock(tmp_path):
                pass

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    try:
        for number in range(300):
            write_lines(tmp_path / "words.txt", [str(number)])
    finally:
        is_over.set()
        cleaner.join()
    assert list(read_lines(tmp_path / "words.txt")) == ["299"]
