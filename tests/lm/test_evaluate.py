"""Perplexity, against bilm-tf's own figures and a brute-force computation in float64."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import Oracle, log_softmax, random_weights
from sequence_encoders import LayerOracle
from toy_encoders import CONFIGS as ENCODERS

from elmokit.checkpoints.loading import Pretrained, load, save
from elmokit.config import BiLMConfig, CharCNNConfig, InterleavedConfig, LSTMConfig
from elmokit.lm.evaluate import evaluate, perplexity
from elmokit.lm.measures import Perplexity, PseudoPerplexity
from elmokit.lm.score_files import score_file
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.softmax import FullSoftmax
from elmokit.ops.portable import logsumexp
from elmokit.text.characters import encode_words
from elmokit.text.vocab import Vocab

# The vocabularies of tests have a handful of words.
pytestmark = pytest.mark.filterwarnings("ignore:.* of the words are not in the model's vocabulary")

SENTENCES = [["a", "b", "zebra"], ["c"], ["b", "b", "a", "c", "<S>"], [], ["zebra", "c"]]
CONFIG = BiLMConfig(LSTMConfig(2, 5, 4, cell_clip=1.0, proj_clip=1.0), CharCNNConfig(3, ((1, 3), (3, 4)), 1))


def small() -> tuple[BiLM, FullSoftmax, Vocab]:
    vocab = Vocab(["<S>", "</S>", "<UNK>", "a", "b", "c"])
    bilm, softmax = BiLM(CONFIG).double(), FullSoftmax(len(vocab), 4).double()
    random_weights(bilm, seed=1)
    random_weights(softmax, seed=2)
    return bilm, softmax, vocab


def warm_state(bilm: BiLM) -> BiLMState:
    torch.manual_seed(3)
    zeros = bilm.initial_state(1)
    return BiLMState(torch.randn_like(zeros.h), torch.randn_like(zeros.c))


def brute_force(
    sentences: Sequence[Sequence[str]], state: str = "carry", rows: int = 1, start: BiLMState | None = None
) -> tuple[float, float, float]:
    """Forward, backward and mean perplexity by definition, one sentence, direction and word at a time."""
    bilm, softmax, vocab = small()
    oracle, weight, bias = Oracle(bilm), softmax.weight.detach().numpy(), softmax.bias.detach().numpy()
    means = []
    for d in range(2):
        begin = oracle.zeros()
        if start is not None:
            begin = [(h.numpy(), c.numpy()) for h, c in zip(start.h[d, :, 0], start.c[d, :, 0], strict=True)]
        states, losses = [begin] * rows, []
        for number, words in enumerate(sentences):
            ordered = list(words)[:: -1 if d else 1]
            inputs, targets = ["</S>" if d else "<S>", *ordered], [*ordered, "<S>" if d else "</S>"]
            vectors = [oracle.word(ids) for ids in encode_words(inputs)]
            layers, after = oracle.direction(d, vectors, states[number % rows] if state == "carry" else begin)
            states[number % rows] = after
            log_p = log_softmax(layers[-1] @ weight.T + bias)
            losses += (-log_p[np.arange(len(targets)), vocab.ids(targets)]).tolist()
        means.append(np.mean(losses))
    return float(np.exp(means[0])), float(np.exp(means[1])), float(np.exp(np.mean(means)))


def three(result: Perplexity) -> tuple[float, float, float]:
    return result.forward, result.backward, result.mean


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_perplexity_with_carried_state_equals_brute_force(batch_size: int) -> None:
    result = perplexity(*small(), SENTENCES, batch_size=batch_size)
    assert three(result) == pytest.approx(brute_force(SENTENCES, rows=batch_size), rel=1e-9)
    assert (result.sentences, result.predictions, result.unknown) == (5, 16, 2)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_perplexity_with_zero_states_equals_brute_force(batch_size: int) -> None:
    model = small()
    result = perplexity(*model, SENTENCES, state="zeros", batch_size=batch_size, start=warm_state(model[0]))
    assert three(result) == pytest.approx(brute_force(SENTENCES, "zeros"), rel=1e-9)


def test_perplexity_with_warm_state_equals_brute_force() -> None:
    model = small()
    start = warm_state(model[0])
    result = perplexity(*model, SENTENCES, state="warm", start=start)
    assert three(result) == pytest.approx(brute_force(SENTENCES, "warm", start=start), rel=1e-9)


@pytest.mark.parametrize("state", ["carry", "zeros"])
@pytest.mark.parametrize(("words", "logits"), [(1, 1), (3, 20), (8, 20)])
def test_perplexity_does_not_depend_on_internal_batches(
    monkeypatch: pytest.MonkeyPatch, state: str, words: int, logits: int
) -> None:
    monkeypatch.setattr("elmokit.lm.evaluate.BATCH_WORDS", words)
    monkeypatch.setattr(logsumexp, "LOGITS_AT_ONCE", logits)
    result = perplexity(*small(), iter(SENTENCES), state=state, batch_size=2)
    assert three(result) == pytest.approx(brute_force(SENTENCES, state, rows=2), rel=1e-9)


@pytest.mark.parametrize("batch_size", [1, 256])
def test_perplexity_of_one_sentence_equals_brute_force(batch_size: int) -> None:
    """bilm-tf reports NaN if there are fewer sentences than rows."""
    result = perplexity(*small(), [["a", "b"]], batch_size=batch_size)
    assert three(result) == pytest.approx(brute_force([["a", "b"]]), rel=1e-9)


def test_perplexity_raises_for_empty_text_and_invalid_arguments() -> None:
    with pytest.raises(ValueError, match="the text is empty"):
        perplexity(*small(), [])
    with pytest.raises(ValueError, match="warm state"):
        perplexity(*small(), SENTENCES, state="warm")
    with pytest.raises(ValueError, match="zeros, warm, carry"):
        perplexity(*small(), SENTENCES, state="cold")
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        perplexity(*small(), SENTENCES, batch_size=0)


@pytest.mark.parametrize("state", ["carry", "zeros"])
def test_perplexity_raises_for_interleaved_directions(state: str) -> None:
    _, softmax, vocab = small()
    bilm = BiLM(replace(CONFIG, lstm=None, interleaved=InterleavedConfig(2, 5, 4, projects_layers=False))).double()
    with pytest.raises(ValueError, match="cannot predict words"):
        perplexity(bilm, softmax, vocab, SENTENCES, state)


@pytest.mark.parametrize("encoder", ["lstm", "transformer", "gated_cnn"])
def test_perplexity_of_each_encoder_equals_the_formulas(encoder: str) -> None:
    """Each sentence by itself, a direction at a time, in NumPy float64."""
    _, _, vocab = small()
    bilm, softmax = BiLM(ENCODERS[encoder]).double(), FullSoftmax(len(vocab), 16).double()
    random_weights(bilm, seed=1, scale=0.5)
    random_weights(softmax, seed=2)
    oracle, weight, bias = LayerOracle(bilm), softmax.weight.detach().numpy(), softmax.bias.detach().numpy()
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
    assert three(perplexity(bilm, softmax, vocab, SENTENCES, "zeros")) == pytest.approx(expected, rel=1e-9)


def test_perplexity_accumulates_no_gradients() -> None:
    model = small()
    perplexity(*model, SENTENCES)
    assert all(parameter.grad is None for parameter in model[0].parameters())


# --- bilm-tf's own figures ------------------------------------------------------------------------------------------


@pytest.fixture(params=["as read", "saved and loaded"])
def bilm_tf_model(goldens: Callable[[str], Path], tmp_path: Path, request: pytest.FixtureRequest) -> Pretrained:
    folder = goldens("bilm_tf_training")
    model = load(folder / "weights.hdf5")
    with np.load(folder / "softmax.npz") as file:
        softmax = FullSoftmax(*file["W"].shape)
        softmax.load_state_dict({"weight": torch.from_numpy(file["W"]), "bias": torch.from_numpy(file["b"])})
    pretrained = Pretrained(model.bilm, softmax=softmax, vocab=Vocab.read(folder / "vocab.txt"))
    if request.param == "as read":
        return pretrained
    save(pretrained, tmp_path / "native")
    return load(tmp_path / "native")


def test_perplexity_equals_that_of_bilm_tf(goldens: Callable[[str], Path], bilm_tf_model: Pretrained) -> None:
    heldout = goldens("bilm_tf_training/heldout.txt")
    expected = json.loads(heldout.with_name("expected.json").read_text())
    result = evaluate([heldout], bilm_tf_model).total
    assert result.predictions == expected["words_per_direction_batch_1"]
    of_direction = [expected[f"perplexity_batch_1_{direction}"] for direction in ("forward", "backward")]
    assert three(result) == pytest.approx((*of_direction, expected["perplexity_batch_1"]), rel=1e-6)


def test_perplexity_with_zero_states_does_not_depend_on_batch_size(
    goldens: Callable[[str], Path], bilm_tf_model: Pretrained
) -> None:
    heldout = goldens("bilm_tf_training/heldout.txt")
    one, many = (evaluate([heldout], bilm_tf_model, state="zeros", batch_size=size).total for size in (1, 32))
    assert three(one) == pytest.approx(three(many), rel=1e-6)


# --- Files ----------------------------------------------------------------------------------------------------------


def test_evaluate_reports_each_file_and_the_total(tmp_path: Path) -> None:
    bilm, softmax, vocab = small()
    texts = {"one.txt": SENTENCES[:2], "two.txt": SENTENCES[2:]}
    for name, sentences in texts.items():
        (tmp_path / name).write_text("".join(" ".join(words) + "\n" for words in sentences))
    result = evaluate(
        [tmp_path / name for name in texts], Pretrained(bilm, softmax=softmax, vocab=vocab), state="zeros"
    )
    for name, sentences in texts.items():
        expected = brute_force([s for s in sentences if s], "zeros")
        assert three(result.files[str(tmp_path / name)]) == pytest.approx(expected, rel=1e-9)
    assert three(result.total) == pytest.approx(brute_force([s for s in SENTENCES if s], "zeros"), rel=1e-9)
    assert (result.total.sentences, result.total.predictions, result.total.unknown) == (4, 15, 2)


def test_evaluate_counts_truncated_words(tmp_path: Path) -> None:
    bilm, softmax, vocab = small()
    long = "b" * 49
    for name, text in (("one.txt", f"a {long}\n{long} c\n"), ("two.txt", f"{long}\n"), ("three.txt", "a b c\n")):
        (tmp_path / name).write_text(text)
    result = evaluate([tmp_path], Pretrained(bilm, softmax=softmax, vocab=vocab), state="zeros")
    counts = {Path(name).name: measured.truncated for name, measured in result.files.items()}
    assert counts == {"one.txt": 2, "two.txt": 1, "three.txt": 0} and result.total.truncated == 3


def test_evaluate_accepts_directories_and_repeated_files(tmp_path: Path) -> None:
    bilm, softmax, vocab = small()
    model = Pretrained(bilm, softmax=softmax, vocab=vocab)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("a b\nc\n" if name == "a.txt" else "b zebra\n")
    a, b = str(tmp_path / "a.txt"), str(tmp_path / "b.txt")
    result = evaluate([tmp_path, a], model, state="zeros")
    assert list(result.files) == [a, b, f"{a} (2)"]
    assert result.files[a] == result.files[f"{a} (2)"] and result.total.predictions == 13
    table = [line.split() for line in str(result).splitlines()]
    assert table[0][:2] == ["perplexity", "forward"] and [row[0] for row in table[1:]] == [a, b, a, "all"]
    assert len(str(evaluate([b], model)).splitlines()) == 2
    with pytest.raises(ValueError, match="give at least one"):
        evaluate([], model)


def test_evaluate_names_a_file_without_sentences(tmp_path: Path) -> None:
    bilm, softmax, vocab = small()
    model, (empty, full) = Pretrained(bilm, softmax=softmax, vocab=vocab), (tmp_path / "empty.txt", tmp_path / "a.txt")
    empty.write_text("\n\n")
    full.write_text("a b c .\n")
    for files in ([empty], [empty, empty]):
        with pytest.raises(ValueError, match=r"empty\.txt: there is no sentence to evaluate"):
            evaluate(files, model)
    alone = evaluate([full], model)
    with pytest.warns(UserWarning, match=r"empty\.txt has no sentences, and is left out"):
        assert evaluate([empty, full], model) == alone


def test_evaluate_raises_without_softmax(tmp_path: Path) -> None:
    (tmp_path / "any.txt").write_text("a b\n")
    with pytest.raises(ValueError, match="needs a model with a softmax"):
        evaluate([tmp_path / "any.txt"], Pretrained(small()[0]))


def test_evaluate_checks_its_arguments_before_it_reads(tmp_path: Path) -> None:
    bilm, softmax, vocab = small()
    model = Pretrained(bilm, softmax=softmax, vocab=vocab)
    (tmp_path / "latin.txt").write_bytes(b"\xff\n")
    for message, arguments in {
        r"^batch_size must be at least 1, not 0": {"batch_size": 0},
        r"^state='warm' needs a model with a warm state": {"state": "warm"},
        r"^state must be one of zeros, warm, carry": {"state": "cold"},
    }.items():
        with pytest.raises(ValueError, match=message):
            evaluate([tmp_path / "latin.txt"], model, **arguments)
        with pytest.raises(ValueError, match=message):
            score_file(tmp_path / "latin.txt", tmp_path / "scores.jsonl", model, **arguments)


def test_perplexity_beyond_the_largest_float_is_infinite() -> None:
    found = Perplexity.of(np.array([9000.0, 20.0]), sentences=1, predictions=10, unknown=0)
    assert (found.forward, found.backward) == (math.inf, pytest.approx(math.exp(2)))
    assert PseudoPerplexity.of(9000.0, 1, 10, 0).value == math.inf
