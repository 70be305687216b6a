"""Words of a training set, and vectors of each kind, against their definitions."""

from dataclasses import replace

import numpy as np
import torch
from layers_alone import layers_alone
from toy_tasks import toy_tasks

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.data.readers import TaggedSentence
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLMState
from elmokit.tasks import WordsConfig
from elmokit.tasks.fitting.layers import LayerCache
from elmokit.tasks.fitting.model import TaskModel
from elmokit.tasks.fitting.words import (
    Sentences,
    WordEncoder,
    WordTable,
)
from elmokit.text.characters import encode_words

# Rows 2 to 5; c and d occur once.
TABLE = WordTable.from_sentences([["a", "b"], ["a", "b", "c"], ["a", "d"]])
SENTENCES = [["a", "c", "d"], ["b", "new"]]


def test_words_that_occur_once_are_unknown_in_training_alone() -> None:
    config = WordsConfig(elmo="none", word_dim=4, word_dropout=0.0, rare_word_dropout=1.0)
    encoder = WordEncoder(config, TABLE)
    batch = Sentences(SENTENCES, TABLE).batch(SENTENCES)
    weight = encoder.words.weight
    assert torch.equal(encoder.train()(batch).vectors, weight[torch.tensor([[2, 1, 1], [3, 1, 0]])])
    assert torch.equal(encoder.eval()(batch).vectors, weight[torch.tensor([[2, 4, 5], [3, 1, 0]])])


def test_learned_and_spelled_vectors_stand_side_by_side() -> None:
    config = WordsConfig(elmo="none", word_dim=4, character_dim=6)
    encoder = WordEncoder(config, TABLE).eval()
    batch = Sentences(SENTENCES, TABLE, reads_characters=True).batch(SENTENCES)
    learned, spelled = encoder(batch).vectors.split([4, 6], dim=2)
    assert encoder.characters is not None
    assert torch.equal(learned, encoder.words.weight[torch.tensor([[2, 4, 5], [3, 1, 0]])])
    for row, words in zip(spelled, SENTENCES, strict=True):
        alone = [
            encoder.characters(torch.from_numpy(encode_words([word])).long())[0] for word in words
        ]
        torch.testing.assert_close(row[: len(words)], torch.stack(alone))
        assert not row[len(words) :].any()


def test_elmo_enters_at_both_ends_as_the_mix_of_its_layers(bilm: Pretrained) -> None:
    encoder = WordEncoder(WordsConfig(elmo="both", word_dim=0), TABLE, bilm).eval()
    assert (encoder.dim, encoder.output_dim) == (32, 32)
    cache = LayerCache(Embedder(bilm, "cpu"))
    cache.add(SENTENCES)
    batch = Sentences(SENTENCES, TABLE, layers=cache).batch(SENTENCES)
    found = encoder(batch)
    hidden = torch.randn(2, 3, 5)
    before, at_output = found.join(hidden).split([5, 32], dim=2)
    assert torch.equal(before, hidden)
    for vectors in (found.vectors, at_output):
        for row, words in zip(vectors.detach().numpy(), SENTENCES, strict=True):
            layers, _ = layers_alone(bilm.bilm, words)
            expected = layers.mean(axis=0)  # the weights of an untrained mix are equal
            np.testing.assert_allclose(row[: len(words)], expected, rtol=0, atol=1e-3)  # float16
            assert not row[len(words) :].any()


def test_elmo_starts_from_the_state_of_its_model(bilm: Pretrained) -> None:
    state = bilm.bilm.initial_state(1)
    warm = BiLMState(torch.randn_like(state.h), torch.randn_like(state.c))
    model = replace(bilm, state_policy="warm", warm_state=warm)
    embedded = Embedder(model, "cpu").embed(
        SENTENCES, "average"
    )  # as are the mixes of an untrained network
    task = toy_tasks()["tagging"].task
    labelled = type(task)(task.config, {"tags": ["O"], "scheme": None})
    network = labelled.network(WordEncoder(WordsConfig(word_dim=0), TABLE, model))
    fitted = TaskModel(labelled, network.eval(), TABLE, model)
    examples = fitted.example_set([TaggedSentence(tuple(words)) for words in SENTENCES])
    vectors = network.words(examples.sentences.batch(SENTENCES)).vectors.detach().numpy()
    for row, expected in zip(vectors, embedded, strict=True):
        np.testing.assert_allclose(row[: len(expected)], expected, rtol=0, atol=1e-3)  # float16
