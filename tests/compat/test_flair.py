"""flair's `ELMoEmbeddings`, which import `allennlp.commands.elmo`: vectors, and a tagger that is
trained and saved.

flair needs an older transformers than other tests do, so these run in an environment of their own,
with flair 0.15.1.
"""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.compat import install
from elmokit.embed.embedder import Embedder

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    flair = pytest.importorskip("flair", reason="flair is not installed: pip install flair")
    from flair.data import Sentence
    from flair.embeddings.legacy import ELMoEmbeddings

pytestmark = pytest.mark.filterwarnings("ignore")  # flair's own


@pytest.fixture(autouse=True)
def _allennlp() -> Iterator[None]:
    """`install()`, undone after the test."""
    found = list(sys.meta_path)
    flair.device = torch.device("cpu")
    install()
    yield
    sys.meta_path[:] = found
    for name in [name for name in sys.modules if name.split(".")[0] == "allennlp"]:
        del sys.modules[name]


@pytest.fixture
def files(old_model: Path) -> dict[str, str]:
    return {
        "options_file": str(old_model / "options.json"),
        "weight_file": str(old_model / "model.hdf5"),
    }


def vectors_of(embeddings: ELMoEmbeddings, words: list[str]) -> np.ndarray:
    embeddings.ee.elmo_bilm._elmo_lstm.reset_states()
    sentence = Sentence(words)
    embeddings.embed(sentence)
    return torch.stack([token.embedding for token in sentence]).numpy()


@pytest.mark.parametrize("mode", ["all", "top", "average"])
def test_embeddings_are_the_layers_of_the_model(
    files: dict[str, str], old_model: Path, mode: str
) -> None:
    words = ["the", "cat", "is"]
    embeddings = ELMoEmbeddings(**files, embedding_mode=mode)
    (layers,) = Embedder(old_model).embed([words], layers="all")
    expected = {
        "all": np.concatenate(layers, axis=-1),
        "top": layers[-1],
        "average": layers.mean(axis=0),
    }[mode]
    assert embeddings.embedding_length == expected.shape[1]
    np.testing.assert_allclose(vectors_of(embeddings, words), expected, atol=1e-5)
