"""ELMoForManyLangs' directories: loaded as published, saved in the native format, refused if
damaged.
"""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from efml_files import SETTINGS, WORDS, changed, write_dictionary, write_efml
from same_weights import assert_same_bilm
from torch import Tensor

from elmokit.checkpoints.efml import settings_path
from elmokit.checkpoints.exporting import convert
from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import CheckpointError, Pretrained
from elmokit.embed.embedder import Embedder
from elmokit.nn.elmo import Elmo

Damage = Callable[[Path], object]
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


# --- What is computed -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_layers_equal_those_of_elmoformanylangs(goldens: Callable[[str], Path], name: str) -> None:
    folder = goldens("elmoformanylangs")
    sentences = json.loads((folder / "sentences.json").read_text())
    with np.load(folder / name / "golden.npz") as golden:
        # From zeros, and with the encoder lstm without padding: alone in its batch.
        keys = (
            [f"b1_L-2_{i}" for i in range(2)]
            if name == "lstm_cnn"
            else [f"L-2_{i}" for i in range(6)]
        )
        found = Embedder(folder / name).embed(sentences, "all")
        for key, layers in zip(keys, found, strict=False):
            # The original has no axis of layers where there is one.
            expected = golden[key][None] if name == "lstm_cnn" else golden[key]
            np.testing.assert_allclose(layers, expected, atol=1e-6, rtol=0)


def padded_ids(model: Pretrained, sentences: list[list[str]]) -> Tensor:
    ids = model.bilm.token_encoder.ids([word for sentence in sentences for word in sentence])
    return torch.nn.utils.rnn.pad_sequence(
        ids.split([len(sentence) for sentence in sentences]), batch_first=True
    )


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_padded_batches_give_the_vectors_of_the_embedder(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    model = load(write_efml(tmp_path / "model", settings))
    with torch.no_grad():
        layers = model.bilm(
            padded_ids(model, [["<S>", *sentence, "</S>"] for sentence in SENTENCES])
        ).layers
    for row, vectors in enumerate(Embedder(model).embed(SENTENCES, "top")):
        torch.testing.assert_close(layers[-1, row, 1 : len(vectors) + 1], torch.from_numpy(vectors))
    (mixed,) = (
        Elmo(model.bilm).eval()(padded_ids(model, SENTENCES)).representations
    )  # it adds the boundaries
    for row, vectors in zip(mixed, Embedder(model).embed(SENTENCES), strict=True):
        torch.testing.assert_close(row[: len(vectors)], torch.from_numpy(vectors))


# --- Formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_native_format_keeps_dictionaries_and_weights(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    model = load(write_efml(tmp_path / "old", settings))
    convert(tmp_path / "old", tmp_path / "new")
    again = load(tmp_path / "new")
    assert_same_bilm(again.bilm, model.bilm)
    assert model.fingerprint() == again.fingerprint()
    assert "words" not in json.loads((tmp_path / "new/config.json").read_text())["model"]["efml"]
    if settings is SETTINGS:
        write_dictionary(tmp_path / "old" / "word.dic", [*WORDS[:-1], "明"])
        assert load(tmp_path / "old").fingerprint() != model.fingerprint()


def test_weights_in_the_format_of_pytorch_2018_are_read(tmp_path: Path) -> None:
    old = write_efml(tmp_path / "old", _use_new_zipfile_serialization=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_bilm(load(old).bilm, load(write_efml(tmp_path / "new")).bilm)


# --- Settings and dictionaries --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "lies_at"),
    [
        ("cnn.json", "cnn.json"),
        ("..\\..\\configs\\cnn.json", "cnn.json"),
        ("/data/cnn.json", "configs/cnn.json"),
    ],
)
def test_settings_file_is_found_in_the_directory(named: str, lies_at: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"config_path": named}))
    (tmp_path / lies_at).parent.mkdir(exist_ok=True)
    (tmp_path / lies_at).write_text(json.dumps(SETTINGS))
    found = settings_path(tmp_path)
    assert found.resolve() == tmp_path / lies_at
    published = {"config_path": "/users4/conll18st/configs/cnn_50_100_512_4096_sample.json"}
    (tmp_path / "config.json").write_text(json.dumps(published))
    assert settings_path(tmp_path) is None  # it came with the library


def test_blank_entries_are_the_ideographic_space(tmp_path: Path) -> None:
    model = write_efml(tmp_path / "model")
    lines = (model / "char.dic").read_text()
    (model / "char.dic").write_text(lines.replace("\u3000\t", "\u00a0\t"))
    assert_same_bilm(load(model).bilm, load(write_efml(tmp_path / "other")).bilm)


def rewritten(**parts: dict[str, Any]) -> Damage:
    return lambda model: (model / "cnn.json").write_text(json.dumps(changed(**parts)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            rewritten(token_embedder={"name": "lstm"}),
            "token_embedder 'lstm' over characters is not known",
        ),
        (rewritten(encoder={"name": "gru"}), "neither lstm nor elmo"),
        (
            rewritten(encoder={"dim": 48}),
            r"wrong shape: sequence_encoder\.stacks\.0\.layers\.0\.input_weight",
        ),
        (lambda model: (model / "word.dic").write_text("the\n"), r"word\.dic"),
        *(
            (lambda model, name=name: (model / name).unlink(), name)
            for name in ("encoder.pkl", "char.dic", "cnn.json")
        ),
    ],
)
def test_damaged_files_are_named(damage: Damage, message: str, tmp_path: Path) -> None:
    model = write_efml(tmp_path / "model")
    damage(model)
    with pytest.raises((CheckpointError, FileNotFoundError), match=message):
        load(model)
