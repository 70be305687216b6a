"""Reading lines and atomic writing, against Python's own readers and simulated accidents."""

import errno
import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from elmokit.fs import reading
from elmokit.fs.atomic import atomic_directory, atomic_path, create_bytes
from elmokit.fs.lock import only_one_in
from elmokit.fs.reading import read_lines

TEXT = "one\r\n\n zwei \u2028 drei\x0bvier\nlast, without a line end"
LINES = ["one", "", " zwei \u2028 drei\x0bvier", "last, without a line end"]


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_plain_gzip_and_zstd_read_alike(tmp_path: Path) -> None:
    data = TEXT.encode()
    contents = {"a.txt": data, "a.txt.gz": gzip.compress(data), "a.txt.zst": zstandard.compress(data)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert list(read_lines(tmp_path / name)) == LINES


def test_lines_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_SIZE", 3)
    (tmp_path / "a.txt").write_text(TEXT + "\n", encoding="utf-8", newline="")
    assert list(read_lines(tmp_path / "a.txt")) == LINES


def test_several_zstd_frames_are_one_text(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(zstandard.compress(b"one\n") + zstandard.compress(b"two\n"))
    assert list(read_lines(tmp_path / "a.zst")) == ["one", "two"]


def test_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ufefftwo\n", encoding="utf-8-sig")
    assert list(read_lines(tmp_path / "a.txt")) == ["one", "\ufefftwo"]


def test_invalid_utf8_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\nalso\nb\xe4d\n")
    with pytest.raises(ValueError, match=r"a\.txt, line 3: byte 0xe4 at column 2"):
        list(read_lines(tmp_path / "a.txt"))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        list(read_lines(tmp_path / "nowhere.txt"))


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
def test_damaged_compression(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"this is plain text")
    with pytest.raises(ValueError, match="cannot be decompressed"):
        list(read_lines(tmp_path / name))


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
def test_cut_off_compression(tmp_path: Path, name: str) -> None:
    text = "\n".join(f"line {number * number}" for number in range(20_000)).encode()
    whole = gzip.compress(text) if name.endswith("gz") else zstandard.compress(text)
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cannot be decompressed"):
        list(read_lines(tmp_path / name))


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


def test_full_disk_at_the_last_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(OSError, match="cannot write"), atomic_directory(tmp_path / "a") as partial:
        (partial / "file").write_text("half")
    assert list(tmp_path.iterdir()) == []


def test_error_of_a_reader_inside_the_block_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a file"), atomic_path(tmp_path / "a.txt"):
        list(read_lines(tmp_path / "missing.txt"))


def test_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write .*below"), atomic_path(tmp_path / "file" / "below"):
        pass


def test_atomic_directory(tmp_path: Path) -> None:
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


def test_a_directory_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    with only_one_in(tmp_path / "run"):
        code = f"from elmokit.fs.lock import only_one_in\nwith only_one_in({str(tmp_path / 'run')!r}): pass"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "another process is writing in" in other.stderr
    with only_one_in(tmp_path / "run"):
        pass  # free again
    assert list((tmp_path / "run").iterdir()) == []


def test_a_file_system_that_holds_no_directories_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(number: int) -> None:
        def flock(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("fcntl.flock", flock)

    fails(errno.EBADF)
    with only_one_in(tmp_path / "run"):
        pass
    fails(errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), only_one_in(tmp_path / "run"):
        pass


def test_what_was_there_survives_when_its_replacement_cannot_take_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
