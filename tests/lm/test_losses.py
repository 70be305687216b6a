"""Words predicted from all others of their sentence, against brute force in float64."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import log_softmax, random_weights
from sequence_encoders import LayerOracle
from toy_encoders import CONFIGS

from elmokit.checkpoints.loading import Pretrained
from elmokit.config import InterleavedConfig
from elmokit.lm.candidates import next_words, substitutes
from elmokit.lm.evaluation import evaluate, score_file
from elmokit.lm.scoring import Perplexity, score
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

SENTENCES = [["a", "b", "zebra"], ["c"], ["b", "b", "a", "c", "<S>"], ["zebra", "c"]]
VOCAB = Vocab(["<S>", "</S>", "<UNK>", "a", "b", "c", "d", ","])


def model_of(encoder: str, dtype: torch.dtype = torch.float64) -> Pretrained:
    bilm = BiLM(CONFIGS[encoder]).to(dtype)
    softmax = FullSoftmax(len(VOCAB), 16).to(dtype)
    random_weights(bilm, seed=1)
    random_weights(softmax, seed=2)
    return Pretrained(bilm, softmax=softmax, vocab=VOCAB)


@pytest.fixture
def model() -> Pretrained:
    return model_of("interleaved")


@torch.no_grad()
def brute_force(model: Pretrained, words: Sequence[str], position: int) -> np.ndarray:
    """Log p of every word at a position whose word is replaced by the mask, by the formulas."""
    vectors = model.bilm.token_encoder(
        model.bilm.token_encoder.ids(["<S>", *words, "</S>"], VOCAB)
    ).numpy()
    vectors[position + 1] = model.bilm.sequence_encoder.mask.numpy()
    forward, backward = np.split(LayerOracle(model.bilm).layers(vectors)[-1, position + 1], 2)
    weight, bias = (parameter.numpy() for parameter in model.softmax.parameters())
    return log_softmax(((forward + backward) @ weight.T + bias)[None])[0]


def log_p(model: Pretrained, words: Sequence[str]) -> list[float]:
    ids = VOCAB.ids(words).tolist()
    return [
        float(brute_force(model, words, position)[number]) for position, number in enumerate(ids)
    ]


def score_checked(
    model: Pretrained, words: Sequence[str], check: Callable[[], None]
) -> list[float]:
    (result,) = score([words], model, check=check)
    return result.losses["masked"].tolist()


def substitutes_checked(
    model: Pretrained, words: Sequence[str], check: Callable[[], None]
) -> list[float]:
    return [best.log_probability for (best,) in substitutes(words, model, top=1, check=check)]


@pytest.mark.parametrize("batch_words", [1, 9, 20, 10_000])
def test_pseudo_perplexity_equals_brute_force_in_any_batch(
    model: Pretrained, batch_words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.lm.losses.BATCH_WORDS", batch_words)
    result = Perplexity.of(model, [*SENTENCES, []])
    expected = np.exp(-np.mean([value for words in SENTENCES for value in log_p(model, words)]))
    assert result.value == pytest.approx(float(expected), rel=1e-9)
    assert (result.sentences, result.predictions, result.unknown) == (5, 11, 2)


def test_pseudo_perplexity_of_a_long_sentence_is_that_of_its_windows(
    model: Pretrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.lm.losses.WINDOW_WORDS", 4)
    result = Perplexity.of(model, [["a", "b", "c", "d", "a"]])
    expected = np.exp(-np.mean([*log_p(model, ["a", "b"]), *log_p(model, ["c", "d", "a"])]))
    assert result.value == pytest.approx(float(expected), rel=1e-9)


def test_score_of_masked_words_equals_brute_force(model: Pretrained) -> None:
    results = score([*SENTENCES, []], model)
    for result, words in zip(results, [*SENTENCES, []], strict=True):
        expected = -np.array(log_p(model, words))
        np.testing.assert_allclose(result.losses["masked"], expected, rtol=1e-9)
        np.testing.assert_allclose(result.surprisal, expected[None] / np.log(2), rtol=1e-6)
        assert result.words == tuple(words)
        assert result.is_unknown.tolist() == [word == "zebra" for word in words]
    alone = Perplexity.of(model, [SENTENCES[2]])
    assert results[2].perplexity.value == pytest.approx(alone.value, rel=1e-9)


@pytest.mark.parametrize("ask", [score_checked, substitutes_checked])
def test_words_hidden_in_a_long_sentence_are_checked_between_chunks(
    model: Pretrained, ask: Callable[..., list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BATCH_WORDS", "CHECKED_WORDS"):
        monkeypatch.setattr(f"elmokit.lm.losses.{name}", 100)
    words, checks = ["a", "b", "c"] * 8, []  # 24 copies of 26 positions
    checked = ask(model, words, lambda: checks.append(1))
    assert len(checks) == 6
    monkeypatch.setattr("elmokit.lm.losses.BATCH_WORDS", 100_000)
    assert checked == pytest.approx(ask(model, words, lambda: None), rel=1e-9)

    def check() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        ask(model, words, check)


def test_substitutes_of_masked_words_equal_brute_force(model: Pretrained) -> None:
    words = ["a", "d", "b", ","]
    for position, candidates in enumerate(substitutes(words, model, top=9)):
        expected = dict(zip(VOCAB.words, brute_force(model, words, position), strict=True))
        for excluded in ["<S>", "</S>", "<UNK>", *([","] if words[position] != "," else [])]:
            del expected[excluded]
        found = {candidate.word: candidate.log_probability for candidate in candidates}
        assert list(found) == sorted(expected, key=expected.__getitem__, reverse=True)
        assert found == pytest.approx(expected, rel=1e-9)


# --- The two measures -----------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", CONFIGS)
def test_evaluate_and_score_name_their_measure(encoder: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(" ".join(words) + "\n" for words in SENTENCES))
    model = model_of(encoder, torch.float32)
    is_merged = encoder == "interleaved"
    name = "pseudo-perplexity" if is_merged else "perplexity"
    total = evaluate([text], model, tokenize=False).total
    assert total.measure == name
    assert score_file(text, tmp_path / "scores.jsonl", model, tokenize=False).measure == name
    first = json.loads((tmp_path / "scores.jsonl").read_text().splitlines()[0])
    assert ("pseudo_perplexity" in first) == ("masked" in first) == is_merged
    assert ("perplexity" in first) == ("forward" in first) != is_merged
    score_file(text, tmp_path / "scores.tsv", model, tokenize=False, bits=True)
    header = (tmp_path / "scores.tsv").read_text().splitlines()[0].split("\t")
    contexts = ["masked_bits"] if is_merged else ["forward_bits", "backward_bits"]
    assert header[6:] == [*contexts, "unknown"]


def test_what_a_model_does_not_predict_is_refused() -> None:
    model = model_of("interleaved")
    with pytest.raises(ValueError, match="use substitutes"):
        next_words(["a"], model)
    with pytest.raises(ValueError, match="direction"):
        substitutes(["a"], model, direction="forward")
    config = replace(model.config, interleaved=InterleavedConfig(1, 8, 16, projects_layers=False))
    model = Pretrained(
        BiLM(config).double(), softmax=model.softmax, vocab=VOCAB
    )  # as of ELMoForManyLangs
    for ask in (
        lambda: Perplexity.of(model, SENTENCES),
        lambda: score(SENTENCES, model),
        lambda: substitutes(["a"], model),
    ):
        with pytest.raises(ValueError, match="cannot predict words"):
            ask()
