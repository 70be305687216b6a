"""Atomic writing under simulated failures: a file is complete, or absent."""

import errno
import os
from pathlib import Path

import pytest

from elmokit.fs.atomic import atomic_directory, atomic_path, create_bytes
from elmokit.fs.reading import read_lines


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["a.txt", "a.gz", "a.zst"])
def test_created_bytes_are_read_back(tmp_path: Path, name: str) -> None:
    with create_bytes(tmp_path / name) as stream:
        stream.write(b"one\n")
        stream.write("zwölf\n".encode())
    assert list(read_lines(tmp_path / name)) == ["one", "zwölf"]


def test_atomic_path_appears_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.txt.gz"
    with atomic_path(target) as partial:
        partial.write_text("done")
        assert partial.suffix == ".gz" and not target.exists()
    assert target.read_text() == "done"
    assert [path.name for path in target.parent.iterdir()] == ["a.txt.gz"]


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
    with pytest.raises(OSError, match=r"cannot write .*a\.txt \(No space left") as caught, atomic_path(target):
        _full()
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_full_disk_at_the_last_sync_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(OSError, match="cannot write"), atomic_directory(tmp_path / "a") as partial:
        (partial / "file").write_text("half")
    assert list(tmp_path.iterdir()) == []


def test_error_of_a_reader_inside_the_block_is_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a file"), atomic_path(tmp_path / "a.txt"):
        list(read_lines(tmp_path / "missing.txt"))


def test_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write .*below"), atomic_path(tmp_path / "file" / "below"):
        pass


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

    monkeypatch.setattr(os, "rename", fails_the_second_time)
    with pytest.raises(KeyboardInterrupt), atomic_directory(tmp_path / "model", overwrite=True) as partial:
        (partial / "new").write_text("new")
    assert [file.name for file in (tmp_path / "model").iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_atomic_files_have_the_mode_of_new_ones_whatever_wrote_them(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    expected = (tmp_path / "plain").stat().st_mode
    with atomic_path(tmp_path / "file") as partial:
        partial.touch(0o600)
    with atomic_directory(tmp_path / "directory") as partial:
        (partial / "file").touch(0o600)
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "directory" / "file").stat().st_mode == expected
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["directory", "file", "file", "plain"]
