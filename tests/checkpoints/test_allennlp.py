"""The ELMo in a model that AllenNLP saved, against the files that the model was made of."""

import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from allennlp_state import allennlp_state_dict
from tiny_model import tiny_bilm

from elmokit.checkpoints.bilm_hdf5 import write_bilm_hdf5
from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import CheckpointError
from elmokit.nn.bilm import BiLM

EMBEDDER = "text_field_embedder.token_embedder_elmo._elmo."


@pytest.fixture(scope="module")
def bilm() -> BiLM:
    return tiny_bilm()


@pytest.fixture
def files(bilm: BiLM, tmp_path: Path) -> Path:
    """A directory with options.json and weights.hdf5."""
    (tmp_path / "files").mkdir()
    write_bilm_hdf5(bilm, tmp_path / "files")
    return tmp_path / "files"


def write_model(
    folder: Path, files: Path, elmo: dict[str, Any] | None = None, **others: Any
) -> Path:
    """The directory of a tagger that AllenNLP trained on the biLM of `files`; `others` are more of
    its weights.
    """
    (folder / "vocabulary").mkdir(parents=True)
    (folder / "vocabulary" / "labels.txt").write_text("O\nI-PER\n")
    state = {
        EMBEDDER + name: tensor
        for name, tensor in allennlp_state_dict(files / "weights.hdf5", 2, 1).items()
    }
    state[f"{EMBEDDER}scalar_mix_0.gamma"] = torch.tensor([1.5])
    state |= {
        f"{EMBEDDER}scalar_mix_0.scalar_parameters.{k}": torch.tensor([float(k)]) for k in range(3)
    }
    state[f"{EMBEDDER}_elmo_lstm._word_embedding.weight"] = torch.ones(
        3, 16
    )  # cached words of a vocabulary
    state |= {"tag_projection_layer.weight": torch.zeros(2, 4), "counter": torch.tensor(3)} | others
    torch.save(state, folder / "weights.th")
    settings = {
        "type": "elmo_token_embedder",
        "options_file": str(files / "options.json"),
        **(elmo or {}),
    }
    other = {"type": "cnn-highway", "do_layer_norm": True}  # of another module
    config = {
        "model": {"char_cnn": other, "text_field_embedder": {"token_embedders": {"elmo": settings}}}
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def archive(folder: Path) -> Path:
    """model.tar.gz of a directory, as AllenNLP's `archive_model` writes it."""
    path = folder.with_name("model.tar.gz")
    with tarfile.open(path, "w:gz") as file:
        for member in sorted(folder.iterdir()):
            file.add(member, member.name)
    return path


def assert_same(found: BiLM, known: BiLM) -> None:
    assert found.config == known.config
    for name, tensor in known.state_dict().items():
        torch.testing.assert_close(
            found.state_dict()[name], tensor, atol=1e-6, rtol=0
        )  # the forget bias is added


@pytest.mark.parametrize("form", ["directory", "weights.th", "best.th", "model.tar.gz"])
def test_model_of_allennlp_loads_with_its_mix(
    form: str, files: Path, bilm: BiLM, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", files)
    if form == "best.th":
        (folder / "weights.th").rename(folder / form)
    path = {"directory": folder, "model.tar.gz": archive(folder)}.get(form, folder / form)
    model = load(path)
    assert_same(model.bilm, bilm)
    assert model.mix.weights == (0.0, 1.0, 2.0)
    assert model.mix.gamma == 1.5


@pytest.mark.parametrize(
    ("archived", "setting"), [(False, True), (True, "true")]
)  # Jsonnet's variables are strings
def test_mix_of_normalized_layers_is_left_out_with_a_warning(
    archived: bool, setting: bool | str, files: Path, bilm: BiLM, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", files, elmo={"do_layer_norm": setting})
    with pytest.warns(UserWarning, match="its mix normalizes the layers"):
        model = load(archive(folder) if archived else folder)
    assert_same(model.bilm, bilm)
    assert model.mix is None


def test_options_are_those_archived_or_those_of_the_published_models(
    files: Path, bilm: BiLM, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", files)
    (folder / "fta").mkdir()
    archived = folder / "fta" / "model.text_field_embedder.token_embedders.elmo.options_file"
    (files / "options.json").rename(archived)
    assert_same(load(archive(folder)).bilm, bilm)
    archived.unlink()
    with pytest.warns(UserWarning, match="comes without the options of its biLM"):
        assert_same(load(folder).bilm, bilm)


@pytest.mark.parametrize("content", [print, [torch.ones(2)], {"weight": torch.ones(2)}, "a text"])
def test_files_without_an_elmo_are_refused(content: Any, files: Path, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", files)
    torch.save(content, folder / "weights.th")
    with pytest.raises(CheckpointError, match=r"weights\.th"):
        load(folder)
    (folder / "weights.th").write_bytes(pickle.dumps(content))
    with pytest.raises(CheckpointError, match=r"weights\.th"):
        load(folder)
