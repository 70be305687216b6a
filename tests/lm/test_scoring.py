"""Scores of sentences, against brute force in float64 and the perplexity."""

import math

import numpy as np
import pytest
from small_language_model import SENTENCES, SPECIALS, brute_force, small_language_model, three, vocab_of

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.lm.candidates import next_words
from elmokit.lm.evaluate import perplexity
from elmokit.lm.scoring import SentenceScore, score, scores
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

# The vocabularies of tests have a handful of words.
pytestmark = pytest.mark.filterwarnings("ignore:.* of the words are not in the model's vocabulary")


@pytest.fixture
def model() -> Pretrained:
    return small_language_model()


@pytest.mark.parametrize("state", ["zeros", "warm"])
def test_score_equals_brute_force(model: Pretrained, state: str) -> None:
    result = score(SENTENCES, model, state=state)
    assert [each.words for each in result] == [tuple(words) for words in SENTENCES]
    assert [each.unknown for each in result] == [1, 0, 0, 0, 1]
    for each in result:
        forward, backward = brute_force(model, each.words, warm=state == "warm")
        places = np.arange(len(each.words) + 1)
        ids = vocab_of(model).ids
        np.testing.assert_allclose(each.forward, forward[places, ids([*each.words, "</S>"])], atol=1e-5)
        np.testing.assert_allclose(each.backward, backward[places, ids(["<S>", *each.words])], atol=1e-5)


@pytest.mark.parametrize(("state", "batch_size"), [("zeros", 1), ("warm", 1), ("carry", 1), ("carry", 2)])
@pytest.mark.parametrize("batch_words", [1, 9, 10_000])
def test_scores_sum_to_the_perplexity_in_every_state(
    model: Pretrained, state: str, batch_size: int, batch_words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.lm.evaluate.BATCH_WORDS", batch_words)
    result = score(SENTENCES, model, state=state, batch_size=batch_size)
    assert model.softmax is not None
    parts = model.bilm, model.softmax, vocab_of(model)
    expected = perplexity(*parts, SENTENCES, state, batch_size, model.warm_state)
    means = [np.mean(np.concatenate([getattr(each, d) for each in result])) for d in ("forward", "backward")]
    assert np.exp([-means[0], -means[1], -np.mean(means)]).tolist() == pytest.approx(three(expected), rel=1e-5)


@pytest.mark.parametrize("batch_words", [1, 4, 9])
def test_batches_change_no_score_and_a_check_may_end_them(model: Pretrained, batch_words: int) -> None:
    checked = list(scores(model, SENTENCES, "warm", 1, batch_words=batch_words))
    for one, other in zip(checked, score(SENTENCES, model, state="warm"), strict=True):
        assert isinstance(one, SentenceScore) and isinstance(other, SentenceScore)
        np.testing.assert_allclose(one.forward, other.forward, rtol=0, atol=1e-5)
        np.testing.assert_allclose(one.backward, other.backward, rtol=0, atol=1e-5)

    def check() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        list(scores(model, SENTENCES, "zeros", 1, check, batch_words))


def test_sentence_score_perplexity_equals_that_of_a_text_of_one_sentence(model: Pretrained) -> None:
    assert model.softmax is not None
    for each in score(SENTENCES, model):
        alone = perplexity(model.bilm, model.softmax, vocab_of(model), [each.words], "zeros")
        assert three(each.perplexity) == pytest.approx(three(alone), rel=1e-6)
        counts = each.perplexity.sentences, each.perplexity.predictions, each.perplexity.unknown
        assert counts == (alone.sentences, alone.predictions, alone.unknown)


def test_score_splits_strings_with_the_models_tokenizer(model: Pretrained) -> None:
    model.tokenizer = "english-1"
    (result,) = score(["a can't."], model)
    assert result.words == ("a", "ca", "n't", ".")
    with pytest.raises(ValueError, match="list of sentences"):
        score("a b", model)


def test_score_of_no_sentences_is_empty(model: Pretrained) -> None:
    assert score([], model) == []


def test_surprisal_is_that_of_brute_force_in_bits(model: Pretrained) -> None:
    for each in score(SENTENCES, model):
        ids, places = vocab_of(model).ids(each.words), np.arange(len(each.words))
        forward, backward = brute_force(model, each.words)
        expected = -np.stack([forward[places, ids], backward[places + 1, ids]]) / np.log(2)
        np.testing.assert_allclose(each.surprisal, expected, atol=1e-5)
        assert each.is_unknown.tolist() == [word == "zebra" for word in each.words]


def test_score_accepts_a_word_id_model() -> None:
    vocab = Vocab([*SPECIALS, "a", "b"])
    bilm, softmax = BiLM(BiLMConfig(LSTMConfig(1, 4, 4), None, 5)), FullSoftmax(5, 4)
    model = Pretrained(bilm, softmax=softmax, vocab=vocab)
    one, other = (score([["a", word]], model)[0] for word in ("<UNK>", "never-seen"))
    np.testing.assert_array_equal(one.forward, other.forward)
    assert sum(math.exp(each.log_probability) for each in next_words(["a"], model)) == pytest.approx(1)


def test_score_raises_for_invalid_arguments(model: Pretrained) -> None:
    with pytest.raises(ValueError, match="zeros, warm, carry"):
        score(SENTENCES, model, state="cold")
    with pytest.raises(ValueError, match="warm state"):
        score(SENTENCES, Pretrained(model.bilm, softmax=model.softmax, vocab=model.vocab), state="warm")
