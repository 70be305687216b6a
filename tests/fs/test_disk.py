"""Flushing to the disk."""

import os
from pathlib import Path

import pytest

from elmokit.fs.disk import sync


@pytest.mark.parametrize(("system", "flags"), [("posix", os.O_RDONLY), ("nt", os.O_RDWR)])
def test_sync_opens_a_file_as_the_system_can_flush_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, flags: int
) -> None:
    file, opened, open_file = tmp_path / "file", [], os.open
    file.write_text("text")

    def record(path: Path, flags: int) -> int:
        opened.append(flags)
        return open_file(path, flags)

    with monkeypatch.context() as patched:
        patched.setattr(os, "name", system)
        patched.setattr(os, "open", record)
        sync(file)
    assert opened == [flags]
