"""ProgressBar without a terminal: nothing of a short job, a line now and then of a long one."""

import sys

import pytest

from elmokit.progress import ProgressBar


@pytest.mark.parametrize("leave", [True, False])
def test_long_job_prints_lines_without_a_terminal(
    leave: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(1000, 10_000, 10))  # ten seconds at each look
    monkeypatch.setattr("tqdm.std.time", lambda: float(next(now)))
    with ProgressBar(total=20, desc="count", unit=" words", leave=leave) as bar:
        for _ in range(20):
            bar.update()
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert not out
    assert "\r" not in err
    assert "\x1b" not in err
    assert 3 <= len(lines) < 12
    assert all(line.startswith("count: ") and " words" in line for line in lines)
    assert ("20/20" in lines[-1]) == leave


def test_a_program_without_standard_streams_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as in pythonw.exe
    monkeypatch.setattr(sys, "stdout", None)
    assert list(ProgressBar(range(3), "job", mininterval=0)) == [0, 1, 2]
