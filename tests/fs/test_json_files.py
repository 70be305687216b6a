"""JSON that anyone may have written is read within bounds."""

import os
from pathlib import Path

import pytest

from elmokit.fs.json_files import read_json


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b"{", b'"\xff"', b"1" * 5000],
    ids=["deep", "cut", "bytes", "digits"],
)
def test_damaged_json_is_a_value_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError):
        read_json(tmp_path / "a.json")


def test_pipe_or_device_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(ValueError, match="is not a regular file"):
            read_json(path)
