"""Perplexity, against bilm-tf's own figures and a brute-force computation in float64."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import Oracle, log_softmax, random_weights
from sequence_encoders import LayerOracle
from toy_encoders import CONFIGS as ENCODERS

from elmokit.checkpoints.loading import Pretrained, load
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.lm.evaluation import evaluate, measure
from elmokit.lm.measures import Perplexity, PseudoPerplexity
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.softmax import FullSoftmax
from elmokit.ops.portable import logsumexp
from elmokit.text.characters import encode_words
from elmokit.text.vocab import Vocab

# The vocabularies of tests have a handful of words.
pytestmark = pytest.mark.filterwarnings("ignore:.* of the words are not in the model's vocabulary")

SENTENCES = [["a", "b", "zebra"], ["c"], ["b", "b", "a", "c", "<S>"], [], ["zebra", "c"]]
CONFIG = BiLMConfig(
    LSTMConfig(2, 5, 4, cell_clip=1.0, proj_clip=1.0), CharCNNConfig(3, ((1, 3), (3, 4)), 1)
)


VOCAB = Vocab(["<S>", "</S>", "<UNK>", "a", "b", "c"])


def small() -> Pretrained:
    bilm, softmax = BiLM(CONFIG).double(), FullSoftmax(len(VOCAB), 4).double()
    random_weights(bilm, seed=1)
    random_weights(softmax, seed=2)
    torch.manual_seed(3)
    zeros = bilm.initial_state(1)
    warm = BiLMState(torch.randn_like(zeros.h), torch.randn_like(zeros.c))
    return Pretrained(bilm, softmax=softmax, vocab=VOCAB, warm_state=warm)


def brute_force(
    sentences: Sequence[Sequence[str]], state: str = "carry", rows: int = 1
) -> tuple[float, float, float]:
    """Forward, backward and mean perplexity by definition, one sentence, direction and word at a
    time.
    """
    model = small()
    oracle, (weight, bias), vocab = (
        Oracle(model.bilm),
        (p.detach().numpy() for p in model.softmax.parameters()),
        VOCAB,
    )
    means = []
    for d in range(2):
        begin = oracle.zeros()
        if state == "warm":
            h, c = (part[d, :, 0].numpy() for part in (model.warm_state.h, model.warm_state.c))
            begin = list(zip(h, c, strict=True))
        states, losses = [begin] * rows, []
        for number, words in enumerate(sentences):
            ordered = list(words)[:: -1 if d else 1]
            inputs, targets = ["</S>" if d else "<S>", *ordered], [*ordered, "<S>" if d else "</S>"]
            vectors = [oracle.word(ids) for ids in encode_words(inputs)]
            layers, after = oracle.direction(
                d, vectors, states[number % rows] if state == "carry" else begin
            )
            states[number % rows] = after
            log_p = log_softmax(layers[-1] @ weight.T + bias)
            losses += (-log_p[np.arange(len(targets)), vocab.ids(targets)]).tolist()
        means.append(np.mean(losses))
    return float(np.exp(means[0])), float(np.exp(means[1])), float(np.exp(np.mean(means)))


def three(result: Perplexity) -> tuple[float, float, float]:
    return result.forward, result.backward, result.mean


@pytest.mark.parametrize(
    ("state", "batch_size"),
    [*(("carry", n) for n in (1, 2, 7)), ("zeros", 1), ("zeros", 3), ("warm", 1)],
)
def test_perplexity_equals_brute_force(state: str, batch_size: int) -> None:
    result = measure(small(), SENTENCES, state, batch_size)
    assert three(result) == pytest.approx(brute_force(SENTENCES, state, batch_size), rel=1e-9)
    assert (result.sentences, result.predictions, result.unknown) == (5, 16, 2)


@pytest.mark.parametrize("state", ["carry", "zeros"])
@pytest.mark.parametrize(("words", "logits"), [(1, 1), (3, 20), (8, 20)])
def test_perplexity_does_not_depend_on_internal_batches(
    monkeypatch: pytest.MonkeyPatch, state: str, words: int, logits: int
) -> None:
    monkeypatch.setattr("elmokit.lm.losses.BATCH_WORDS", words)
    monkeypatch.setattr(logsumexp, "LOGITS_AT_ONCE", logits)
    result = measure(small(), iter(SENTENCES), state, batch_size=2)
    assert three(result) == pytest.approx(brute_force(SENTENCES, state, rows=2), rel=1e-9)


def test_a_text_without_words_has_no_perplexity() -> None:
    with pytest.raises(ValueError, match="empty"):
        measure(small(), [])


@pytest.mark.parametrize("encoder", ["lstm", "transformer", "gated_cnn"])
def test_perplexity_of_each_encoder_equals_the_formulas(encoder: str) -> None:
    """Each sentence by itself, a direction at a time, in NumPy float64."""
    vocab = VOCAB
    bilm, softmax = BiLM(ENCODERS[encoder]).double(), FullSoftmax(len(vocab), 16).double()
    random_weights(bilm, seed=1, scale=0.5)
    random_weights(softmax, seed=2)
    oracle, weight, bias = (
        LayerOracle(bilm),
        softmax.weight.detach().numpy(),
        softmax.bias.detach().numpy(),
    )
    losses: list[list[float]] = [[], []]
    for words in SENTENCES:
        for d, (inputs, targets) in enumerate(
            [(["<S>", *words], [*words, "</S>"]), ([*words, "</S>"], ["<S>", *words])]
        ):
            vectors = bilm.token_encoder(bilm.token_encoder.ids(inputs, vocab)).detach().numpy()
            top = oracle.layers(vectors)[-1][:, 16 * d : 16 * (d + 1)]
            log_p = log_softmax(top @ weight.T + bias)
            losses[d] += (-log_p[np.arange(len(targets)), vocab.ids(targets)]).tolist()
    expected = [np.exp(np.mean(losses[0])), np.exp(np.mean(losses[1])), np.exp(np.mean(losses))]
    result = measure(Pretrained(bilm, softmax=softmax, vocab=vocab), SENTENCES, "zeros")
    assert three(result) == pytest.approx(expected, rel=1e-9)


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
    of_direction = [
        expected[f"perplexity_batch_1_{direction}"] for direction in ("forward", "backward")
    ]
    assert three(result) == pytest.approx((*of_direction, expected["perplexity_batch_1"]), rel=1e-6)


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
    assert three(result.total) == pytest.approx(
        brute_force([s for s in SENTENCES if s], "zeros"), rel=1e-9
    )
    assert (result.total.sentences, result.total.predictions, result.total.unknown) == (4, 15, 2)
    table = [line.split() for line in str(result).splitlines()]
    assert table[0][:2] == ["perplexity", "forward"] and [row[0] for row in table[1:]] == [
        *names,
        "all",
    ]
    assert len(str(evaluate(names[:1], small())).splitlines()) == 2


def test_evaluate_names_a_file_without_sentences(tmp_path: Path) -> None:
    model, (empty, full) = small(), (tmp_path / "empty.txt", tmp_path / "a.txt")
    empty.write_text("\n\n")
    full.write_text("a b c .\n")
    with pytest.raises(ValueError, match=r"empty\.txt: there is no sentence"):
        evaluate([empty], model)
    alone = evaluate([full], model)
    with pytest.warns(UserWarning, match=r"empty\.txt has no sentences"):
        assert evaluate([empty, full], model) == alone


def test_perplexity_beyond_the_largest_float_is_infinite() -> None:
    found = Perplexity.of(np.array([9000.0, 20.0]), sentences=1, predictions=10, unknown=0)
    assert (found.forward, found.backward) == (math.inf, pytest.approx(math.exp(2)))
    assert (
        PseudoPerplexity.of(np.array([9000.0]), sentences=1, predictions=10, unknown=0).value
        == math.inf
    )
