"""The ELMo in a model that AllenNLP saved, against the files that the model was made of."""

import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from allennlp_state import allennlp_state_dict

from elmokit.checkpoints.errors import CheckpointError
from elmokit.checkpoints.formats.bilm_hdf5 import write_bilm_hdf5
from elmokit.checkpoints.loading import describe, load
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM

EMBEDDER = "text_field_embedder.token_embedder_elmo._elmo."
WITHOUT_OPTIONS = "comes without the options of its biLM"


@pytest.fixture(scope="module")
def bilm() -> BiLM:
    torch.manual_seed(0)
    return BiLM(BiLMConfig.preset("tiny"))


@pytest.fixture
def files(bilm: BiLM, tmp_path: Path) -> Path:
    """A directory with options.json and weights.hdf5."""
    (tmp_path / "files").mkdir()
    write_bilm_hdf5(bilm, tmp_path / "files")
    return tmp_path / "files"


def write_model(folder: Path, files: Path, prefix: str = EMBEDDER, **others: Any) -> Path:
    """The directory of a tagger that AllenNLP trained on the biLM of `files`; `others` are more of its weights."""
    (folder / "vocabulary").mkdir(parents=True)
    (folder / "vocabulary" / "labels.txt").write_text("O\nI-PER\n")
    state = {f"{prefix}{name}": tensor for name, tensor in allennlp_state_dict(files / "weights.hdf5", 2, 1).items()}
    state[f"{prefix}scalar_mix_0.gamma"] = torch.tensor([1.5])
    state |= {f"{prefix}scalar_mix_0.scalar_parameters.{k}": torch.tensor([float(k)]) for k in range(3)}
    state |= {"tag_projection_layer.weight": torch.zeros(2, 4), "counter": torch.tensor(3)} | others
    torch.save(state, folder / "weights.th")
    options = str(files / "options.json")
    elmo = {"type": "elmo_token_embedder", "options_file": options, "weight_file": str(files / "weights.hdf5")}
    config = {"model": {"type": "simple_tagger", "text_field_embedder": {"token_embedders": {"elmo": elmo}}}}
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
        torch.testing.assert_close(found.state_dict()[name], tensor, atol=1e-6, rtol=0)  # the forget bias is added


@pytest.mark.parametrize("form", ["directory", "weights.th", "best.th", "model.tar.gz"])
def test_model_of_allennlp_loads_with_its_mix(form: str, files: Path, bilm: BiLM, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", files)
    if form == "best.th":
        (folder / "weights.th").rename(folder / form)
    path = {"directory": folder, "model.tar.gz": archive(folder)}.get(form, folder / form)
    model = load(path)
    assert_same(model.bilm, bilm)
    assert model.mix is not None and model.mix.weights == (0.0, 1.0, 2.0) and model.mix.gamma == 1.5


@pytest.mark.parametrize("form", ["directory", "model.tar.gz"])
def test_mix_of_normalized_layers_is_left_out_with_a_warning(
    form: str, files: Path, bilm: BiLM, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", files)
    config = json.loads((folder / "config.json").read_text())
    elmo = config["model"]["text_field_embedder"]["token_embedders"]["elmo"]
    elmo["do_layer_norm"] = True
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="its mix normalizes the layers"):
        model = load(folder if form == "directory" else archive(folder))
    assert_same(model.bilm, bilm)
    assert model.mix is None


def test_layer_norm_of_another_module_keeps_the_mix(files: Path, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", files)
    config = json.loads((folder / "config.json").read_text())
    config["model"]["char_cnn"] = {"type": "cnn-highway", "do_layer_norm": True}
    (folder / "config.json").write_text(json.dumps(config))
    assert load(folder).mix is not None


def test_model_of_allennlp_is_described_by_its_files(files: Path, tmp_path: Path) -> None:
    description = describe(write_model(tmp_path / "model", files))
    assert (description["format"], set(description["files"])) == ("AllenNLP model", {"weights.th", "config.json"})


def test_archived_options_are_read(files: Path, bilm: BiLM, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", files)
    (folder / "fta").mkdir()
    (files / "options.json").rename(folder / "fta" / "model.text_field_embedder.token_embedders.elmo.options_file")
    assert_same(load(archive(folder)).bilm, bilm)


def test_without_options_they_are_those_of_the_published_models(files: Path, bilm: BiLM, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", files)
    (files / "options.json").unlink()
    with pytest.warns(UserWarning, match=WITHOUT_OPTIONS):
        model = load(folder)
    assert_same(model.bilm, bilm)


def test_cached_words_of_a_vocabulary_are_left_out(files: Path, bilm: BiLM, tmp_path: Path) -> None:
    cached = {f"{EMBEDDER}_elmo_lstm._word_embedding.weight": torch.ones(3, 16)}
    assert_same(load(write_model(tmp_path / "model", files, **cached)).bilm, bilm)


def test_no_elmo_and_several_are_refused(files: Path, tmp_path: Path) -> None:
    several = {"other._elmo_lstm._token_embedder._char_embedding_weights": torch.ones(262, 4)}
    with pytest.raises(CheckpointError, match=r"several ELMos in it.*elmo\._elmo_lstm\., other\._elmo_lstm\."):
        load(write_model(tmp_path / "two", files, **several))
    torch.save({"weight": torch.ones(2)}, tmp_path / "two" / "weights.th")
    with pytest.raises(CheckpointError, match="no ELMo in it"):
        load(tmp_path / "two")


def test_weights_of_wrong_shapes_are_named(files: Path, tmp_path: Path) -> None:
    bias = f"{EMBEDDER}_elmo_lstm._elmo_lstm.forward_layer_1.state_linearity.bias"
    with pytest.raises(CheckpointError, match=r"wrong shape: sequence_encoder\.stacks\.0\.layers\.1\.bias is \(3,\)"):
        load(write_model(tmp_path / "model", files, **{bias: torch.ones(3)}))


def test_no_code_in_the_weights_is_run(files: Path, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", files)
    (folder / "weights.th").write_bytes(pickle.dumps(print))
    with pytest.raises(CheckpointError, match=r"weights\.th is damaged or holds more than weights"):
        load(folder)
