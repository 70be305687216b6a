"""Scores of sentences and files, against brute force in float64, and the perplexity."""

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_language_model import (
    SENTENCES,
    brute_force,
    expected_losses,
    small_language_model,
    three,
)

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, LSTMConfig
from elmokit.embed.embedder import Embedder
from elmokit.lm.candidates import next_words
from elmokit.lm.evaluation import Unit, evaluate, score_file
from elmokit.lm.scoring import Perplexity, Score, score
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.tokenizers import get_tokenizer
from elmokit.text.vocab import Vocab


@pytest.fixture
def model() -> Pretrained:
    return small_language_model()


def losses_of(score: Score) -> np.ndarray:
    """Of both directions, (2, T+1)."""
    return np.stack([score.losses["forward"], score.losses["backward"]])


@pytest.mark.parametrize("state", ["zeros", "warm"])
def test_score_equals_brute_force(model: Pretrained, state: str) -> None:
    results = score(SENTENCES, model, state=state)
    for result, words in zip(results, SENTENCES, strict=True):
        assert result.words == tuple(words)
        assert result.is_unknown.tolist() == [word == "zebra" for word in words]
        log_p = brute_force(model, words, warm=state == "warm")
        expected = expected_losses(model, words, log_p)
        np.testing.assert_allclose(losses_of(result), expected, atol=1e-5)
        bits = np.stack([expected[0, :-1], expected[1, 1:]]) / np.log(2)
        np.testing.assert_allclose(result.surprisal, bits, atol=1e-5)


@pytest.mark.parametrize(
    ("state", "batch_size"), [("zeros", 1), ("warm", 1), ("carry", 1), ("carry", 2)]
)
@pytest.mark.parametrize("batch_words", [1, 4, 9, 10_000])
def test_scores_sum_to_the_perplexity_in_every_state(
    model: Pretrained,
    state: str,
    batch_size: int,
    batch_words: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = Perplexity.of(model, SENTENCES, state, batch_size)
    whole = score(SENTENCES, model, state=state, batch_size=batch_size)
    monkeypatch.setattr("elmokit.lm.losses.CHECKED_WORDS", batch_words)
    checks: list[int] = []
    parts = score(
        SENTENCES, model, state=state, batch_size=batch_size, check=lambda: checks.append(1)
    )
    for one, other in zip(parts, whole, strict=True):
        np.testing.assert_allclose(losses_of(one), losses_of(other), rtol=0, atol=1e-5)
    losses = np.concatenate(list(map(losses_of, parts)), axis=1)
    assert np.exp([*losses.mean(axis=1), losses.mean()]) == pytest.approx(three(expected), rel=1e-5)
    assert len(checks) > (batch_words < 10)

    def check() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        score(SENTENCES, model, check=check)


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


@given(
    st.lists(
        st.sampled_from(["can't", "a", "zebra.", "b,c", "(a)", "U.S.", "\u00ada\u200b", " ", "|"]),
        max_size=9,
    ),
    st.booleans(),
)
def test_parts_add_up_the_surprisals_of_their_words(chunks: list[str], is_masked: bool) -> None:
    """The words of english-1, joined, are the visible characters of the text, which align both."""
    text = "  ".join(chunks)
    words = get_tokenizer("english-1").tokenize(text)
    values = np.arange(1, len(words) + 2, dtype=np.float32)
    unknown = np.arange(len(words)) % 2 == 1
    losses = {"forward": values, "backward": 2 * values}
    if is_masked:
        losses = {"masked": values[:-1]}
    score = Score(tuple(words), losses, unknown, text=text)
    numbers = [
        number for number, word in enumerate(words) for _ in word
    ]  # of each visible character
    parts = score.parts()
    assert [part.text for part in parts] == text.split()
    assert all(text[part.start : part.end] == part.text for part in parts)
    for part in parts:
        visible = len(re.sub("[\u00ad\u200b]", "", part.text))
        inside = list(dict.fromkeys(numbers[:visible]))
        numbers = numbers[visible:]
        assert part.bits == pytest.approx(score.surprisal[:, inside].sum(axis=1), rel=1e-5)
        assert part.unknown == unknown[inside].sum()
        assert len(part.bits) == len(losses)
    with pytest.raises(ValueError, match="follow"):
        score.parts(["zzz"])


def test_score_accepts_a_word_id_model() -> None:
    vocab = Vocab([*Vocab.SPECIALS, "a", "b"])
    bilm = BiLM(BiLMConfig(LSTMConfig(1, 4, 4), None, 5))
    softmax = FullSoftmax(5, 4)
    model = Pretrained(bilm, softmax=softmax, vocab=vocab)
    one, other = (score([["a", word]], model)[0] for word in ("<UNK>", "never-seen"))
    np.testing.assert_array_equal(losses_of(one), losses_of(other))
    known = sum(math.exp(word.log_probability) for word in next_words(["a"], model))
    assert known + math.exp(-one.losses["forward"][1]) == pytest.approx(1)


# --- Files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [True, False])
def test_score_file_writes_one_object_per_sentence(
    model: Pretrained, tmp_path: Path, bits: bool
) -> None:
    text = tmp_path / "text.txt"
    output = tmp_path / "scores.jsonl"
    long = "b" * 49
    text.write_text(f"a {long} zebra\n\n  \nc\n")
    total = score_file(text, output, model, bits=bits)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["line"] for line in lines] == [1, 4]
    for line, expected in zip(lines, score([["a", long, "zebra"], ["c"]], model), strict=True):
        assert line["words"] == list(expected.words)
        assert line["unknown"] == expected.is_unknown.sum()
        assert line["unit"] == ("bits" if bits else "nats")
        log_p = -losses_of(expected) / (np.log(2) if bits else 1)
        np.testing.assert_allclose([line["forward"], line["backward"]], log_p, rtol=1e-6)
        assert line["perplexity"] == pytest.approx(expected.perplexity.values)
    assert three(total) == pytest.approx(
        three(evaluate([text], model, state="zeros").total), rel=1e-6
    )
    assert (total.sentences, total.predictions, total.unknown, total.truncated) == (2, 6, 2, 1)


def test_score_file_replaces_neither_its_input_nor_unasked_another_file(
    model: Pretrained, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    output = tmp_path / "scores.jsonl"
    text.write_text("a b\n")
    output.write_text("mine")
    with pytest.raises(ValueError, match="is the input"):
        score_file(text, text, model, overwrite=True)
    with pytest.raises(FileExistsError, match="overwrite"):
        score_file(text, output, model)
    assert (text.read_text(), output.read_text()) == ("a b\n", "mine")
    score_file(text, output, model, overwrite=True)
    assert json.loads(output.read_text())["words"] == ["a", "b"]


@pytest.mark.parametrize("bits", [True, False])
def test_score_file_writes_a_row_per_word_without_boundaries(
    model: Pretrained, tmp_path: Path, bits: bool
) -> None:
    text = tmp_path / "text.txt"
    output = tmp_path / "surprisal.tsv"
    text.write_text('a "b zebra\n\n  \nc\n')  # a quote that opens and never closes
    total = score_file(text, output, model, bits=bits)
    with output.open(newline="") as file:
        header, *rows = csv.reader(file, "excel-tab")
    unit, scale = ("bits", 1) if bits else ("nats", np.log(2))
    assert header[:6] == ["line", "position", "word", "start", "end", "text_word"]
    assert header[6:] == [f"forward_{unit}", f"backward_{unit}", "unknown"]
    expected = score([["a", '"b', "zebra"], ["c"]], model)
    assert [" ".join(row[:6] + row[8:]) for row in rows] == [
        "1 1 a 0 1 1 0", '1 2 "b 2 4 2 1', "1 3 zebra 5 10 3 1", "4 1 c 0 1 1 0"
    ]  # fmt: skip
    surprisal = np.concatenate([result.surprisal for result in expected], axis=1) * scale
    np.testing.assert_allclose(np.array([row[6:8] for row in rows], float).T, surprisal, atol=1e-5)
    assert (total.sentences, total.unknown) == (2, 2)


@pytest.mark.parametrize("per", ["word", "region"])
def test_score_file_adds_up_words_and_regions_of_the_given_text(
    model: Pretrained, tmp_path: Path, per: Unit
) -> None:
    model.tokenizer = "english-1"
    text = tmp_path / "text.txt"
    output = tmp_path / "surprisal.tsv"
    text.write_text("a  can't |b.||\n" if per == "region" else "a  can't  b.\n")
    score_file(text, output, model, per=per, bits=True)
    with output.open(newline="") as file:
        header, *rows = csv.reader(file, "excel-tab")
    assert header[:5] == ["line", "position", per, "start", "end"]
    assert header[5:] == ["forward_bits", "backward_bits", "unknown"]
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
    assert lines == [1, 3]
    assert total.sentences == 2
    assert evaluate([tmp_path / "text.txt"], model, state="zeros").total.sentences == 2
    (tmp_path / "none.txt").write_text("\u200b\n")
    with pytest.raises(ValueError, match=r"none\.txt has no sentence to score"):
        score_file(tmp_path / "none.txt", tmp_path / "none.jsonl", model)
    assert not (tmp_path / "none.jsonl").exists()
