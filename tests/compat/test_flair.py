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
    from flair.data import Corpus, Sentence
    from flair.datasets import FlairDatapointDataset
    from flair.embeddings.legacy import ELMoEmbeddings
    from flair.models import SequenceTagger

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
    (layers,) = Embedder.load(old_model).embed([words], layers="all")
    expected = {
        "all": np.concatenate(layers, axis=-1),
        "top": layers[-1],
        "average": layers.mean(axis=0),
    }[mode]
    assert embeddings.embedding_length == expected.shape[1]
    np.testing.assert_allclose(vectors_of(embeddings, words), expected, atol=1e-5)


def test_tagger_learns_and_is_the_same_after_pytorch_saved_it(
    files: dict[str, str], tmp_path: Path
) -> None:
    sentences = []
    for words, tags in (("the cat is on the mat", "DNVPDN"), ("dogs are in the fog", "NVPDN")):
        sentence = Sentence(words.split())
        for token, tag in zip(sentence, tags, strict=True):
            token.add_label("pos", tag)
        sentences.append(sentence)
    corpus = Corpus(train=FlairDatapointDataset(sentences), sample_missing_splits=False)
    tags = corpus.make_label_dictionary("pos", add_unk=False)
    torch.manual_seed(0)
    embeddings = ELMoEmbeddings(**files)
    none = {"dropout": 0.0, "word_dropout": 0.0, "locked_dropout": 0.0}
    tagger = SequenceTagger(
        embeddings, tags, "pos", use_rnn=False, use_crf=False, reproject_embeddings=False, **none
    )
    optimizer = torch.optim.Adam(tagger.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        loss, count = tagger.forward_loss(sentences)
        (loss / count).backward()
        optimizer.step()
    with pytest.raises(
        NotImplementedError
    ):  # flair itself cannot save these embeddings since version 0.12
        tagger.save(tmp_path / "tagger.pt")
    torch.save(tagger, tmp_path / "tagger.pt")
    loaded = torch.load(tmp_path / "tagger.pt", weights_only=False)
    for model in (tagger, loaded):
        model.embeddings.ee.elmo_bilm._elmo_lstm.reset_states()
        again = Sentence(["the", "cat", "is", "on", "the", "mat"])
        model.predict(again)
        assert [token.get_label("pos").value for token in again] == list("DNVPDN")
