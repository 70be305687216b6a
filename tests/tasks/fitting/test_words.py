"""The words of a training set, and vectors of each kind that a network reads, against their definitions."""

from typing import Literal

import numpy as np
import pytest
import torch
from layers_alone import layers_alone
from toy_tasks import toy_tasks

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.data.readers import TaggedSentence
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.elmo import Elmo
from elmokit.tasks.classification import ClassificationTask, labelled_phrases
from elmokit.tasks.config import WordsConfig
from elmokit.tasks.fitting.model import TaskModel, make_network
from elmokit.tasks.fitting.vectors import WordVectors
from elmokit.tasks.fitting.words import CHARACTERS, Sentences, WordEncoder, WordTable, mix_weights
from elmokit.text.characters import encode_words

TABLE = WordTable.from_sentences([["a", "b"], ["a", "b", "c"], ["a", "d"]])  # rows 2 to 5; c and d occur once
SENTENCES = [["a", "c", "d"], ["b", "new"]]


@pytest.fixture
def bilm() -> BiLM:
    torch.manual_seed(0)
    return BiLM(BiLMConfig.preset("tiny"))


def test_a_sentence_that_examples_share_and_the_phrases_of_a_tree_count_once() -> None:
    passage, question = ["a", "rare", "passage"], ["a", "question"]
    table = WordTable.from_sentences([passage, question, passage, question])
    assert (table.words[: table.num_frequent], len(table.words)) == (("a",), 4)
    trees = ("(3 (2 It) (4 works))", "(1 (1 (2 It) (0 fails)) (2 .))")
    phrases = [phrase for tree in trees for phrase in labelled_phrases(tree)]
    table = WordTable.from_sentences(ClassificationTask().counted_sentences(phrases))
    assert table.words == ("It", ".", "fails", "works") and table.num_frequent == 1


def test_a_batch_of_empty_sentences_is_wide_enough_for_the_filters() -> None:
    characters = Sentences([[], ["word"]], TABLE, character_cnns=[CHARACTERS]).batch([[]]).characters
    assert characters is not None and characters.shape == (0, CHARACTERS.widest_filter)


def test_words_that_occur_once_are_unknown_in_training_alone() -> None:
    config = WordsConfig(elmo="none", word_dim=4, word_dropout=0.0, rare_word_dropout=1.0)
    encoder, batch = WordEncoder(config, TABLE), Sentences(SENTENCES, TABLE).batch(SENTENCES)
    assert encoder.words is not None
    weight = encoder.words.weight
    assert torch.equal(encoder.train()(batch).vectors, weight[torch.tensor([[2, 1, 1], [3, 1, 0]])])
    assert torch.equal(encoder.eval()(batch).vectors, weight[torch.tensor([[2, 4, 5], [3, 1, 0]])])


def test_learned_spelled_and_pretrained_vectors_stand_side_by_side() -> None:
    vectors = WordVectors(("a", "new"), np.array([[1, 2], [3, 4]], np.float32))
    table = WordTable(TABLE.words, TABLE.num_frequent, vectors)
    config = WordsConfig(elmo="none", word_dim=4, character_dim=6, vectors="vectors.txt")
    encoder = WordEncoder(config, table).eval()
    batch = Sentences(SENTENCES, table, character_cnns=[CHARACTERS]).batch(SENTENCES)
    learned, spelled, pretrained = encoder(batch).vectors.split([4, 6, 2], dim=2)
    assert encoder.words is not None and encoder.characters is not None
    assert torch.equal(learned, encoder.words.weight[torch.tensor([[2, 4, 5], [3, 1, 0]])])
    assert pretrained.tolist() == [[[1, 2], [0, 0], [0, 0]], [[0, 0], [3, 4], [0, 0]]]
    for row, words in zip(spelled, SENTENCES, strict=True):
        alone = [encoder.characters(torch.from_numpy(encode_words([word])).long())[0] for word in words]
        torch.testing.assert_close(row[: len(words)], torch.stack(alone))
        assert not row[len(words) :].any()


@pytest.mark.parametrize("mix", ["top", "uniform"])
def test_elmo_enters_at_both_ends_as_the_mix_of_its_layers(mix: Literal["top", "uniform"], bilm: BiLM) -> None:
    elmo = Elmo(bilm, num_mixes=2, dropout=0.0, fixed_weights=mix_weights(mix, 3))
    encoder = WordEncoder(WordsConfig(elmo="both", mix=mix, word_dim=0), TABLE, elmo).eval()
    assert (encoder.dim, encoder.output_dim) == (32, 32)
    assert bilm.config.char_cnn is not None
    batch = Sentences(SENTENCES, TABLE, character_cnns=[bilm.config.char_cnn]).batch(SENTENCES)
    found = encoder(batch)
    hidden = torch.randn(2, 3, 5)
    before, at_output = found.join(hidden).split([5, 32], dim=2)
    assert torch.equal(before, hidden)
    for vectors in (found.vectors, at_output):
        for row, words in zip(vectors.detach().numpy(), SENTENCES, strict=True):
            layers, _ = layers_alone(bilm, words)
            expected = layers[-1] if mix == "top" else layers.mean(axis=0)
            np.testing.assert_allclose(row[: len(words)], expected, rtol=0, atol=1e-5)
            assert not row[len(words) :].any()


def test_penalty_is_that_of_the_weights_of_all_mixes(bilm: BiLM) -> None:
    elmo = Elmo(bilm, num_mixes=2)
    with torch.no_grad():
        elmo.mixes[0].weights.copy_(torch.tensor([1.0, 2.0, -3.0]))
        elmo.mixes[1].weights.fill_(1.0)
    penalized, free = (WordEncoder(WordsConfig(elmo="both", mix_l2=l2), TABLE, elmo) for l2 in (0.1, 0.0))
    assert torch.as_tensor(penalized.penalty()).item() == pytest.approx(0.1 * (1 + 4 + 9 + 3))
    assert free.penalty() == 0


def test_elmo_starts_from_the_state_of_its_model_whether_it_is_frozen_or_trained(bilm: BiLM) -> None:
    state = bilm.initial_state(1)
    warm = BiLMState(torch.randn_like(state.h), torch.randn_like(state.c))
    model = Pretrained(bilm, state_policy="warm", warm_state=warm)
    embedded = Embedder(model, "cpu").embed(SENTENCES, "average")  # as are the mixes of an untrained network
    task = toy_tasks()["tagging"].task
    labelled = type(task)(task.config, {"tags": ["O"], "scheme": None})
    for finetune in (False, True):
        network = make_network(labelled, WordsConfig(word_dim=0, finetune=finetune), TABLE, model)
        fitted = TaskModel(labelled, network.eval(), TABLE, model)
        examples = fitted.example_set([TaggedSentence(tuple(words)) for words in SENTENCES])
        vectors = network.words(examples.sentences.batch(SENTENCES)).vectors.detach().numpy()
        for row, expected in zip(vectors, embedded, strict=True):
            np.testing.assert_allclose(row[: len(expected)], expected, rtol=0, atol=1e-3)  # the cache is float16
