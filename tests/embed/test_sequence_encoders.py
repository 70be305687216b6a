"""Embedding with every sequence encoder: as `BiLM.forward` of a sentence alone, whatever the
batch.
"""

import random

import numpy as np
import pytest
import torch
from layers_alone import layers_alone
from sequence_encoders import CONFIGS, STATELESS, random_bilm

from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.embed.embedder import Embedder
from elmokit.embed.outputs import OutputSpec
from elmokit.nn.bidirectional import BiLMState
from elmokit.nn.elmo import Elmo, batch_to_ids

WORDS = ["I", "like", "apple", "naïve", "词向量", "the", "of", ",", "play", "unbelievable"]
LENGTHS = [3, 200, 0, 20, 61, 58, 59, 1, 7]
TEXTS = [random.Random(length).choices(WORDS, k=length) for length in LENGTHS]


def model_of(name: str) -> Pretrained:
    return Pretrained(random_bilm(name, scale=0.3, characters=True).float())


def small(model: Pretrained, batch_words: int = 60) -> Embedder:
    embedder = Embedder(model, "cpu")
    embedder.pipeline.batch_words = batch_words
    return embedder


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("words", [8192, 60], ids=["one batch", "several"])
@pytest.mark.parametrize("name", CONFIGS)
def test_vectors_are_those_of_each_sentence_alone(name: str, words: int) -> None:
    model = model_of(name)
    embedder = small(model, words)
    expected = [layers_alone(model.bilm, words)[0] for words in TEXTS]
    layers = embedder.embed(TEXTS, "all")
    for words, found in zip(expected, layers, strict=True):
        assert (
            found.shape == words.shape
        )  # (L+1, T, 2D), also of an encoder that has the top layer only
        assert_close(found, words)
    spec = OutputSpec.of(model, "all", None, "float32")
    start = embedder.pipeline.start(None)
    (stored,) = embedder.pipeline.embed_all([TEXTS[2:4]], spec, start)
    assert_close(stored.vectors[0], expected[3].swapaxes(0, 1))
    for words, found in zip(expected, embedder.embed(TEXTS, "top", batch_size=2), strict=True):
        assert_close(found, words[-1])
    for pooling, pool in (("mean", np.mean), ("max", np.max)):
        pooled = embedder.encode(TEXTS, pooling, layers="top")
        assert_close(pooled[1], pool(expected[1][-1], axis=0))


@pytest.mark.parametrize("name", STATELESS)
def test_an_encoder_without_state_says_so(name: str) -> None:
    model = model_of(name)
    embedder = Embedder(model, "cpu")
    full = BiLMState(torch.zeros(2, 2, 1, 4), torch.zeros(2, 2, 1, 4))
    for embed in (
        lambda: embedder.embed(TEXTS, state="carry"),
        lambda: Pretrained(model.bilm, warm_state=full),
        lambda: embedder.embed(TEXTS, state=full),
        lambda: Elmo(model.bilm)(batch_to_ids(TEXTS), full),
    ):
        with pytest.raises(ValueError, match="state"):
            embed()


@pytest.mark.parametrize("freeze", [True, False], ids=["frozen", "learning"])
@pytest.mark.parametrize("name", CONFIGS)
def test_elmo_in_a_model_gives_the_mix_of_the_embedder(name: str, freeze: bool) -> None:
    model = model_of(name)
    texts = [words for words in TEXTS if 0 < len(words) < 60]
    elmo = Elmo(model.bilm, dropout=0.0, freeze=freeze)
    found = elmo(batch_to_ids(texts))
    count = model.config.num_representations
    expected = Embedder(Pretrained(model.bilm, mix=MixWeights((0.0,) * count)), "cpu").embed(texts)
    for number, words in enumerate(expected):
        assert_close(found.representations[0][number, : len(words)].detach().numpy(), words)
    found.representations[0].square().sum().backward()
    learned = {name for name, weight in model.bilm.named_parameters() if weight.grad is not None}
    rest = {name for name, _ in model.bilm.named_parameters()} - learned
    assert not learned if freeze else rest <= {"sequence_encoder.mask"}
