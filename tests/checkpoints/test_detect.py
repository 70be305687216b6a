"""Names of models: paths, files of a model, the directory of a run, the home directory."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from same_weights import assert_same_bilm

from elmokit.checkpoints.errors import CheckpointError
from elmokit.checkpoints.formats.bilm_hdf5 import write_bilm_hdf5
from elmokit.checkpoints.loading import Pretrained, load, locate, save
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM


@pytest.fixture
def bilm() -> BiLM:
    torch.manual_seed(0)
    return BiLM(BiLMConfig.preset("tiny"))


@pytest.mark.parametrize("prefix", ["", "small_"])
def test_options_find_their_weights(prefix: str, bilm: BiLM, tmp_path: Path) -> None:
    write_bilm_hdf5(bilm, tmp_path)
    for name in ("options.json", "weights.hdf5"):
        (tmp_path / name).rename(tmp_path / f"{prefix}{name}")
    (tmp_path / "other_weights.hdf5").write_bytes(b"of another model")
    assert_same_bilm(load(tmp_path / f"{prefix}options.json").bilm, bilm)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_file_of_a_model_names_the_model(name: str, bilm: BiLM, tmp_path: Path) -> None:
    save(Pretrained(bilm), tmp_path / "model")
    assert locate(tmp_path / "model" / name) == locate(tmp_path / "model")


def test_home_directory_is_expanded(bilm: BiLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Pretrained(bilm), tmp_path / "model")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/model").path == tmp_path / "model"


def test_directory_of_a_run_is_an_error_that_names_its_model(bilm: BiLM, tmp_path: Path) -> None:
    save(Pretrained(bilm), tmp_path / "run" / "model")
    with pytest.raises(FileNotFoundError, match=r"run is not a model, but holds .*run/model: give that path"):
        load(tmp_path / "run")


# --- Directories as people have them -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ("options_file", "weights_file"),
        ("options", "weights"),
        ("options.json", "weights.h5"),
        ("elmo_2x16_options.json", "elmo_2x16_weights_PubMed_only.hdf5"),
    ],
)
def test_files_under_other_names_are_a_model(options: str, weights: str, bilm: BiLM, tmp_path: Path) -> None:
    write_bilm_hdf5(bilm, tmp_path)
    (tmp_path / "options.json").rename(tmp_path / options)
    (tmp_path / "weights.hdf5").rename(tmp_path / weights)
    (tmp_path / "README").write_text("no weights")
    for path in (tmp_path, tmp_path / weights):
        assert_same_bilm(load(path).bilm, bilm)


@pytest.mark.parametrize("suffix", ["hdf5", "h5"])
def test_attributes_that_macos_keeps_are_no_files_of_a_model(suffix: str, bilm: BiLM, tmp_path: Path) -> None:
    write_bilm_hdf5(bilm, tmp_path)
    (tmp_path / "options.json").rename(tmp_path / "my_options.json")
    (tmp_path / "weights.hdf5").rename(tmp_path / f"x_weights.{suffix}")
    for name in ("._my_options.json", f"._x_weights.{suffix}"):
        (tmp_path / name).write_bytes(b"\x00\x05\x16\x07")
    assert_same_bilm(load(tmp_path).bilm, bilm)


@pytest.mark.parametrize("weights", ["weights.hdf5", "weights.h5", "weights_file"])
def test_config_of_another_program_does_not_hide_the_model(weights: str, bilm: BiLM, tmp_path: Path) -> None:
    write_bilm_hdf5(bilm, tmp_path)
    (tmp_path / "weights.hdf5").rename(tmp_path / weights)
    (tmp_path / "config.json").write_text('{"model_type": "elmo"}')
    assert_same_bilm(load(tmp_path).bilm, bilm)


def test_config_of_another_program_does_not_hide_a_tensorflow_checkpoint(
    goldens: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(goldens("bilm_tf_training/tf_checkpoint"), tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{}")
    assert locate(tmp_path / "model").format.name == "TensorFlow variables"


def test_config_of_another_program_alone_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tf_model.h5").write_bytes(b"weights of BERT")
    with pytest.raises(CheckpointError, match=r"no format_version, so it is the config\.json of another program"):
        load(tmp_path)


def test_several_candidates_are_listed(bilm: BiLM, tmp_path: Path) -> None:
    write_bilm_hdf5(bilm, tmp_path)
    (tmp_path / "weights.hdf5").rename(tmp_path / "weights")
    (tmp_path / "other").write_bytes((tmp_path / "weights").read_bytes())
    with pytest.raises(CheckpointError, match=r"several HDF5 files: give the path of .*\(\S*/other, \S*/weights\)$"):
        load(tmp_path)
    (tmp_path / "other").unlink()
    (tmp_path / "options.json").rename(tmp_path / "a_options.json")
    (tmp_path / "b_options.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"several options files next to it \(.*a_options\.json, \S*/b_options\.json"
    ):
        load(tmp_path)
    (tmp_path / "weights").rename(tmp_path / "model.hdf5")
    with pytest.raises(CheckpointError, match=r"rename the right one to options\.json$"):
        load(tmp_path)
    (tmp_path / "model.hdf5").rename(tmp_path / "c_weights.hdf5")
    with pytest.raises(CheckpointError, match=r"rename the right one to c_options\.json$"):
        load(tmp_path)
