"""Tiny models with random weights, in the file formats of the original libraries."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_model import tiny_bilm

from elmokit.checkpoints.bilm_hdf5 import write_bilm_hdf5
from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.compat.shared import warn_once
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

WORDS = ["<S>", "</S>", "<UNK>", "the", "cat", "is", "on", "mat", "dogs", "are", "in", "fog"]
WORDS += ["They", "give", "state", "of", "art", "First", "sentence", ".", "Another"]


def random_bilm() -> BiLM:
    bilm = tiny_bilm(seed=3)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.normal_(0, 0.4)
    return bilm


@pytest.fixture
def bilm() -> BiLM:
    return random_bilm()


@pytest.fixture(scope="session")
def old_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with options.json, model.hdf5 and vocab.txt, 2 layers, 16 dimensions per
    direction.
    """
    folder = tmp_path_factory.mktemp("old_model")
    write_bilm_hdf5(random_bilm(), folder)
    (folder / "weights.hdf5").rename(folder / "model.hdf5")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
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
    save(
        Pretrained(
            bilm, softmax=softmax, vocab=Vocab(WORDS), mix=MixWeights((0.5, -1.0, 0.25), 1.5)
        ),
        folder,
    )
    return folder


@pytest.fixture(autouse=True)
def every_notice_is_new() -> Iterator[None]:
    warn_once.cache_clear()
    yield
    warn_once.cache_clear()
