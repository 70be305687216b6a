"""Scores, substitutes and next words, against brute force in float64, perplexity and bilm-tf's figures."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import Oracle, log_softmax, random_weights

import elmokit.lm.scoring as scoring
from elmokit.checkpoints.loading import Pretrained, load
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.lm.evaluate import Perplexity, evaluate, perplexity
from elmokit.lm.scoring import Candidate, next_words, score, score_file, substitutes
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.characters import encode_words
from elmokit.text.vocab import Vocab

# The vocabularies of tests have a handful of words.
pytestmark = pytest.mark.filterwarnings("ignore:.* of the words are not in the model's vocabulary")

SENTENCES = [["a", "b", "zebra"], ["c"], ["b", "b", "a", "c", "<S>"], [], ["zebra", "c"]]
CONFIG = BiLMConfig(LSTMConfig(2, 5, 4, cell_clip=1.0, proj_clip=1.0), CharCNNConfig(3, ((1, 3), (3, 4)), 1))
SPECIALS = ["<S>", "</S>", "<UNK>"]


@pytest.fixture
def model() -> Pretrained:
    """Random weights, and a vocabulary whose special tokens are not first, so that their positions matter."""
    vocab = Vocab(["a", "<S>", "b", "</S>", "c", "<UNK>", "d", "e"])
    bilm, softmax = BiLM(CONFIG), FullSoftmax(len(vocab), 4)
    random_weights(bilm, seed=1)
    random_weights(softmax, seed=2)
    torch.manual_seed(3)
    zeros = bilm.initial_state(1)
    warm = BiLMState(torch.randn_like(zeros.h), torch.randn_like(zeros.c))
    return Pretrained(bilm, softmax=softmax, vocab=vocab, warm_state=warm)


def brute_force(model: Pretrained, words: Sequence[str], warm: bool = False) -> np.ndarray:
    """Log p by definition, (2, T+1, V): row k predicts word k forward, word k-1 backward."""
    assert model.softmax is not None
    oracle, weight, bias = Oracle(model.bilm), *(p.detach().double().numpy() for p in model.softmax.parameters())
    log_p = []
    for d in range(2):
        state = oracle.zeros()
        if warm:
            assert model.warm_state is not None
            h, c = (part[d, :, 0].double().numpy() for part in (model.warm_state.h, model.warm_state.c))
            state = list(zip(h, c, strict=True))
        inputs = ["</S>", *reversed(words)] if d else ["<S>", *words]
        layers, _ = oracle.direction(d, [oracle.word(ids) for ids in encode_words(inputs)], state)
        log_p.append(log_softmax(layers[-1] @ weight.T + bias)[:: -1 if d else 1])
    return np.stack(log_p)


def vocab_of(model: Pretrained) -> Vocab:
    assert model.vocab is not None
    return model.vocab


def three(result: Perplexity) -> tuple[float, float, float]:
    return result.forward, result.backward, result.mean


# --- Scores --------------------------------------------------------------------------------------------------------


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


# --- Substitutes and next words ------------------------------------------------------------------------------------


def expected_substitutes(model: Pretrained, words: Sequence[str], direction: str) -> list[list[tuple[str, float]]]:
    """For each position all words but the special tokens, the most likely first."""
    forward, backward = brute_force(model, words)
    by_frequency = forward[:-1] + backward[1:] + np.log(np.arange(len(vocab_of(model))) + 1)  # p(word) = 1 / rank
    value = {"forward": forward[:-1], "backward": backward[1:], "both": log_softmax(by_frequency)}[direction]
    named = [zip(vocab_of(model).words, row.tolist(), strict=True) for row in value]
    return [sorted((pair for pair in row if pair[0] not in SPECIALS), key=lambda pair: -pair[1]) for row in named]


@pytest.mark.parametrize("direction", ["both", "forward", "backward"])
@pytest.mark.parametrize("chunk_logits", [1, 20, 1000])
def test_substitutes_equal_brute_force_for_every_chunk_size(
    model: Pretrained, direction: str, chunk_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "CHUNK_LOGITS", chunk_logits)
    for words in SENTENCES:
        result = substitutes(words, model, top=100, direction=direction)
        expected = expected_substitutes(model, words, direction)
        assert [[each.word for each in row] for row in result] == [[word for word, _ in row] for row in expected]
        for row, expected_row in zip(result, expected, strict=True):
            assert [each.log_probability for each in row] == pytest.approx([v for _, v in expected_row], abs=1e-5)


def test_substitutes_at_positions_equal_those_of_the_whole_sentence(model: Pretrained) -> None:
    every = substitutes(SENTENCES[2], model, top=2)
    assert substitutes(SENTENCES[2], model, positions=[3, 0], top=2) == [every[3], every[0]]
    assert all(len(row) == 2 for row in every)


@pytest.mark.parametrize("ask", [substitutes, next_words])
def test_a_list_of_sentences_is_not_taken_for_one(ask: Callable[..., object], model: Pretrained) -> None:
    with pytest.raises(ValueError, match="'a b' is not a word: give one sentence, as a string or a list"):
        ask(["a b", "b c"], model)
    assert ask(["a", "10 000", "d"], model)


def test_a_sentence_that_is_no_list_of_words_is_refused(model: Pretrained) -> None:
    for wrong in ([["a", "b"]], [1, 2], None):
        for ask in (substitutes, next_words, lambda sentence, model: score([sentence], model)):
            with pytest.raises(ValueError, match="a sentence is a string or a list of words, not "):
                ask(wrong, model)  # type: ignore[arg-type]
    words = np.array(["a", "b"])
    assert substitutes(words, model) == substitutes(["a", "b"], model)  # type: ignore[arg-type]


def test_substitutes_of_a_model_on_the_cpu_where_another_device_is_the_default(model: Pretrained) -> None:
    expected = substitutes(["a", "zebra"], model)
    with torch.device("meta"):  # stands for a GPU
        assert substitutes(["a", "zebra"], model) == expected


def test_a_model_of_no_numbers_has_no_candidates(model: Pretrained) -> None:
    assert model.softmax is not None
    with torch.no_grad():
        model.softmax.bias[3] = float("nan")
    with pytest.raises(ValueError, match=r"the model's predictions are NaN"):
        substitutes(["a"], model)


def test_substitutes_of_a_word_are_no_punctuation_marks(model: Pretrained) -> None:
    assert model.softmax is not None
    words = ["a", "<S>", "--", "</S>", ".", "<UNK>", "d", "'s"]
    marked = Pretrained(model.bilm, softmax=model.softmax, vocab=Vocab(words))
    of_word, of_mark = substitutes(["d", "."], marked, top=100)
    assert {each.word for each in of_word} == {"a", "d", "'s"}
    assert {each.word for each in of_mark} == {"a", "d", "'s", "--", "."}


def test_substitutes_are_often_plausible() -> None:
    """Mean precision of the first ten; docs/log.md has the figures of the rankings that were tried."""
    model, precisions = load(), []
    for item in json.loads(Path(__file__).with_name("substitutes.json").read_text(encoding="utf-8")):
        words, plausible = item["sentence"].split(), {word.lower() for word in item["plausible"]}
        (best,) = substitutes(words, model, positions=[words.index(item["word"])], top=11)
        first = [each.word.lower() for each in best if each.word != item["word"]][:10]
        precisions.append(sum(word in plausible for word in first) / 10)
    assert np.mean(precisions) > 0.32  # 0.28 by the product of both directions


def test_substitutes_do_not_depend_on_the_replaced_word(model: Pretrained) -> None:
    one, other = (substitutes(["a", word, "b"], model, positions=[1]) for word in ("c", "zebra"))
    assert [each.word for each in one[0]] == [each.word for each in other[0]]
    values = ([each.log_probability for each in result[0]] for result in (one, other))
    assert next(values) == pytest.approx(next(values), abs=1e-6)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("words", [["a", "zebra", "c"], []])
def test_next_words_equal_the_full_distribution(model: Pretrained, direction: str, words: list[str]) -> None:
    result = next_words(words, model, top=len(vocab_of(model)), direction=direction)
    log_p = brute_force(model, words)[1, 0] if direction == "backward" else brute_force(model, words)[0, -1]
    assert sum(math.exp(each.log_probability) for each in result) == pytest.approx(1, abs=1e-6)
    assert [each.word for each in result] == [vocab_of(model).words[i] for i in np.argsort(-log_p)]
    assert [each.log_probability for each in result] == pytest.approx(np.sort(log_p)[::-1].tolist(), abs=1e-5)
    assert next_words(words, model, top=1, direction=direction) == result[:1]


def test_next_words_start_from_the_warm_state_on_request(model: Pretrained) -> None:
    (result,) = next_words(["a", "c"], model, top=1, state="warm")
    assert result.log_probability == pytest.approx(brute_force(model, ["a", "c"], warm=True)[0, -1].max(), abs=1e-5)
    assert result != next_words(["a", "c"], model, top=1)[0]


def test_next_words_contain_the_score_of_the_actual_word(model: Pretrained) -> None:
    (result,) = score([["a", "b"]], model)
    assert Candidate("</S>", pytest.approx(float(result.forward[-1]), abs=1e-6)) in next_words(["a", "b"], model, top=8)
    assert Candidate("b", pytest.approx(float(result.forward[1]), abs=1e-6)) in next_words(["a"], model, top=8)


def test_score_accepts_a_word_id_model() -> None:
    vocab = Vocab([*SPECIALS, "a", "b"])
    bilm, softmax = BiLM(BiLMConfig(LSTMConfig(1, 4, 4), None, 5)), FullSoftmax(5, 4)
    model = Pretrained(bilm, softmax=softmax, vocab=vocab)
    one, other = (score([["a", word]], model)[0] for word in ("<UNK>", "never-seen"))
    np.testing.assert_array_equal(one.forward, other.forward)
    assert sum(math.exp(each.log_probability) for each in next_words(["a"], model)) == pytest.approx(1)


# --- Errors --------------------------------------------------------------------------------------------------------


def test_scoring_raises_for_invalid_arguments(model: Pretrained) -> None:
    with pytest.raises(ValueError, match="no word 2 in a sentence of 2 words"):
        substitutes(["a", "b"], model, positions=[2])
    with pytest.raises(ValueError, match="top must be at least 1"):
        next_words(["a"], model, top=0)
    with pytest.raises(ValueError, match="forward or backward"):
        next_words(["a"], model, direction="both")
    with pytest.raises(ValueError, match="zeros, warm, carry"):
        score(SENTENCES, model, state="cold")
    for ask in (next_words, substitutes):
        with pytest.raises(ValueError, match="a single sentence has no sentence before it"):
            ask(["a"], model, state="carry")
    without = Pretrained(model.bilm, vocab=model.vocab)
    with pytest.raises(ValueError, match="needs a model with a softmax"):
        next_words(["a"], without)
    with pytest.raises(ValueError, match="warm state"):
        score(SENTENCES, Pretrained(model.bilm, softmax=model.softmax, vocab=model.vocab), state="warm")
    with pytest.raises(ValueError, match="the softmax has 8 words but the vocabulary 3"):
        score(SENTENCES, Pretrained(model.bilm, softmax=model.softmax, vocab=Vocab(SPECIALS)))


# --- Files, and bilm-tf's own figures ------------------------------------------------------------------------------


def test_score_file_writes_one_object_per_sentence(model: Pretrained, tmp_path: Path) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "scores.jsonl"
    text.write_text("a b zebra\n\n  \nc\n")
    total = score_file(text, output, model)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["line"] for line in lines] == [1, 4]
    for line, each in zip(lines, score([["a", "b", "zebra"], ["c"]], model), strict=True):
        assert line["words"] == list(each.words) and line["unknown"] == each.unknown
        assert line["forward"] == pytest.approx(each.forward.tolist())
        assert line["backward"] == pytest.approx(each.backward.tolist())
        assert line["perplexity"]["mean"] == pytest.approx(each.perplexity.mean)
    evaluated = evaluate([text], model, state="zeros").total
    assert three(total) == pytest.approx(three(evaluated), rel=1e-6)
    assert (total.sentences, total.predictions, total.unknown, total.truncated) == (2, 6, 1, 0)


def test_score_file_counts_truncated_words(model: Pretrained, tmp_path: Path) -> None:
    long = "b" * 49
    (tmp_path / "text.txt").write_text(f"a {long}\n\n{long} {long} c\n")
    assert score_file(tmp_path / "text.txt", tmp_path / "scores.jsonl", model).truncated == 3
    assert [each.perplexity.truncated for each in score([["a", long], ["c"]], model)] == [1, 0]


def test_score_file_without_sentences_writes_nothing(model: Pretrained, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ValueError, match=r"empty\.txt has no sentence"):
        score_file(tmp_path / "empty.txt", tmp_path / "scores.jsonl", model)
    assert not (tmp_path / "scores.jsonl").exists()


def test_score_file_replaces_neither_its_input_nor_unasked_another_file(
    model: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "scores.jsonl"
    text.write_text("a b\n")
    output.write_text("mine")
    with pytest.raises(ValueError, match="is the input"):
        score_file(text, text, model, overwrite=True)
    with pytest.raises(FileExistsError, match="ask to overwrite it"):
        score_file(text, output, model)
    assert (text.read_text(), output.read_text()) == ("a b\n", "mine")
    output.unlink()
    monkeypatch.setattr(scoring, "warn_of_unknown", None)  # not reached
    monkeypatch.setattr(scoring, "check_start", lambda *_: output.write_text("mine"))  # it appears meanwhile
    with pytest.raises(FileExistsError, match="ask to overwrite it"):
        score_file(text, output, model)
    assert output.read_text() == "mine"
    monkeypatch.undo()
    score_file(text, output, model, overwrite=True)
    assert json.loads(output.read_text())["words"] == ["a", "b"]


def test_score_file_equals_bilm_tf(goldens: Callable[[str], Path], tmp_path: Path) -> None:
    """bilm-tf's perplexity (state carried), and brute force on the first sentences (zero states)."""
    folder = goldens("bilm_tf_training/heldout.txt").parent
    with np.load(folder / "softmax.npz") as file:
        softmax = FullSoftmax(*file["W"].shape)
        softmax.load_state_dict({"weight": torch.from_numpy(file["W"]), "bias": torch.from_numpy(file["b"])})
    vocab = Vocab.read(folder / "vocab.txt")
    model = Pretrained(load(folder / "weights.hdf5").bilm, softmax=softmax, vocab=vocab)
    expected = json.loads((folder / "expected.json").read_text())
    total = score_file(folder / "heldout.txt", tmp_path / "scores.jsonl", model, "carry")
    directions = [expected[f"perplexity_batch_1_{direction}"] for direction in ("forward", "backward")]
    assert three(total) == pytest.approx((*directions, expected["perplexity_batch_1"]), rel=1e-6)
    sentences = [line.split() for line in (folder / "heldout.txt").read_text().splitlines()[:5]]
    for each in score(sentences, model):
        forward, backward = brute_force(model, each.words)
        places = np.arange(len(each.words) + 1)
        np.testing.assert_allclose(each.forward, forward[places, vocab.ids([*each.words, "</S>"])], atol=1e-4)
        np.testing.assert_allclose(each.backward, backward[places, vocab.ids(["<S>", *each.words])], atol=1e-4)


# --- Surprisal -----------------------------------------------------------------------------------------------------


def test_surprisal_is_that_of_brute_force_in_bits(model: Pretrained) -> None:
    for each in score(SENTENCES, model):
        ids, places = vocab_of(model).ids(each.words), np.arange(len(each.words))
        forward, backward = brute_force(model, each.words)
        expected = -np.stack([forward[places, ids], backward[places + 1, ids]]) / np.log(2)
        np.testing.assert_allclose(each.surprisal, expected, atol=1e-5)
        assert each.is_unknown.tolist() == [word == "zebra" for word in each.words]


@pytest.mark.parametrize("bits", [True, False])
def test_score_file_writes_a_row_per_word_without_boundaries(model: Pretrained, tmp_path: Path, bits: bool) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "surprisal.tsv"
    text.write_text('a "b zebra\n\n  \nc\n')  # a quote that opens and never closes
    total = score_file(text, output, model, tsv=True, bits=bits)
    header, *rows = [line.split("\t") for line in output.read_text().splitlines()]
    unit, scale = ("bits", 1) if bits else ("nats", np.log(2))
    assert header == ["sentence", "position", "word", f"forward_{unit}", f"backward_{unit}", "unknown"]
    expected = score([["a", '"b', "zebra"], ["c"]], model)
    assert [row[:3] + row[5:] for row in rows] == [
        ["1", "1", "a", "0"], ["1", "2", '"b', "1"], ["1", "3", "zebra", "1"], ["4", "1", "c", "0"],
    ]  # fmt: skip
    surprisal = np.concatenate([each.surprisal for each in expected], axis=1) * scale
    np.testing.assert_allclose(np.array([row[3:5] for row in rows], float).T, surprisal, atol=1e-5)
    assert (total.sentences, total.unknown) == (2, 2)


def test_score_file_writes_logarithms_to_base_2_where_bits_are_asked_for(model: Pretrained, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b zebra\n")
    found = {}
    for bits in (False, True):
        score_file(tmp_path / "text.txt", tmp_path / f"{bits}.jsonl", model, bits=bits)
        found[bits] = json.loads((tmp_path / f"{bits}.jsonl").read_text())
    assert (found[False]["unit"], found[True]["unit"]) == ("nats", "bits")
    for direction in ("forward", "backward"):
        assert np.exp(found[False][direction]) == pytest.approx(np.exp2(found[True][direction]), rel=1e-5)
    assert found[False]["perplexity"] == found[True]["perplexity"]
