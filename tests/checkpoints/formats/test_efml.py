"""ELMoForManyLangs' directories: loaded as published, saved in the native format, refused if damaged."""

import json
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from efml_files import SETTINGS, WORDS, changed, write_dictionary, write_efml
from same_weights import assert_same_bilm

from elmokit.checkpoints.convert import convert
from elmokit.checkpoints.formats.efml_settings import PUBLISHED_SETTINGS, settings_path
from elmokit.checkpoints.loading import CheckpointError, describe, fingerprint, load, save
from elmokit.embed.embedder import Embedder, TruncationWarning
from elmokit.nn.elmo import Elmo

MODELS = ["elmo_cnn", "elmo_word", "lstm_cnn"]
SENTENCES = [["the", "cat"], [], ["今", "thé", "a" * 40, ""]]
VARIANTS = {
    "both": SETTINGS,
    "words": changed(token_embedder={"char_dim": 0}),
    "words, never cut": changed(token_embedder={"char_dim": -1, "name": "LSTM"}),
    "characters": changed(token_embedder={"word_dim": -1, "activation": "tanh"}),
    "one layer, no clips, no highway": changed(
        encoder={"n_layers": 1, "cell_clip": 0, "proj_clip": None}, token_embedder={"n_highway": 0}
    ),
    "lstm": changed(encoder={"name": "lstm", "n_layers": 3}),
}

pytestmark = pytest.mark.filterwarnings("ignore::elmokit.embed.embedder.TruncationWarning")


# --- What is computed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_layers_equal_those_of_elmoformanylangs(goldens: Callable[[str], Path], name: str) -> None:
    folder = goldens("elmoformanylangs")
    sentences = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))
    with np.load(folder / name / "golden.npz") as golden:
        # From zeros, and with the encoder lstm without padding: alone in its batch.
        keys = [f"b1_L-2_{i}" for i in range(2)] if name == "lstm_cnn" else [f"L-2_{i}" for i in range(6)]
        found = Embedder.load(folder / name).embed(sentences, "all")
        for key, layers in zip(keys, found, strict=False):
            # The original has no axis of layers where there is one.
            expected = golden[key][None] if name == "lstm_cnn" else golden[key]
            np.testing.assert_allclose(layers, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_the_padded_forward_pass_is_that_of_the_embedder(settings: dict[str, Any], tmp_path: Path) -> None:
    model = load(write_efml(tmp_path / "model", settings))
    bounded = [["<S>", *sentence, "</S>"] for sentence in SENTENCES]
    ids = model.bilm.token_encoder.ids([word for sentence in bounded for word in sentence])
    padded = torch.nn.utils.rnn.pad_sequence(ids.split([len(sentence) for sentence in bounded]), batch_first=True)
    with torch.no_grad():
        layers = model.bilm(padded).layers
    for row, (sentence, vectors) in enumerate(zip(SENTENCES, Embedder(model).embed(SENTENCES, "top"), strict=True)):
        torch.testing.assert_close(layers[-1, row, 1 : len(sentence) + 1], torch.from_numpy(vectors))


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_elmo_adds_the_boundaries_of_its_dictionaries(settings: dict[str, Any], tmp_path: Path) -> None:
    model = load(write_efml(tmp_path / "model", settings))
    ids = model.bilm.token_encoder.ids([word for sentence in SENTENCES for word in sentence])
    padded = torch.nn.utils.rnn.pad_sequence(ids.split([len(sentence) for sentence in SENTENCES]), batch_first=True)
    (mixed,) = Elmo(model.bilm).eval()(padded).representations
    for row, vectors in zip(mixed, Embedder(model).embed(SENTENCES), strict=True):
        torch.testing.assert_close(row[: len(vectors)], torch.from_numpy(vectors))


def test_truncated_words_are_counted(tmp_path: Path) -> None:
    embedder = Embedder(load(write_efml(tmp_path / "model")))
    with pytest.warns(TruncationWarning, match="2 words"):
        assert embedder.embed([["a" * 11, "今" * 10], ["a" * 11]]).truncated_words == 2


def test_a_model_without_a_limit_of_characters_says_so(tmp_path: Path) -> None:
    embedder = Embedder(load(write_efml(tmp_path / "model", VARIANTS["words, never cut"])))
    assert embedder.word_limit == "no limit" and embedder.count_truncated(["a" * 10_000]) == 0


def test_weights_are_read_into_memory_where_another_device_is_the_default(tmp_path: Path) -> None:
    expected = load(write_efml(tmp_path / "model"))
    with torch.device("meta"):  # stands for a GPU
        found = load(tmp_path / "model")
    assert_same_bilm(found.bilm, expected.bilm)


def test_interleaved_model_refuses_carried_state(tmp_path: Path) -> None:
    embedder = Embedder(load(write_efml(tmp_path / "model", VARIANTS["lstm"])))
    assert embedder.num_layers == 1
    with pytest.raises(ValueError, match="carries no state"):
        embedder.embed(SENTENCES, state="carry")


# --- Formats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_native_format_keeps_dictionaries_and_weights(settings: dict[str, Any], tmp_path: Path) -> None:
    model = load(write_efml(tmp_path / "old", settings))
    convert(tmp_path / "old", tmp_path / "new")
    again = load(tmp_path / "new")
    assert_same_bilm(again.bilm, model.bilm)
    assert fingerprint(model) == fingerprint(again)
    assert "words" not in json.loads((tmp_path / "new/config.json").read_text())["model"]["efml"]
    for one, other in zip(Embedder(model).embed(SENTENCES), Embedder(again).embed(SENTENCES), strict=True):
        assert np.array_equal(one, other)


def test_dictionaries_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    one, other = write_efml(tmp_path / "one"), write_efml(tmp_path / "other")
    write_dictionary(other / "word.dic", [*WORDS[:-1], "明"])
    assert fingerprint(load(one)) != fingerprint(load(other))


@pytest.mark.parametrize("missing", ["dictionaries.json", "model.safetensors"])
def test_missing_file_of_a_native_directory_is_named(missing: str, tmp_path: Path) -> None:
    save(load(write_efml(tmp_path / "old")), tmp_path / "new")
    (tmp_path / "new" / missing).unlink()
    with pytest.raises(CheckpointError, match=f"{missing} is missing"):
        load(tmp_path / "new")


@pytest.mark.parametrize("to", ["hdf5", "token-embeddings"])
def test_efml_model_is_not_converted_to_hdf5(to: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot hold: the native format and ONNX can"):
        convert(write_efml(tmp_path / "old"), tmp_path / "new", to)
    assert not (tmp_path / "new").exists()


def test_weights_in_the_format_of_pytorch_2018_are_read(tmp_path: Path) -> None:
    old = write_efml(tmp_path / "old", _use_new_zipfile_serialization=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_bilm(load(old).bilm, load(write_efml(tmp_path / "new")).bilm)


def test_describe_gives_the_sizes_of_dictionaries(tmp_path: Path) -> None:
    description = describe(write_efml(tmp_path / "model"))
    assert description["format"] == "ELMoForManyLangs"
    assert description["input"].split(" and ") == ["words", "characters"]
    assert set(description["files"]) >= {"config.json", "cnn.json", "word.dic", "char.dic", "encoder.pkl"}
    assert description["model"]["efml"]["words"] == len(WORDS)


# --- Settings and dictionaries -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "lies_at"),
    [
        ("cnn.json", "cnn.json"),
        ("/users/someone/who/left/cnn.json", "cnn.json"),
        ("..\\..\\configs\\cnn.json", "cnn.json"),
        ("configs/cnn.json", "configs/cnn.json"),
        ("/data/cnn.json", "configs/cnn.json"),
    ],
)
def test_settings_file_is_found_in_the_directory(named: str, lies_at: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"config_path": named}))
    (tmp_path / lies_at).parent.mkdir(exist_ok=True)
    (tmp_path / lies_at).write_text(json.dumps(SETTINGS))
    found = settings_path(tmp_path)
    assert found is not None and found.resolve() == tmp_path / lies_at


def test_settings_that_came_with_the_library_need_no_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"config_path": "/users4/conll18st/configs/cnn_50_100_512_4096_sample.json"}'
    )
    assert settings_path(tmp_path) is None
    assert PUBLISHED_SETTINGS["encoder"]["dim"] == 4096


def test_blank_entries_are_the_ideographic_space(tmp_path: Path) -> None:
    model = write_efml(tmp_path / "model")
    lines = (model / "char.dic").read_text(encoding="utf-8")
    (model / "char.dic").write_text(lines.replace("\u3000\t", "\u00a0\t"), encoding="utf-8")
    assert_same_bilm(load(model).bilm, load(write_efml(tmp_path / "other")).bilm)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (changed(token_embedder={"name": "lstm"}), "token_embedder 'lstm' over characters is not known"),
        (changed(encoder={"name": "gru"}), "neither 'elmo' nor 'lstm'"),
        (changed(encoder={"dim": 16}), "dim and projection_dim are both 16"),
        (changed(encoder={"dim": 48}), r"missing: .*|wrong shape: forward_layer_0.input_linearity.weight"),
        (changed(token_embedder={"word_dim": 0, "char_dim": 0}), "needs a dictionary of words, of characters, or both"),
        (changed(token_embedder={"max_characters_per_token": 2}), "max_characters must be from 3"),
        ({"encoder": {}}, "'token_embedder' is missing"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = write_efml(tmp_path / "model")
    (model / "cnn.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=message):
        load(model)


@pytest.mark.parametrize(
    ("file", "entries", "message"),
    [
        ("word.dic", [], "does not number its 0 entries"),
        ("word.dic", [*WORDS, "more"], "word_emb_layer.embedding.weight"),
    ],
)
def test_invalid_dictionaries_are_refused(file: str, entries: list[str], message: str, tmp_path: Path) -> None:
    model = write_efml(tmp_path / "model")
    write_dictionary(model / file, entries)
    with pytest.raises(CheckpointError, match=message):
        load(model)


@pytest.mark.parametrize("missing", ["encoder.pkl", "token_embedder.pkl", "char.dic", "cnn.json"])
def test_missing_file_is_named(missing: str, tmp_path: Path) -> None:
    model = write_efml(tmp_path / "model")
    (model / missing).unlink()
    with pytest.raises((CheckpointError, FileNotFoundError), match=missing):
        load(model)


def test_weights_in_a_tar_archive_are_refused(tmp_path: Path) -> None:
    model = write_efml(tmp_path / "model")
    with tarfile.open(model / "encoder.pkl", "w") as archive:  # as PyTorch wrote before 0.1.12
        for name in ("sys_info", "pickle", "storages", "tensors"):
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(CheckpointError, match=r"encoder\.pkl"):
        load(model)
