"""Tiny models with random weights, in the file formats of the original libraries."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from elmokit.checkpoints.formats.bilm_hdf5 import table_of
from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.compat.shared import warn_once
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

WORDS = ["<S>", "</S>", "<UNK>", "the", "cat", "is", "on", "mat", "dogs", "are", "in", "fog"]
WORDS += ["They", "give", "state", "of", "art", "First", "sentence", ".", "Another"]


def random_bilm() -> BiLM:
    torch.manual_seed(3)
    bilm = BiLM(BiLMConfig.preset("tiny"))
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.normal_(0, 0.4)
    return bilm


def options_of(config: BiLMConfig) -> dict[str, Any]:
    lstm, char_cnn = config.lstm, config.char_cnn
    assert char_cnn is not None
    return {
        "lstm": {
            "dim": lstm.cell_dim,
            "projection_dim": lstm.projection_dim,
            "n_layers": lstm.num_layers,
            "cell_clip": lstm.cell_clip,
            "proj_clip": lstm.proj_clip,
            "use_skip_connections": lstm.use_skip_connections,
        },
        "char_cnn": {
            "activation": char_cnn.activation,
            "embedding": {"dim": char_cnn.embedding_dim},
            "filters": [list(pair) for pair in char_cnn.filters],
            "max_characters_per_token": char_cnn.max_characters,
            "n_characters": 262,
            "n_highway": char_cnn.num_highway,
        },
    }


def write_old_files(bilm: BiLM, folder: Path) -> None:
    """Write options.json, model.hdf5 and vocab.txt."""
    (folder / "options.json").write_text(json.dumps(options_of(bilm.config)))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    parameters, arrays = bilm.state_dict(), {}
    for piece in table_of(bilm.config):
        value = parameters[piece.parameter][piece.part].numpy()
        array = arrays.setdefault(piece.dataset, np.zeros(piece.shape, np.float32))
        array[piece.rows] = value.T if piece.reverse_axes else value
    with h5py.File(folder / "model.hdf5", "w") as file:
        for name, array in arrays.items():
            file[name] = array


@pytest.fixture
def bilm() -> BiLM:
    return random_bilm()


@pytest.fixture(scope="session")
def old_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with options.json, model.hdf5 and vocab.txt, 2 layers, 16 dimensions per direction."""
    folder = tmp_path_factory.mktemp("old_model")
    write_old_files(random_bilm(), folder)
    return folder


@pytest.fixture
def files(old_model: Path) -> tuple[Path, Path]:
    """The options and the weights of `old_model`, as AllenNLP takes them."""
    return old_model / "options.json", old_model / "model.hdf5"


@pytest.fixture(scope="session")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same biLM as a native directory, with a softmax, a vocabulary and mix weights."""
    folder = tmp_path_factory.mktemp("language_model") / "model"
    bilm = random_bilm()
    softmax = FullSoftmax(len(WORDS), bilm.config.lstm.projection_dim)
    save(Pretrained(bilm, softmax=softmax, vocab=Vocab(WORDS), mix=MixWeights((0.5, -1.0, 0.25), 1.5)), folder)
    return folder


@pytest.fixture(autouse=True)
def every_notice_is_new() -> Iterator[None]:
    warn_once.cache_clear()
    yield
    warn_once.cache_clear()
