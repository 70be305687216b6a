"""Damaged and hostile files: an error that names the file, or a correct load; never a crash, a hang or a full memory.

Each format's mutants run in a process of their own (this very file), where a crash can be seen and memory is bounded.
"""

import io
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import pytest
import torch
from safetensors.torch import save_file

from elmokit.checkpoints.errors import CheckpointError
from elmokit.checkpoints.loading import describe, load

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))  # also where it is run as a program
from mutants_of_files import WRITERS, enlarge_numbers, mutate
from tensor_files import read_tensors

NUM_MUTANTS = 200
SECONDS_A_MUTANT = 10
MEMORY = 4 << 30


# --- The process that loads mutants ------------------------------------------------------------------------------


def _hangs(*_: object) -> None:
    raise TimeoutError


def _outcome(model: Path) -> str:
    try:
        loaded = load(model)
        parameters = list(loaded.bilm.parameters())
        return "loaded" if all(parameter.device.type == "cpu" for parameter in parameters) else "loaded in part"
    except (ValueError, FileNotFoundError) as error:  # CheckpointError is a ValueError
        return "refused" if len(str(error)) > 10 else "refused without a reason"
    except TimeoutError:
        return "hung"
    except MemoryError:
        return "out of memory"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def mutants(sound: Path, format: str, count: int) -> Iterator[tuple[str, Path]]:
    """A description of each mutation, and the mutant, which is removed before the next."""
    mutant = sound.with_name(f"mutant{sound.suffix}")
    for number in range(count):
        shutil.copytree(sound, mutant) if sound.is_dir() else shutil.copy(sound, mutant)
        yield f"{number}: {mutate(mutant, format, random.Random(f'{format} {number}'))}", mutant
        shutil.rmtree(mutant) if mutant.is_dir() else mutant.unlink()
    for file in sorted(sound.glob("*.json")):
        yield from ((done, sound) for done in enlarge_numbers(file))


def run_mutants(format: str, folder: Path, count: int) -> None:
    """Print what becomes of each mutant, a line before and a line after, and at last the peak of memory."""
    sound = WRITERS[format](folder / "sound")
    load(sound)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, _hangs)
    for done, mutant in mutants(sound, format, count):
        print(done, flush=True)
        signal.alarm(SECONDS_A_MUTANT)
        print(_outcome(mutant).replace("\n", " "), flush=True)
        signal.alarm(0)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


# --- Tests -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("format", WRITERS)
def test_mutants_are_refused_or_loaded(format: str, tmp_path: Path) -> None:
    command = [sys.executable, __file__, format, str(tmp_path), str(NUM_MUTANTS)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    *lines, peak = run.stdout.splitlines() or [""]
    assert run.returncode == 0, f"exit code {run.returncode} after {[*lines, peak][-1]!r}: {run.stderr[-2000:]}"
    outcomes = dict(zip(lines[0::2], lines[1::2], strict=True))
    assert len(outcomes) >= NUM_MUTANTS
    wrong = {mutant: outcome for mutant, outcome in outcomes.items() if outcome not in ("refused", "loaded")}
    assert wrong == {}
    assert int(peak) < 1 << 20  # kB, of which torch itself takes a third
    refused = sum(outcome == "refused" for outcome in outcomes.values())
    assert refused > NUM_MUTANTS / 2, "the mutants are too kind"


class Malicious:
    """Its pickle writes a file when it is unpickled."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return exec, (f"open({str(self.sign)!r}, 'w').close()",)


@pytest.mark.filterwarnings(
    "ignore:.*the model is loaded without its vocabulary", "ignore:.*without the options of its biLM"
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
            assert _outcome(sound) in ("refused", "loaded"), file.name
        file.write_bytes(whole)
    assert _outcome(sound) == "loaded"
    assert not sign.exists()


# --- Numbers that are none, and small files of great cost ------------------------------------------------------------


def put_nan(model: Path) -> None:
    """Put NaN into one weight of a model."""
    if (file := model / "model.safetensors").is_file():
        tensors = read_tensors(file)
        tensors["sequence_encoder.stacks.0.layers.0.bias"][3] = float("nan")
        save_file(tensors, file)
    elif (file := model / "weights.hdf5").is_file():
        with h5py.File(file, "r+") as weights:
            weights["RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/B"][3] = float("nan")
    elif (file := model / "encoder.pkl").is_file():
        tensors = torch.load(file, weights_only=True)
        tensors["forward_layer_0.state_linearity.bias"][3] = float("nan")
        torch.save(tensors, file)


@pytest.mark.parametrize("format", ["native", "hdf5", "elmoformanylangs"])
def test_weights_that_are_not_finite_are_refused_by_name_unless_asked_for(format: str, tmp_path: Path) -> None:
    model = WRITERS[format](tmp_path / "model")
    put_nan(model)
    with pytest.raises(CheckpointError, match=r"not finite: \S*layers\.0\.bias; .*allow_non_finite=True"):
        load(model)
    assert describe(model)["non-finite weights"] == ["sequence_encoder.stacks.0.layers.0.bias"]
    parameters = load(model, allow_non_finite=True).bilm.parameters()
    assert sum(not parameter.isfinite().all() for parameter in parameters) == 1


@pytest.mark.parametrize(("file", "name"), [("softmax.safetensors", "bias"), ("state.safetensors", "h")])
def test_a_softmax_and_a_warm_state_that_are_not_finite_are_refused_by_name(
    file: str, name: str, tmp_path: Path
) -> None:
    model = WRITERS["native"](tmp_path / "model")
    tensors = read_tensors(model / file)
    tensors[name].view(-1)[1] = float("nan")
    save_file(tensors, model / file)
    stored = f"{file.removesuffix('.safetensors')}.{name}"
    with pytest.raises(CheckpointError, match=rf"not finite: {stored}; .*allow_non_finite=True"):
        load(model)
    assert describe(model)["non-finite weights"] == [stored]


def test_large_finite_weights_are_loaded(tmp_path: Path) -> None:
    model = WRITERS["native"](tmp_path / "model")
    tensors = read_tensors(model / "model.safetensors")
    tensors["sequence_encoder.stacks.0.layers.0.bias"].fill_(3e38)  # their sum is infinite
    save_file(tensors, model / "model.safetensors")
    assert load(model).bilm.state_dict()


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
    with pytest.raises(CheckpointError, match=r"encoder\.pkl unpacks to more than its own size"):
        load(model)


def test_archive_with_a_member_without_a_name_is_read(tmp_path: Path) -> None:
    archive = WRITERS["zip"](tmp_path / "sound")
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("xyz", b"")
    archive.write_bytes(archive.read_bytes().replace(b"xyz", b"\0yz"))
    assert load(archive).bilm.state_dict()


@pytest.mark.parametrize("format", ["native", "hdf5", "elmoformanylangs", "native with dictionaries"])
def test_json_that_is_nested_deeply_or_holds_too_many_filters_is_refused_at_once(format: str, tmp_path: Path) -> None:
    model = WRITERS[format](tmp_path / "model")
    for file in sorted(model.glob("*.json")):
        whole = file.read_text(encoding="utf-8")
        for content in ("[" * 100_000, '{"a":' * 100_000, whole.replace("[1, ", "[1, 1], " * 20_000 + "[1, ", 1)):
            if content != whole:
                file.write_text(content, encoding="utf-8")
                with pytest.raises(CheckpointError, match=r"config\.json|options\.json|dictionaries\.json|model"):
                    load(model)
        file.write_text(whole, encoding="utf-8")
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
            signal.signal(signal.SIGALRM, _hangs)
            signal.alarm(SECONDS_A_MUTANT)
            assert _outcome(model) in ("refused", "loaded"), file
            signal.alarm(0)
            file.unlink()
        (tmp_path / "aside").rename(file)


@pytest.mark.parametrize("name", ["", "word " * 200])
def test_a_text_in_the_place_of_a_model_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name or path of a model"):
        load(name)


if __name__ == "__main__":
    run_mutants(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
