"""Damaged and hostile files: an error that names the file, or a sound model; never a crash, a hang
or a full memory.
"""

import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from mutants_of_files import WRITERS, enlarge_numbers
from safetensors.torch import save_file
from same_weights import read_tensors

from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import CheckpointError

MUTANTS = Path(__file__).parents[2] / "benchmarks" / "reliability" / "mutants.py"


@pytest.mark.slow
def test_mutants_are_refused_or_loaded() -> None:
    """Processes of their own load the mutants, where a crash is seen, and time and memory are
    bounded.
    """
    command = [sys.executable, MUTANTS, "--mutants", "20", "--kinds", *WRITERS]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and run.stdout.count("'refused': ") == len(WRITERS), (
        run.stdout + run.stderr[-2000:]
    )


class Malicious:
    """Its pickle writes a file when it is unpickled."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return exec, (f"open({str(self.sign)!r}, 'w').close()",)


@pytest.mark.filterwarnings(
    "ignore:.*the model is loaded without its vocabulary",
    "ignore:.*without the options of its biLM",
)
@pytest.mark.parametrize("format", WRITERS)
def test_no_code_in_a_file_is_executed(format: str, tmp_path: Path) -> None:
    sign = tmp_path / "it-ran"
    malicious = pickle.dumps(Malicious(sign))
    pickle.loads(malicious)
    assert sign.exists()  # so it would be seen
    sign.unlink()
    torch.save(Malicious(sign), tmp_path / "malicious.pt")
    sound = WRITERS[format](tmp_path / "sound")
    for file in sorted(sound.iterdir()) if sound.is_dir() else [sound]:
        whole = file.read_bytes()
        for content in (malicious, (tmp_path / "malicious.pt").read_bytes()):
            file.write_bytes(content)
            with suppress(ValueError, FileNotFoundError):
                load(sound)
        file.write_bytes(whole)
    assert load(sound)
    assert not sign.exists()


# --- Numbers that are none, and small files of great cost -----------------------------------------


@pytest.mark.parametrize(
    ("file", "tensor", "name"),
    [
        (
            "model",
            "sequence_encoder.stacks.0.layers.0.bias",
            "sequence_encoder.stacks.0.layers.0.bias",
        ),
        ("softmax", "bias", "softmax.bias"),
        ("state", "h", "state.h"),
    ],
)
def test_weights_that_are_not_finite_are_refused_by_name(
    file: str, tensor: str, name: str, tmp_path: Path
) -> None:
    model = WRITERS["native"](tmp_path / "model")
    tensors = read_tensors(model / f"{file}.safetensors")
    tensors[tensor].fill_(3e38)  # finite, though their sum is not
    save_file(tensors, model / f"{file}.safetensors")
    assert load(model)
    tensors[tensor].view(-1)[1] = float("nan")
    save_file(tensors, model / f"{file}.safetensors")
    with pytest.raises(CheckpointError, match=rf"not finite: {name};"):
        load(model)


def test_weights_that_are_compressed_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    model = WRITERS["elmoformanylangs"](tmp_path / "model")
    buffer = io.BytesIO()
    torch.save({"zeros": torch.zeros(1 << 24)}, buffer)
    with (
        zipfile.ZipFile(buffer) as stored,
        zipfile.ZipFile(model / "encoder.pkl", "w", zipfile.ZIP_DEFLATED) as deflated,
    ):
        for member in stored.infolist():
            deflated.writestr(member.filename, stored.read(member))
    assert (model / "encoder.pkl").stat().st_size < 1 << 20
    with pytest.raises(CheckpointError, match=r"encoder\.pkl .*unpacks to more than its own size"):
        load(model)


@pytest.mark.parametrize(
    "format", ["native", "hdf5", "elmoformanylangs", "native with dictionaries"]
)
def test_json_that_is_nested_deeply_or_holds_too_many_filters_is_refused_at_once(
    format: str, tmp_path: Path
) -> None:
    model = WRITERS[format](tmp_path / "model")
    for file in sorted(model.glob("*.json")):
        whole = file.read_text()
        for content in (
            "[" * 100_000,
            '{"a":' * 100_000,
            whole.replace("[1, ", "[1, 1], " * 20_000 + "[1, ", 1),
        ):
            if content != whole:
                file.write_text(content)
                with pytest.raises(
                    CheckpointError, match=r"config\.json|options\.json|dictionaries\.json|model"
                ):
                    load(model)
        file.write_text(whole)
        for _ in enlarge_numbers(file):
            with suppress(CheckpointError):
                load(model)
        file.write_text(whole)
    load(model)


@pytest.mark.parametrize("format", WRITERS)
def test_pipe_or_device_in_the_place_of_any_file_neither_blocks_nor_fills_the_memory(
    format: str, tmp_path: Path
) -> None:
    model = WRITERS[format](tmp_path / "model")
    for file in sorted(model.iterdir()) if model.is_dir() else [model]:
        file.rename(tmp_path / "aside")
        for make in (os.mkfifo, lambda path: os.symlink("/dev/zero", path)):
            make(file)
            with suppress(ValueError, FileNotFoundError):
                load(model)
            file.unlink()
        (tmp_path / "aside").rename(file)
