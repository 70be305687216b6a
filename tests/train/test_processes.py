"""Pretraining on several processes: the loss, the model and the snapshots of one process, but for
rounding.
"""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from toy_encoders import write_config
from toy_run import WORDS_PER_SENTENCE, write_text

from elmokit.cli import main
from elmokit.train.processes import Processes, join_processes

pytestmark = pytest.mark.any_backend

BATCH = 7
UNROLL = 8
OPTIONS = (
    f"--preset tiny --batch-size {BATCH} --unroll-steps {UNROLL} --num-samples 6 --min-count 1 "
    "--no-tokenize --dropout 0 --fresh-starts 0.2 --dtype float32 --log-every 1 --device cpu "
    "--threads 1 --schedule constant --recipe modern --evaluate-every 60"
)


def test_every_row_of_a_batch_is_computed_once() -> None:
    for count in (1, 2, 3, 7):
        assert [
            row for rank in range(count) for row in range(7)[Processes(rank, count).local_rows(7)]
        ] == list(range(7))


@pytest.mark.parametrize(("device", "backend", "gpus"), [("cpu", "gloo", []), (None, "nccl", [1])])
def test_processes_join_on_the_device_of_the_settings(
    device: str | None, backend: str, gpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two processes, as if there were two GPUs."""
    backends: list[str] = []
    chosen: list[int] = []
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, timeout: backends.append(backend)
    )
    for name, value in {"get_rank": 1, "get_world_size": 2, "destroy_process_group": None}.items():
        monkeypatch.setattr(dist, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(
        "elmokit.train.processes.pick_device", lambda name: torch.device(name or "cuda:0")
    )
    with join_processes(device) as processes:
        assert (processes, backends, chosen) == (Processes(1, 2), [backend], gpus)


# Several runs in one launch, as starting processes takes long: each with a store of its own, at one
# of the ports.
PROGRAM = """
import json, os, sys
from elmokit.cli import main
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
for port, command in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"] = str(port)
    assert main(command) == 0
"""
# One sentence a batch, nearly always, so that one of two processes computes none.
ONE_SENTENCE = ["--batch-size", "2", "--unroll-steps", "1"]
CASES = {
    "lstm": (12, []),
    "transformer": (3, ONE_SENTENCE),
    "interleaved": (9, []),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text, in a directory for the runs."""
    return write_text(tmp_path_factory.mktemp("runs") / "text.txt")


def command(corpus: Path, name: str, encoder: str, steps: int, *options: str) -> list[str]:
    """The command that pretrains until it has made so many steps of the usual size."""
    config = write_config(encoder, corpus.with_name(f"{encoder}.json"))
    words = round(steps * BATCH * UNROLL * WORDS_PER_SENTENCE / (WORDS_PER_SENTENCE + 1))
    files = f"--corpus {corpus} --heldout {corpus} --output {corpus.with_name(name)}"
    return [*f"pretrain {files} --config {config} --max-words {words} {OPTIONS}".split(), *options]


@pytest.fixture(scope="module")
def runs_of_two(corpus: Path) -> Path:
    """The directory of runs that two processes made: of each encoder; and with dropout, at once and
    resumed.
    """
    commands = [
        command(corpus, f"two-{name}", name, steps, *more) for name, (steps, more) in CASES.items()
    ]
    for name, ends in (("whole", (12,)), ("resumed", (6, 12))):
        commands += [command(corpus, name, "lstm", steps, "--dropout", "0.5") for steps in ends]
    sockets = [socket.create_server(("localhost", 0)) for _ in commands]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    corpus.with_name("program.py").write_text(PROGRAM)
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launched += [
        str(corpus.with_name("program.py")),
        json.dumps(list(zip(ports, commands, strict=True))),
    ]
    found = subprocess.run(launched, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr[-3000:]
    return corpus.parent


def losses(output: Path) -> np.ndarray:
    """The losses of both directions at every step, in the order of the log."""
    events = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    names = [name for name in ("loss_forward", "loss_backward", "loss_masked") if name in events[1]]
    return np.array(
        [[event[name] for name in names] for event in events if event["event"] == "train"]
    )


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_which_may_go_on(
    runs_of_two: Path, corpus: Path
) -> None:
    for encoder, (steps, more) in CASES.items():
        if encoder == "lstm":
            steps += 6
            assert main(command(corpus, "two-lstm", "lstm", steps, *more)) == 0
        assert main(command(corpus, f"one-{encoder}", encoder, steps, *more)) == 0
        expected, found = (losses(runs_of_two / f"{count}-{encoder}") for count in ("one", "two"))
        assert len(expected) > 8
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_two_processes_that_draw_dropout_resume_exactly(runs_of_two: Path) -> None:
    np.testing.assert_array_equal(losses(runs_of_two / "resumed"), losses(runs_of_two / "whole"))
