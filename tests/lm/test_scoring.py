"""Scores of sentences and files, against brute force in float64, the perplexity, and bilm-tf's
figures.
"""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_language_model import (
    SENTENCES,
    SPECIALS,
    brute_force,
    small_language_model,
    three,
    vocab_of,
)

from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.embed.embedder import Embedder
from elmokit.lm.candidates import next_words
from elmokit.lm.evaluation import evaluate, measure
from elmokit.lm.scoring import MaskedScore, SentenceScore, Unit, score, score_file, scores
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.tokenizers import get_tokenizer
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
        np.testing.assert_allclose(
            each.forward, forward[places, ids([*each.words, "</S>"])], atol=1e-5
        )
        np.testing.assert_allclose(
            each.backward, backward[places, ids(["<S>", *each.words])], atol=1e-5
        )


@pytest.mark.parametrize(
    ("state", "batch_size"), [("zeros", 1), ("warm", 1), ("carry", 1), ("carry", 2)]
)
@pytest.mark.parametrize("batch_words", [1, 9, 10_000])
def test_scores_sum_to_the_perplexity_in_every_state(
    model: Pretrained,
    state: str,
    batch_size: int,
    batch_words: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elmokit.lm.losses.BATCH_WORDS", batch_words)
    result = score(SENTENCES, model, state=state, batch_size=batch_size)
    expected = measure(model, SENTENCES, state, batch_size)
    means = [
        np.mean(np.concatenate([getattr(each, d) for each in result]))
        for d in ("forward", "backward")
    ]
    assert np.exp([-means[0], -means[1], -np.mean(means)]).tolist() == pytest.approx(
        three(expected), rel=1e-5
    )


@pytest.mark.parametrize("batch_words", [1, 4, 9])
def test_batches_change_no_score_and_a_check_may_end_them(
    model: Pretrained, batch_words: int
) -> None:
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
    for each in score(SENTENCES, model):
        alone = measure(model, [each.words], "zeros")
        assert three(each.perplexity) == pytest.approx(three(alone), rel=1e-6)
        counts = each.perplexity.sentences, each.perplexity.predictions, each.perplexity.unknown
        assert counts == (alone.sentences, alone.predictions, alone.unknown)


def test_score_splits_strings_with_the_models_tokenizer(model: Pretrained) -> None:
    model.tokenizer = "english-1"
    (result,) = score(["a can't."], model)
    assert result.words == ("a", "ca", "n't", ".")
    assert score([], model) == []
    (of_embedder,) = score(iter(["a can't."]), Embedder(model, device="cpu"))  # type: ignore[arg-type]
    np.testing.assert_allclose(of_embedder.surprisal, result.surprisal, atol=1e-5)
    for wrong in ("a b", {"text": ["a b"]}):
        with pytest.raises(ValueError, match="a list"):
            score(wrong, model)  # type: ignore[arg-type]


def test_surprisal_is_that_of_brute_force_in_bits(model: Pretrained) -> None:
    for each in score(SENTENCES, model):
        ids, places = vocab_of(model).ids(each.words), np.arange(len(each.words))
        forward, backward = brute_force(model, each.words)
        expected = -np.stack([forward[places, ids], backward[places + 1, ids]]) / np.log(2)
        np.testing.assert_allclose(each.surprisal, expected, atol=1e-5)
        assert each.is_unknown.tolist() == [word == "zebra" for word in each.words]


@given(
    st.lists(
        st.sampled_from(["can't", "a", "zebra.", "b,c", "(a)", "U.S.", "\u00ada\u200b", " ", "|"]),
        max_size=9,
    ),
    st.sampled_from(["sentence", "masked"]),
)
def test_parts_add_up_the_surprisals_of_their_words(chunks: list[str], kind: str) -> None:
    """The words of english-1, joined, are the visible characters of the text: counting characters
    aligns both.
    """
    text = "  ".join(chunks)
    words = get_tokenizer("english-1").tokenize(text)
    values, unknown = np.arange(1, len(words) + 2, dtype=np.float32), np.arange(len(words)) % 2 == 1
    shared: dict[str, Any] = {"words": tuple(words), "is_unknown": unknown, "text": text}
    score = SentenceScore(**shared, forward=-values, backward=-2 * values)
    rows = 2
    if kind == "masked":
        score, rows = MaskedScore(**shared, masked=-values[:-1]), 1
    numbers = [
        number for number, word in enumerate(words) for _ in word
    ]  # of each visible character
    parts = score.parts()
    assert [part.text for part in parts] == text.split() and all(
        text[part.start : part.end] == part.text for part in parts
    )
    for part in parts:
        visible = len(re.sub("[\u00ad\u200b]", "", part.text))
        inside, numbers = list(dict.fromkeys(numbers[:visible])), numbers[visible:]
        assert part.bits == pytest.approx(
            np.atleast_2d(score.surprisal)[:, inside].sum(axis=1), rel=1e-5
        )
        assert part.unknown == unknown[inside].sum() and len(part.bits) == rows
    with pytest.raises(ValueError, match="follow"):
        score.parts(["zzz"])


def test_score_accepts_a_word_id_model() -> None:
    vocab = Vocab([*SPECIALS, "a", "b"])
    bilm, softmax = BiLM(BiLMConfig(LSTMConfig(1, 4, 4), None, 5)), FullSoftmax(5, 4)
    model = Pretrained(bilm, softmax=softmax, vocab=vocab)
    one, other = (score([["a", word]], model)[0] for word in ("<UNK>", "never-seen"))
    np.testing.assert_array_equal(one.forward, other.forward)
    known = sum(math.exp(each.log_probability) for each in next_words(["a"], model))
    assert known + math.exp(one.forward[1]) == pytest.approx(1)


# --- Files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [True, False])
def test_score_file_writes_one_object_per_sentence(
    model: Pretrained, tmp_path: Path, bits: bool
) -> None:
    text, output, long = tmp_path / "text.txt", tmp_path / "scores.jsonl", "b" * 49
    text.write_text(f"a {long} zebra\n\n  \nc\n")
    total = score_file(text, output, model, bits=bits)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["line"] for line in lines] == [1, 4]
    for line, each in zip(lines, score([["a", long, "zebra"], ["c"]], model), strict=True):
        assert (line["words"], line["unknown"]) == (list(each.words), each.unknown)
        assert line["unit"] == ("bits" if bits else "nats")
        for direction in ("forward", "backward"):
            nats = getattr(each, direction)
            assert line[direction] == pytest.approx(
                (nats / np.log(2) if bits else nats).tolist(), rel=1e-6
            )
        assert line["perplexity"]["mean"] == pytest.approx(each.perplexity.mean)
    assert three(total) == pytest.approx(
        three(evaluate([text], model, state="zeros").total), rel=1e-6
    )
    assert (total.sentences, total.predictions, total.unknown, total.truncated) == (2, 6, 2, 1)


def test_score_file_replaces_neither_its_input_nor_unasked_another_file(
    model: Pretrained, tmp_path: Path
) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "scores.jsonl"
    text.write_text("a b\n")
    output.write_text("mine")
    with pytest.raises(ValueError, match="is the input"):
        score_file(text, text, model, overwrite=True)
    with pytest.raises(FileExistsError, match="overwrite"):
        score_file(text, output, model)
    assert (text.read_text(), output.read_text()) == ("a b\n", "mine")
    score_file(text, output, model, overwrite=True)
    assert json.loads(output.read_text())["words"] == ["a", "b"]


def test_score_file_equals_bilm_tf(goldens: Callable[[str], Path], tmp_path: Path) -> None:
    """bilm-tf's perplexity (state carried), and brute force on the first sentences (zero
    states).
    """
    folder = goldens("bilm_tf_training/heldout.txt").parent
    with np.load(folder / "softmax.npz") as file:
        softmax = FullSoftmax(*file["W"].shape)
        softmax.load_state_dict(
            {"weight": torch.from_numpy(file["W"]), "bias": torch.from_numpy(file["b"])}
        )
    vocab = Vocab.read(folder / "vocab.txt")
    model = Pretrained(load(folder / "weights.hdf5").bilm, softmax=softmax, vocab=vocab)
    expected = json.loads((folder / "expected.json").read_text())
    total = score_file(folder / "heldout.txt", tmp_path / "scores.jsonl", model, "carry")
    directions = [
        expected[f"perplexity_batch_1_{direction}"] for direction in ("forward", "backward")
    ]
    assert three(total) == pytest.approx((*directions, expected["perplexity_batch_1"]), rel=1e-6)
    sentences = [line.split() for line in (folder / "heldout.txt").read_text().splitlines()[:5]]
    for each in score(sentences, model):
        forward, backward = brute_force(model, each.words)
        places = np.arange(len(each.words) + 1)
        np.testing.assert_allclose(
            each.forward, forward[places, vocab.ids([*each.words, "</S>"])], atol=1e-4
        )
        np.testing.assert_allclose(
            each.backward, backward[places, vocab.ids(["<S>", *each.words])], atol=1e-4
        )


@pytest.mark.parametrize("bits", [True, False])
def test_score_file_writes_a_row_per_word_without_boundaries(
    model: Pretrained, tmp_path: Path, bits: bool
) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "surprisal.tsv"
    text.write_text('a "b zebra\n\n  \nc\n')  # a quote that opens and never closes
    total = score_file(text, output, model, tsv=True, bits=bits)
    header, *rows = [line.split("\t") for line in output.read_text().splitlines()]
    unit, scale = ("bits", 1) if bits else ("nats", np.log(2))
    assert header[:6] == ["line", "position", "word", "start", "end", "text_word"]
    assert header[6:] == [f"forward_{unit}", f"backward_{unit}", "unknown"]
    expected = score([["a", '"b', "zebra"], ["c"]], model)
    assert [" ".join(row[:6] + row[8:]) for row in rows] == [
        "1 1 a 0 1 1 0", '1 2 "b 2 4 2 1', "1 3 zebra 5 10 3 1", "4 1 c 0 1 1 0"
    ]  # fmt: skip
    surprisal = np.concatenate([each.surprisal for each in expected], axis=1) * scale
    np.testing.assert_allclose(np.array([row[6:8] for row in rows], float).T, surprisal, atol=1e-5)
    assert (total.sentences, total.unknown) == (2, 2)


@pytest.mark.parametrize("per", ["word", "region"])
def test_score_file_adds_up_words_and_regions_of_the_given_text(
    model: Pretrained, tmp_path: Path, per: Unit
) -> None:
    model.tokenizer = "english-1"
    text, output = tmp_path / "text.txt", tmp_path / "surprisal.tsv"
    text.write_text("a  can't |b.||\n" if per == "region" else "a  can't  b.\n")
    score_file(text, output, model, per=per, bits=True)
    header, *rows = [line.split("\t") for line in output.read_text().splitlines()]
    assert header == [
        "line",
        "position",
        per,
        "start",
        "end",
        "forward_bits",
        "backward_bits",
        "unknown",
    ]
    (tokens,) = score([["a", "ca", "n't", "b", "."]], model)
    groups = [[0], [1, 2], [3, 4]] if per == "word" else [[0, 1, 2], [3, 4], [], []]
    words = (
        ["a 0 1", "can't 3 8", "b. 10 12"]
        if per == "word"
        else ["a can't 0 8", "b. 10 12", " 12 12", " 12 12"]
    )
    assert [" ".join(row[2:5]) for row in rows] == words
    for row, group in zip(rows, groups, strict=True):
        assert [float(cell) for cell in row[5:7]] == pytest.approx(
            tokens.surprisal[:, group].sum(axis=1), abs=2e-6
        )
        assert int(row[7]) == tokens.is_unknown[group].sum()


def test_score_file_skips_lines_without_words_as_evaluate_does(
    model: Pretrained, tmp_path: Path
) -> None:
    model.tokenizer = "english-1"
    (tmp_path / "text.txt").write_text("a b\n\u200b\nc\n")  # a zero-width space is no word
    total = score_file(tmp_path / "text.txt", tmp_path / "scores.jsonl", model)
    lines = [
        json.loads(line)["line"] for line in (tmp_path / "scores.jsonl").read_text().splitlines()
    ]
    assert lines == [1, 3] and total.sentences == 2
    assert evaluate([tmp_path / "text.txt"], model, state="zeros").total.sentences == 2
    (tmp_path / "none.txt").write_text("\u200b\n")
    with pytest.raises(ValueError, match=r"none\.txt has no sentence to score"):
        score_file(tmp_path / "none.txt", tmp_path / "none.jsonl", model)
    assert not (tmp_path / "none.jsonl").exists()
