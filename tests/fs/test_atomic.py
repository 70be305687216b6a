"""Atomic writing under simulated failures: a file is complete, or absent."""

import errno
import os
import signal
import stat
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from elmokit.fs import atomic
from elmokit.fs.atomic import (
    atomic_directory,
    atomic_path,
    check_output,
    create_bytes,
    link_or_copy_directory,
    remove_leftovers,
)
from elmokit.fs.reading import read_lines


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["a.txt", "a.gz", "a.zst", "a.txt.GZ", "A.ZST"])
def test_created_bytes_are_read_back(tmp_path: Path, name: str) -> None:
    with create_bytes(tmp_path / name) as stream:
        stream.write(b"one\n")
        stream.write("zwölf\n".encode())
    assert list(read_lines(tmp_path / name)) == ["one", "zwölf"]
    assert ((tmp_path / name).read_bytes() == "one\nzwölf\n".encode()) == (name == "a.txt")


def test_gzip_notices_that_a_disk_was_full_for_a_moment(tmp_path: Path) -> None:
    """A write that is cut short by a full disk is no error in itself: only the next one is."""
    resource = pytest.importorskip("resource", reason="Windows has no limit of file sizes")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError), create_bytes(tmp_path / "a.gz") as stream:
            stream.write(os.urandom(1 << 20))
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_atomic_path_appears_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.txt.gz"
    with atomic_path(target) as partial:
        partial.write_text("done")
        assert partial.suffix == ".gz" and not target.exists()
    assert target.read_text() == "done"
    assert [path.name for path in target.parent.iterdir()] == ["a.txt.gz"]


@pytest.mark.parametrize("is_directory", [False, True])
@pytest.mark.parametrize("exists", [False, True])
def test_symbolic_link_stays_and_what_it_points_to_is_written(tmp_path: Path, is_directory: bool, exists: bool) -> None:
    link, target = tmp_path / "link", tmp_path / "disk" / "target"
    target.parent.mkdir()
    link.symlink_to(target)
    for content in ["old", "new"] if exists else ["new"]:
        check_output(link, overwrite=True, directory_of="file" if is_directory else None)
        with atomic_directory(link, overwrite=True) if is_directory else atomic_path(link) as partial:
            (partial / "file" if is_directory else partial).write_text(content)
    assert link.is_symlink() and {path.name for path in target.parent.iterdir()} == {"target"}
    assert (target / "file" if is_directory else target).read_text() == "new"


@pytest.mark.parametrize("umask", [0o027, 0o002])
def test_written_files_have_the_mode_of_the_umask_at_the_time(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with atomic_path(tmp_path / "a.txt") as partial:
            partial.write_text("done")
            partial.chmod(0o600)  # as some libraries do
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o666 & ~umask


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_atomic_path_keeps_the_mode_of_a_file_that_it_replaces(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("old")
    (tmp_path / "secret").chmod(0o600)
    with atomic_path(tmp_path / "secret") as partial:
        partial.write_text("new")
    assert (tmp_path / "secret").read_text() == "new" and mode_of(tmp_path / "secret") == 0o600


def test_directory_of_links_leaves_the_modes_of_their_targets(tmp_path: Path) -> None:
    source, other = tmp_path / "source", tmp_path / "other"
    source.mkdir()
    for file in (source / "file", other):
        file.write_text("text")
        file.chmod(0o600)
    link_or_copy_directory(source, tmp_path / "linked")
    assert (tmp_path / "linked" / "file").samefile(source / "file")
    with atomic_directory(tmp_path / "of-links") as partial:
        (partial / "link").symlink_to(other)
        (partial / "dangling").symlink_to(tmp_path / "nowhere")
    assert mode_of(source / "file") == mode_of(other) == 0o600


def test_directory_is_copied_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("text")
    link_or_copy_directory(tmp_path / "source", tmp_path / "copied")
    assert (tmp_path / "copied" / "file").read_text() == "text"
    assert not (tmp_path / "copied" / "file").samefile(tmp_path / "source" / "file")


def test_atomic_path_keeps_the_old_file_on_error(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError, match="accident"), atomic_path(target) as partial:
        partial.write_text("half")
        raise RuntimeError("accident")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_full_disk_names_the_target(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    message = r"cannot write .*a\.txt \(No space left.*: check free space .*; what was there before is unchanged"
    with pytest.raises(OSError, match=message) as caught, atomic_path(target):
        _full()
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_full_disk_inside_a_directory_names_the_directory_once(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=r"cannot write \S*/model \(No space left on device\): check"),
        atomic_directory(tmp_path / "model") as partial,
        atomic_path(partial / "weights.hdf5"),
    ):
        _full()
    assert not list(tmp_path.iterdir())


def test_full_disk_at_the_last_sync_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(OSError, match="cannot write"), atomic_directory(tmp_path / "a") as partial:
        (partial / "file").write_text("half")
    with pytest.raises(OSError, match="cannot write"), atomic_path(tmp_path / "b") as partial:
        partial.write_text("half")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_on_the_disk_before_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    replace, fsync = os.replace, os.fsync

    def record_sync(descriptor: int) -> None:
        calls.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", lambda source, target: calls.append("rename") or replace(source, target))
    with atomic_path(tmp_path / "a") as partial:
        partial.write_text("whole")
    assert calls == ["file", "rename", "directory"]


def test_error_of_a_reader_inside_the_block_is_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a file"), atomic_path(tmp_path / "a.txt"):
        list(read_lines(tmp_path / "missing.txt"))


def test_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write .*below"), atomic_path(tmp_path / "file" / "below"):
        pass


@pytest.mark.parametrize("overwrite", [False, True])
def test_directory_in_the_place_of_a_file_is_named_before_the_work(tmp_path: Path, overwrite: bool) -> None:
    with pytest.raises(IsADirectoryError, match="is a directory: name a file"), atomic_path(tmp_path, overwrite):
        pytest.fail("the block was entered")


def test_atomic_directory_appears_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.mkdir()  # an empty directory may be filled
    with atomic_directory(target) as partial:
        (partial / "file").write_text("first")
        assert list(target.iterdir()) == []
    assert (target / "file").read_text() == "first"

    with pytest.raises(FileExistsError, match="remove it"), atomic_directory(target):
        pass
    with atomic_directory(target, overwrite=True) as partial:
        (partial / "other").write_text("second")
    assert [path.name for path in target.iterdir()] == ["other"]
    assert list(tmp_path.iterdir()) == [target]


def test_atomic_directory_keeps_the_old_one_on_error(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.mkdir()
    (target / "file").write_text("old")
    with pytest.raises(RuntimeError), atomic_directory(target, overwrite=True) as partial:
        (partial / "file").write_text("half")
        raise RuntimeError
    assert (target / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_old_directory_survives_a_failed_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with atomic_directory(tmp_path / "model") as partial:
        (partial / "old").write_text("old")
    rename, calls = os.rename, []

    def fails_the_second_time(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    monkeypatch.setattr(os, "rename", fails_the_second_time)
    with pytest.raises(KeyboardInterrupt), atomic_directory(tmp_path / "model", overwrite=True) as partial:
        (partial / "new").write_text("new")
    assert [file.name for file in (tmp_path / "model").iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# --- Kills -----------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from elmokit.fs import atomic

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

path, moment = Path(sys.argv[1]), sys.argv[2]
if moment == "between two renames":
    rename = os.rename
    atomic._exchange = lambda *_: False
    os.rename = lambda source, target: rename(source, target) if target.suffix == ".replaced" else kill()
if moment == "after the exchange":
    sync, calls = atomic.sync, []
    atomic.sync = lambda path: kill() if path == Path(sys.argv[1]).parent else sync(path)
with atomic.atomic_directory(path, overwrite=True) as partial:
    (partial / "new").write_text("new")
    if moment == "while writing":
        kill()
"""


@pytest.mark.parametrize(
    ("moment", "left"),
    [("while writing", "old"), ("between two renames", None), ("after the exchange", "new")],
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
    assert len(os.listdir(tmp_path)) > 1 or left is None
    check_output(target, overwrite=True, directory_of=left or "old")
    assert os.listdir(tmp_path) == ["model"] and os.listdir(target) == [left or "old"]


def test_leftovers_of_others_and_of_runs_that_live_are_kept(tmp_path: Path) -> None:
    for name in (".partial-01234567-a.txt", ".partial-01234567-b.txt"):
        (tmp_path / name).mkdir()
    with atomic_path(tmp_path / "a.txt") as first:
        with atomic_path(tmp_path / "a.txt") as second:
            assert first.parent.exists() and second.parent.exists()
            assert not (tmp_path / ".partial-01234567-a.txt").exists()
            second.write_text("second")
        first.write_text("first")
    assert sorted(os.listdir(tmp_path)) == [".partial-01234567-b.txt", "a.txt"]
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["a.txt"] and (tmp_path / "a.txt").read_text() == "first"


def test_leftover_of_an_output_named_like_a_replaced_one_is_not_taken_for_it(tmp_path: Path) -> None:
    leftover = tmp_path / ".partial-01234567-a.replaced" / "a.replaced"
    leftover.parent.mkdir()
    leftover.write_text("half")
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == []


def test_output_with_the_longest_name_is_written(tmp_path: Path) -> None:
    for name in ("x" * 255, "词" * 85):
        with atomic_path(tmp_path / name) as partial:
            partial.write_text("done")
        assert (tmp_path / name).read_text() == "done"


# --- Before the work -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overwrite", [False, True])
def test_output_that_is_an_input_is_refused(tmp_path: Path, overwrite: bool) -> None:
    text, model = tmp_path / "text.txt", tmp_path / "model"
    text.write_text("mine")
    model.mkdir()
    (model / "config.json").write_text("mine")
    os.link(text, tmp_path / "hard")
    os.symlink(text, tmp_path / "soft")
    for output in (text, tmp_path / "hard", tmp_path / "soft", tmp_path / "model" / ".." / "text.txt"):
        with pytest.raises(ValueError, match=r"is the input .*text\.txt: choose another output"):
            check_output(output, [text], overwrite=overwrite)
    for output in (model, tmp_path):
        with pytest.raises(ValueError, match=r"the input .*model"):
            check_output(output, [model / "config.json"], overwrite=overwrite, directory_of="config.json")
    assert text.read_text() == "mine"


def test_output_that_exists_is_refused_unless_it_is_to_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "directory").mkdir()
    check_output(tmp_path / "directory", directory_of="x")
    (tmp_path / "directory" / "file").write_text("mine")
    for name, content, other in (("file", None, "file"), ("directory", "file", None)):
        with pytest.raises(FileExistsError, match="exists: remove it"):
            check_output(tmp_path / name, directory_of=content)
        check_output(tmp_path / name, directory_of=content, overwrite=True)
        with pytest.raises(ValueError, match=r"is not a (file|directory)"):
            check_output(tmp_path / name, directory_of=other, overwrite=True)
    with pytest.raises(FileExistsError, match=r"has no config\.json, so it is not overwritten"):
        check_output(tmp_path / "directory", directory_of="config.json", overwrite=True)
    with pytest.raises(ValueError, match="/dev/null exists and is not a file"):
        check_output("/dev/null", overwrite=True)


def test_directory_that_is_taken_for_a_leftover_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, locked = [], atomic.locked

    def removed_once(folder: Path) -> AbstractContextManager[bool]:
        made.append(folder)
        if len(made) == 1:
            folder.rmdir()
        return locked(folder)

    monkeypatch.setattr(atomic, "locked", removed_once)
    with atomic_path(tmp_path / "a.txt") as partial:
        partial.write_text("done")
    assert len(made) == 2 and os.listdir(tmp_path) == ["a.txt"]


def test_output_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for output in (".", "..", "/"):
        with pytest.raises(ValueError, match="does not name an output: give the name of the file or directory itself"):
            check_output(output, directory_of="x")
        with pytest.raises(ValueError, match="does not name an output"), atomic_directory(output):
            pass
    Path("loop").symlink_to("loop")
    with pytest.raises(ValueError, match="loop is a link that leads to itself"), atomic_path("loop"):
        pass
    assert os.listdir() == ["loop"]


def test_mount_point_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the volume of a container; `ismount` stands for one, which not everyone may make."""
    (tmp_path / "volume").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "volume")
    with (
        pytest.raises(ValueError, match=r"volume is a mount point.* name a directory inside it"),
        atomic_directory(tmp_path / "volume"),
    ):
        raise AssertionError("it is too late")
    check_output(tmp_path / "volume", directory_of="index.json")  # vectors may be written within it


def test_directory_that_holds_but_leftovers_is_free(tmp_path: Path) -> None:
    (tmp_path / "out" / ".partial-01234567-index.json").mkdir(parents=True)
    check_output(tmp_path / "out", directory_of="index.json")
    assert os.listdir(tmp_path / "out") == []


def test_output_that_cannot_be_written_is_refused_and_no_directory_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=r"cannot write .*below"):
        check_output(tmp_path / "file" / "below")
    check_output(tmp_path / "new" / "directories" / "file")
    assert os.listdir(tmp_path) == ["file"]


# --- Modes -----------------------------------------------------------------------------------------------------------


def test_atomic_files_have_the_mode_of_new_ones_whatever_wrote_them(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    expected = (tmp_path / "plain").stat().st_mode
    with atomic_path(tmp_path / "file") as partial:
        partial.touch(0o600)
    with atomic_directory(tmp_path / "directory") as partial:
        (partial / "file").touch(0o600)
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "directory" / "file").stat().st_mode == expected
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["directory", "file", "file", "plain"]
