"""Perplexity, against bilm-tf's own figures and a brute-force computation in float64."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import log_softmax, random_weights
from sequence_encoders import LayerOracle
from small_language_model import (
    SENTENCES,
    expected_losses,
    first_states,
    predictions,
    small_language_model,
    three,
    vocab_of,
)
from toy_encoders import CONFIGS as ENCODERS

from elmokit.checkpoints.loading import Pretrained, load
from elmokit.lm.evaluation import evaluate
from elmokit.lm.scoring import Perplexity
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.ops import portable
from elmokit.text.vocab import Vocab


def small() -> Pretrained:
    return small_language_model(torch.float64)


def perplexities(losses: np.ndarray) -> tuple[float, ...]:
    """Forward, backward and mean perplexity, from the losses (2, N)."""
    return (*np.exp(losses.mean(axis=1)).tolist(), float(np.exp(losses.mean())))


def brute_force(
    sentences: Sequence[Sequence[str]], state: str = "carry", rows: int = 1
) -> tuple[float, ...]:
    """Perplexities by definition, one sentence, direction and word at a time."""
    model = small()
    first = first_states(model, state == "warm")
    states = [first] * rows
    losses = []
    for number, words in enumerate(sentences):
        begin = states[number % rows] if state == "carry" else first
        log_p, states[number % rows] = predictions(model, words, begin)
        losses.append(expected_losses(model, words, log_p))
    return perplexities(np.concatenate(losses, axis=1))


@pytest.mark.parametrize(
    ("state", "batch_size"),
    [*(("carry", n) for n in (1, 2, 7)), ("zeros", 1), ("zeros", 3), ("warm", 1)],
)
def test_perplexity_equals_brute_force(state: str, batch_size: int) -> None:
    result = Perplexity.of(small(), SENTENCES, state, batch_size)
    assert three(result) == pytest.approx(brute_force(SENTENCES, state, batch_size), rel=1e-9)
    assert (result.sentences, result.predictions, result.unknown) == (5, 16, 2)


@pytest.mark.parametrize("state", ["carry", "zeros"])
@pytest.mark.parametrize(("words", "logits"), [(1, 1), (3, 20), (8, 20)])
def test_perplexity_does_not_depend_on_internal_batches(
    monkeypatch: pytest.MonkeyPatch, state: str, words: int, logits: int
) -> None:
    monkeypatch.setattr("elmokit.lm.losses.BATCH_WORDS", words)
    monkeypatch.setattr(portable, "LOGITS_AT_ONCE", logits)
    result = Perplexity.of(small(), iter(SENTENCES), state, batch_size=2)
    assert three(result) == pytest.approx(brute_force(SENTENCES, state, rows=2), rel=1e-9)


@pytest.mark.parametrize("encoder", ["lstm", "transformer"])
def test_perplexity_of_each_encoder_equals_the_formulas(encoder: str) -> None:
    """Each sentence by itself, a direction at a time, in NumPy float64."""
    vocab = vocab_of(small())
    bilm = BiLM(ENCODERS[encoder]).double()
    softmax = FullSoftmax(len(vocab), 16).double()
    random_weights(bilm, seed=1, scale=0.5)
    random_weights(softmax, seed=2)
    model = Pretrained(bilm, softmax=softmax, vocab=vocab)
    oracle = LayerOracle(bilm)
    weight = softmax.weight.detach().numpy()
    bias = softmax.bias.detach().numpy()
    losses = []
    for words in SENTENCES:
        log_p = []
        for d, inputs in enumerate((["<S>", *words], [*words, "</S>"])):
            vectors = bilm.token_encoder(bilm.token_encoder.ids(inputs, vocab)).detach().numpy()
            top = oracle.layers(vectors)[-1][:, 16 * d : 16 * (d + 1)]
            log_p.append(log_softmax(top @ weight.T + bias))
        losses.append(expected_losses(model, words, np.stack(log_p)))
    result = Perplexity.of(model, SENTENCES, "zeros")
    expected = perplexities(np.concatenate(losses, axis=1))
    assert three(result) == pytest.approx(expected, rel=1e-9)


def test_perplexity_of_nothing_and_beyond_the_largest_float() -> None:
    with pytest.raises(ValueError, match="empty"):
        Perplexity.of(small(), [])
    for losses in ({"forward": 9000.0, "backward": 20.0}, {"masked": 9000.0}):
        values = Perplexity(losses, sentences=1, predictions=10, unknown=0).values
        assert next(iter(values.values())) == math.inf


# --- bilm-tf's own figures ------------------------------------------------------------------------


def test_perplexity_equals_that_of_bilm_tf(goldens: Callable[[str], Path]) -> None:
    folder = goldens("bilm_tf_training/heldout.txt").parent
    with np.load(folder / "softmax.npz") as file:
        softmax = FullSoftmax(*file["W"].shape)
        softmax.load_state_dict(
            {"weight": torch.from_numpy(file["W"]), "bias": torch.from_numpy(file["b"])}
        )
    vocab = Vocab.read(folder / "vocab.txt")
    model = Pretrained(load(folder / "weights.hdf5").bilm, softmax=softmax, vocab=vocab)
    expected = json.loads((folder / "expected.json").read_text())
    result = evaluate([folder / "heldout.txt"], model, batch_size=1).total
    assert result.predictions == expected["words_per_direction_batch_1"]
    names = "perplexity_batch_1_forward", "perplexity_batch_1_backward", "perplexity_batch_1"
    assert three(result) == pytest.approx([expected[name] for name in names], rel=1e-6)


# --- Files ----------------------------------------------------------------------------------------


def test_evaluate_reports_each_file_and_the_total(tmp_path: Path) -> None:
    texts = {"one.txt": SENTENCES[:2], "two.txt": SENTENCES[2:]}
    for name, sentences in texts.items():
        (tmp_path / name).write_text("".join(" ".join(words) + "\n" for words in sentences))
    result = evaluate([tmp_path], small(), state="zeros")
    names = [str(tmp_path / name) for name in texts]
    for name, sentences in zip(names, texts.values(), strict=True):
        expected = brute_force([s for s in sentences if s], "zeros")
        assert three(result.files[name]) == pytest.approx(expected, rel=1e-9)
    everything = brute_force([s for s in SENTENCES if s], "zeros")
    assert three(result.total) == pytest.approx(everything, rel=1e-9)
    assert (result.total.sentences, result.total.predictions, result.total.unknown) == (4, 15, 2)


def test_evaluate_leaves_out_files_without_sentences(tmp_path: Path) -> None:
    model, (empty, full) = small(), (tmp_path / "empty.txt", tmp_path / "a.txt")
    empty.write_text("\n\n")
    full.write_text("a b c .\n")
    with pytest.raises(ValueError, match=r"empty\.txt: there is no sentence"):
        evaluate([empty], model)
    alone = evaluate([full], model)
    assert evaluate([empty, full], model) == alone
