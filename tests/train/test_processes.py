"""Pretraining on several processes: the loss, the model and the snapshots of one process, but for rounding."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from toy_encoders import write_config
from toy_run import WORDS_PER_SENTENCE, write_text

from elmokit.cli import main
from elmokit.train.processes import Processes, joined_processes

pytestmark = pytest.mark.any_backend

BATCH, UNROLL = 7, 8
OPTIONS = ["--preset", "tiny", "--batch-size", str(BATCH), "--unroll-steps", str(UNROLL), "--num-samples", "6"]
OPTIONS += ["--min-count", "1", "--no-tokenize", "--dropout", "0"]
OPTIONS += ["--fresh-starts", "0.2", "--dtype", "float32", "--log-every", "1", "--device", "cpu", "--threads", "1"]
OPTIONS += ["--schedule", "constant", "--recipe", "modern", "--checkpoint-every", "50", "--evaluate-every", "60"]


def test_every_row_of_a_batch_is_computed_once() -> None:
    for count in (1, 2, 3, 7):
        assert [row for rank in range(count) for row in range(7)[Processes(rank, count).rows(7)]] == list(range(7))


@pytest.mark.parametrize(("device", "backend", "own"), [("cpu", "gloo", "cpu"), (None, "nccl", "cuda:1")])
def test_processes_join_on_the_device_of_the_settings(
    device: str | None, backend: str, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two processes, as if there were two GPUs."""
    backends: list[str] = []
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, timeout: backends.append(backend))
    for name, value in {"get_rank": 1, "get_world_size": 2, "destroy_process_group": None}.items():
        monkeypatch.setattr(dist, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr("elmokit.train.processes.pick_device", lambda name: torch.device(name or "cuda:0"))
    with joined_processes(device) as processes:
        assert (processes, backends) == (Processes(1, 2, torch.device(own)), [backend])


LAUNCHER = ["-m", "torch.distributed.run", "--standalone"]


@pytest.fixture(scope="module")
def pretrain(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Called, runs `elmokit pretrain` on so many processes until it has made so many steps."""
    text = write_text(tmp_path_factory.mktemp("corpus") / "text.txt")
    words_per_step = BATCH * UNROLL * WORDS_PER_SENTENCE / (WORDS_PER_SENTENCE + 1)

    def run(output: Path, processes: int, steps: int, *options: str) -> Path:
        command = ["pretrain", "--corpus", str(text), "--heldout", str(text), "--output", str(output)]
        command += ["--max-words", str(round(steps * words_per_step)), *OPTIONS, *options]
        if processes == 1:
            assert main(command) == 0
            return output
        launched = [sys.executable, *LAUNCHER, f"--nproc-per-node={processes}", "-m", "elmokit", *command]
        found = subprocess.run(launched, capture_output=True, text=True, timeout=300)
        assert found.returncode == 0, found.stderr[-3000:]
        return output

    return run


def losses(output: Path) -> np.ndarray:
    """The losses of both directions at every step, in the order of the log."""
    events = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    names = [name for name in ("loss_forward", "loss_backward", "loss_masked") if name in events[1]]
    return np.array([[event[name] for name in names] for event in events if event["event"] == "train"])


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["lstm", "interleaved", "transformer", "gated_cnn"])
def test_two_processes_have_the_losses_of_one(pretrain: Callable[..., Path], tmp_path: Path, encoder: str) -> None:
    options = ["--config", str(write_config(encoder, tmp_path / "config.json"))] if encoder != "lstm" else []
    expected, found = (losses(pretrain(tmp_path / str(count), count, 60, *options)) for count in (1, 2))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_two_processes_that_draw_dropout_resume_exactly(pretrain: Callable[..., Path], tmp_path: Path) -> None:
    dropout = "--dropout", "0.5", "--checkpoint-every", "20"
    for name, ends in (("whole", (40,)), ("resumed", (20, 40))):
        for steps in ends:
            pretrain(tmp_path / name, 2, steps, *dropout)
    np.testing.assert_array_equal(losses(tmp_path / "resumed"), losses(tmp_path / "whole"))


@pytest.mark.slow
def test_a_process_without_text_adds_nothing(pretrain: Callable[..., Path], tmp_path: Path) -> None:
    """Nearly every batch is one sentence, which only one of two processes computes."""
    options = ["--config", str(write_config("transformer", tmp_path / "config.json"))]
    options += ["--batch-size", "2", "--unroll-steps", "1"]
    expected, found = (losses(pretrain(tmp_path / str(count), count, 5, *options)) for count in (1, 2))
    assert len(expected) > 40
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_run_is_resumed_on_another_number_of_processes(pretrain: Callable[..., Path], tmp_path: Path) -> None:
    expected, run = losses(pretrain(tmp_path / "whole", 1, 120)), tmp_path / "run"
    for processes, steps in ((2, 40), (3, 80), (1, 120)):
        pretrain(run, processes, steps)
    np.testing.assert_allclose(losses(run), expected, rtol=0, atol=1e-5)
    assert (run / "model" / "config.json").is_file()
