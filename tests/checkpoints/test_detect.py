"""Names of models: paths, files of a model, the directory of a run, the home directory."""

from pathlib import Path

import pytest
import torch

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
    found = load(tmp_path / f"{prefix}options.json").bilm
    assert all(torch.equal(tensor, found.state_dict()[name]) for name, tensor in bilm.state_dict().items())


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
    with pytest.raises(FileNotFoundError, match=r"run is no model, but holds .*run/model: name that"):
        load(tmp_path / "run")
