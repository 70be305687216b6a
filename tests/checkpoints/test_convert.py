"""Conversion between formats: exact both ways, with a warning or an error for what a format cannot
hold.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from same_weights import assert_same_bilm
from tiny_model import tiny_bilm

from elmokit.checkpoints.exporting import convert, save_hdf5
from elmokit.checkpoints.loading import load, save
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.config import BiLMConfig, CharCNNConfig, EfmlEncoderConfig, LSTMConfig
from elmokit.nn.bilm import BiLM
from elmokit.nn.inference import prepack
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

HDF5_MODELS = {
    "bilm_tf_fixture": "lm_weights.hdf5",
    "bilm_tf_training": "weights.hdf5",
    "char-2layer": "weights.hdf5",
    "clips-bind-3layer-tanh": "weights.hdf5",
    "no-char-projection": "weights.hdf5",
    "no-highway": "weights.hdf5",
    "no-lstm-projection": "weights.hdf5",
    "no-skip": "weights.hdf5",
    "published-filters": "weights.hdf5",
}


DICTIONARY = EfmlEncoderConfig(("<oov>", "<pad>"), word_dim=3)
VOCAB = Vocab(["the", "<UNK>", "</S>", "<S>"])
WORDS = BiLMConfig(LSTMConfig(1, 6, 4), char_cnn=None, num_words=4, boundary_words=(3, 2))


def datasets(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}

    def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


@pytest.mark.parametrize("name", HDF5_MODELS)
def test_hdf5_to_native_and_back_is_exact(
    goldens: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    original = goldens(f"{name}/{HDF5_MODELS[name]}")
    convert(original, tmp_path / "native", to="native")
    told = convert(tmp_path / "native", tmp_path / "hdf5", to="hdf5")
    before = datasets(original)
    after = datasets(tmp_path / "hdf5/weights.hdf5")
    assert before.keys() == after.keys()
    for dataset in before:
        assert before[dataset].dtype == after[dataset].dtype == np.float32
        assert before[dataset].shape == after[dataset].shape
        assert before[dataset].tobytes() == after[dataset].tobytes(), dataset
    assert told["bytes"] == sum(file.stat().st_size for file in (tmp_path / "hdf5").iterdir())

    options, again = (
        json.loads(path.read_text())
        for path in (original.with_name("options.json"), tmp_path / "hdf5/options.json")
    )
    assert BiLMConfig.from_options(options) == BiLMConfig.from_options(again)
    assert again["char_cnn"]["n_characters"] == 262  # AllenNLP and bilm-tf refuse 261 at inference


def test_every_part_that_a_format_cannot_hold_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bilm = BiLM(BiLMConfig.preset("tiny"))
    vocab = Vocab(["<S>", "</S>", "<UNK>", "the"])
    zeros = bilm.initial_state(1)
    parts = {
        "softmax": FullSoftmax(4, 16),
        "mix": MixWeights((0.0, 0.0, 0.0)),
        "warm_state": zeros,
        "card": "# Tiny",
    }
    model = Pretrained(bilm, vocab=vocab, state_policy="warm", tokenizer="english-1", **parts)
    lost = "softmax, mix of layers, warm state, state policy warm, name of the tokenizer"
    with pytest.warns(UserWarning, match=f"HDF5 cannot hold the {lost}: left out"):
        save_hdf5(model, tmp_path / "hdf5")
    words = BiLM(WORDS)
    with pytest.warns(UserWarning, match="HDF5 cannot hold the rows of <S> and </S>: left out"):
        save_hdf5(Pretrained(words), tmp_path / "words")
    monkeypatch.setattr(
        "elmokit.checkpoints.exporting.write_onnx", lambda _, path, __: path.touch()
    )
    save(model, tmp_path / "model")
    with pytest.warns(UserWarning, match=f"ONNX cannot hold the {lost}: left out"):
        convert(tmp_path / "model", tmp_path / "model.onnx", to="onnx")


def test_model_of_word_ids_converts_both_ways(tmp_path: Path) -> None:
    model = Pretrained(BiLM(WORDS), vocab=VOCAB, card="# Words\n")
    save_hdf5(model, tmp_path / "words")
    loaded = load(tmp_path / "words")
    assert (loaded.vocab, loaded.card) == (VOCAB, model.card)
    assert_same_bilm(loaded.bilm, model.bilm)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            BiLMConfig(LSTMConfig(1, 6, 4, forget_bias=0.0), None, num_words=3),
            r"this model has 0\.0",
        ),
        (BiLMConfig(LSTMConfig(1, 6, 4), CharCNNConfig(2, ((1, 3),), num_characters=262)), "262"),
        (BiLMConfig.preset("small-transformer"), "for LSTMs only"),
        (BiLMConfig(LSTMConfig(1, 6, 4), None, efml=DICTIONARY), "dictionaries"),
        (None, r"prepacked.*use `elmokit\.load`"),
    ],
)
def test_what_hdf5_cannot_express_is_refused_and_leaves_nothing(
    config: BiLMConfig | None, message: str, tmp_path: Path
) -> None:
    bilm = prepack(tiny_bilm(), torch.float32) if config is None else BiLM(config)
    with pytest.raises(ValueError, match=message):
        save_hdf5(Pretrained(bilm), tmp_path / "hdf5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "output", "arguments", "message"),
    [
        ("model", "torch", {"to": "torch"}, "native, hdf5, onnx, not 'torch'"),
        ("model", "model", {"to": "hdf5", "overwrite": True}, "is the input"),
    ],
)
def test_impossible_conversions_are_refused(
    model: str, output: str, arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    bilm = BiLM(BiLMConfig.preset("tiny") if model == "model" else WORDS)
    vocab = None if model == "model" else VOCAB
    save(Pretrained(bilm, vocab=vocab), tmp_path / model)
    with pytest.raises(ValueError, match=message):
        convert(tmp_path / model, tmp_path / output, **arguments)
