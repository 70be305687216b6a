"""simple_elmo's vectors, averages and substitutes, and its silent errors."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.checkpoints.loading import load
from elmokit.compat.bilm_tf import Batcher, BidirectionalLanguageModel
from elmokit.compat.simple_elmo import SENTENCES_AT_ONCE, ElmoModel

SENTENCES = [
    ["the", "cat", "is", "on"],
    ["dogs"],
    ["They", "give", "state"],
    ["Another", "."],
    ["fog"],
]

pytestmark = pytest.mark.filterwarnings("ignore:averages", "ignore:logp is")


@pytest.fixture
def model(old_model: Path) -> ElmoModel:
    model = ElmoModel()
    model.load(old_model, max_batch_size=2)
    return model


def by_batches(old_model: Path, warmup: bool) -> list[np.ndarray]:
    """Layers of each sentence, (L+1, T, 2D), by bilm-tf's model in batches of 2 with carried
    state.
    """
    bilm = BidirectionalLanguageModel(old_model / "options.json", old_model / "model.hdf5")
    batches = [SENTENCES[begin : begin + 2] for begin in range(0, len(SENTENCES), 2)]
    result = []
    for batch in batches[:1] * warmup + batches:
        ops = bilm(Batcher(None, 50).batch_sentences(batch))
        result += [
            row[:, :n].numpy() for row, n in zip(ops["lm_embeddings"], ops["lengths"], strict=True)
        ]
    return result[2 * warmup :]


@pytest.mark.parametrize("warmup", [False, True])
def test_get_elmo_vectors_carries_state_between_batches(
    model: ElmoModel, old_model: Path, warmup: bool
) -> None:
    expected = by_batches(old_model, warmup)
    for layers, choose in (
        ("all", lambda x: x),
        ("top", lambda x: x[-1]),
        ("average", lambda x: x.mean(axis=0)),
    ):
        result = model.get_elmo_vectors(SENTENCES, warmup=warmup, layers=layers)
        assert result.shape == ((5, 3, 4, 32) if layers == "all" else (5, 4, 32))
        assert result.dtype == np.float64
        for row, sentence, array in zip(result, SENTENCES, expected, strict=True):
            np.testing.assert_allclose(row[..., : len(sentence), :], choose(array), atol=1e-5)
            assert not row[..., len(sentence) :, :].any()


def test_get_elmo_vectors_with_a_session_continues_the_previous_call(model: ElmoModel) -> None:
    whole = model.get_elmo_vectors(SENTENCES[:4], warmup=False)
    first = model.get_elmo_vectors(SENTENCES[:2], warmup=False)
    second = model.get_elmo_vectors(SENTENCES[2:4], warmup=False, session="any")
    np.testing.assert_allclose(whole[:2, :4], first, atol=1e-6)
    np.testing.assert_allclose(whole[2:, :3], second, atol=1e-6)


@pytest.mark.parametrize("arguments", [{"top": True}, {"max_batch_size": True}])
def test_load_with_top_makes_the_top_layer_the_default(
    arguments: dict[str, bool], model: ElmoModel, old_model: Path
) -> None:
    expected = model.get_elmo_vectors(SENTENCES[:2], layers="top")
    model.load(old_model, **arguments)
    np.testing.assert_allclose(model.get_elmo_vectors(SENTENCES[:2]), expected, atol=1e-6)


@pytest.mark.parametrize("layers", ["average", "top", "all"])
def test_get_elmo_vector_average_excludes_padding_per_layer(model: ElmoModel, layers: str) -> None:
    vectors = model.get_elmo_vectors(SENTENCES, layers=layers)
    result = model.get_elmo_vector_average(SENTENCES, layers=layers)
    for row, sentence, array in zip(result, SENTENCES, vectors, strict=True):
        mean = array[..., : len(sentence), :].mean(axis=-2)
        np.testing.assert_allclose(row, mean / np.linalg.norm(mean), atol=1e-6)
    alone = model.get_elmo_vector_average([SENTENCES[1]], layers=layers, warmup=False)
    beside = model.get_elmo_vector_average(SENTENCES[1::-1], layers=layers, warmup=False)
    np.testing.assert_allclose(alone[0], beside[0], atol=1e-6)


@pytest.mark.parametrize("at_once", [2, SENTENCES_AT_ONCE])
def test_get_elmo_substitutes_equals_the_exact_softmax_for_every_batch_size(
    at_once: int, language_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.compat.simple_elmo.SENTENCES_AT_ONCE", at_once)
    model = ElmoModel()
    model.load(language_model, full=True)
    pretrained = load(language_model)
    weight, bias = (part.detach().double().numpy() for part in pretrained.softmax.parameters())
    text = [" ".join(SENTENCES[0]), "unheard", "state of art"]
    for sentence, result in zip(text, model.get_elmo_substitutes(text, topn=4), strict=True):
        words = sentence.split()
        assert [word["word"] for word in result] == [
            w if w in pretrained.vocab else "<UNK>" for w in words
        ]
        with torch.no_grad():
            ids = torch.from_numpy(Batcher(None, 50).batch_sentences([words]))
            top = pretrained.bilm(ids).layers[-1, 0].double().numpy()  # <S>, the words, </S>
        for place, word in enumerate(result):
            for direction, hidden in (
                ("forward", top[place, :16]),
                ("backward", top[place + 2, 16:]),
            ):
                logits = weight @ hidden + bias
                log_p = logits - np.log(np.exp(logits).sum())
                best = [number for number in np.argsort(-log_p) if number not in (0, 1)][:4]
                assert word[direction]["candidates"] == best
                assert word[direction]["candidate_words"] == [
                    pretrained.vocab.words[number] for number in best
                ]
                np.testing.assert_allclose(word[direction]["logp"], log_p[best], atol=1e-4)


def test_load_prefers_the_checkpoint_only_with_full(
    goldens: Callable[[str], Path], tmp_path: Path
) -> None:
    trained = goldens("bilm_tf_training")
    shutil.copytree(trained / "tf_checkpoint", tmp_path / "model")
    shutil.copy(trained / "weights.hdf5", tmp_path / "model/model.hdf5")
    shutil.copy(trained / "vocab.txt", tmp_path / "model/vocab.txt")
    sentence = "he was born in the city and later moved to a monster"
    model = ElmoModel()
    model.load(tmp_path / "model", full=True)
    assert len(model.get_elmo_substitutes([sentence])[0]) == len(sentence.split())
    from_checkpoint = model.get_elmo_vectors([sentence.split()])
    model.load(tmp_path / "model")
    np.testing.assert_allclose(
        model.get_elmo_vectors([sentence.split()]), from_checkpoint, atol=1e-6
    )


@pytest.mark.filterwarnings("ignore:a sentence is a string")
def test_strings_are_read_by_character_and_wrong_calls_are_errors(
    model: ElmoModel, old_model: Path
) -> None:
    expected = model.get_elmo_vectors([list("the cat"), ["dogs"]])
    assert np.array_equal(model.get_elmo_vectors(["the cat", ["dogs"]]), expected)
    sentences = [["the", "cat"], ["dogs"]]
    assert np.array_equal(
        model.batcher.batch_sentences(sentences), Batcher(None, 50).batch_sentences(sentences)
    )
    assert not model.get_elmo_vector_average([[], ["cat"]], warmup=False)[0].any()
    for call in (
        lambda: model.get_elmo_substitutes(["the cat"]),
        lambda: model.load(old_model, full=True),
    ):
        with pytest.raises(ValueError, match="full=True"):
            call()
