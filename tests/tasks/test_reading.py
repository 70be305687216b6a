"""Positions of answers; BiDAF by its formulas and brute force; the scores of SQuAD."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from task_oracles import BiDAFOracle, GivenWords, random_network, random_words, sentences_of

from elmokit.tasks.reading import (
    Answer,
    BiDAF,
    Question,
    ReadingBatch,
    ReadingConfig,
    ReadingTask,
    answer_f1,
    normalized_answer,
    words_of_answer,
)

CONTEXT = "The oil crisis began in October 1973, when OPEC (the cartel) acted."


def write_squad(path: Path, answer: str) -> None:
    entry = {
        "id": 7,
        "question": "When did it begin?",
        "answers": [{"text": answer, "answer_start": CONTEXT.index(answer)}],
    }
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": [entry]}]}]}))


def test_read_converts_answers_to_spans_of_words(tmp_path: Path) -> None:
    write_squad(tmp_path / "squad.json", "October 1973")
    (question,) = ReadingTask().read(tmp_path / "squad.json")
    assert question.span is not None
    first, last = question.span
    assert question.passage[first : last + 1] == ("October", "1973")
    assert CONTEXT[question.offsets[first][0] : question.offsets[last][1]] == "October 1973"
    (found,) = ReadingTask().predictions([question], [(first, last, 0.5)])
    assert found == Answer("7", "October 1973", 24, 36, 0.5)
    assert ReadingTask().score([question], [found]).values == {"f1": 1.0, "exact match": 1.0}
    (unanswered,) = ReadingTask().read(tmp_path / "squad.json", "predict")
    of_text = ReadingTask().make_example(("When did it begin?", CONTEXT))
    assert replace(of_text, id="7") == unanswered


def test_answers_in_another_place_are_left_out_of_training(tmp_path: Path) -> None:
    file = tmp_path / "squad.json"
    start = CONTEXT.index("October")
    entries = [
        {"id": n, "question": "?", "answers": [{"text": "October", "answer_start": start + n}]}
        for n in range(3)
    ]
    file.write_text(json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": entries}]}]}))
    with pytest.warns(UserWarning, match="2 answers"):
        assert [question.id for question in ReadingTask().read(file, "train")] == ["0"]
    assert len(list(ReadingTask().read(file))) == 3


def test_words_of_an_answer_overlap_its_characters() -> None:
    offsets = ((0, 1), (2, 3), (4, 5), (5, 5))
    assert words_of_answer(offsets, 4, 5) == (2, 2)
    assert words_of_answer(offsets, 1, 2) is None


def test_scores_equal_those_of_squad() -> None:
    assert normalized_answer("The  Cat, (sat)!") == "cat sat"
    assert answer_f1("the black cat", "a cat sat") == pytest.approx(2 * 1 / (2 + 2))
    assert answer_f1("dog", "cat") == 0.0
    question = Question("q", (), (), "", (), ("cat sat", "the dog"))
    score = ReadingTask().score([question], [Answer("q", "Dog", 0, 3, 1.0)])
    assert score.values == {"f1": 1.0, "exact match": 1.0}


# --- The network ----------------------------------------------------------------------------------


def test_network_and_loss_equal_the_formulas() -> None:
    network = random_network(BiDAF, ReadingConfig(hidden_dim=4), GivenWords())
    question = random_words([3, 1, 2], seed=2)
    passage = random_words([5, 4, 1], seed=3)
    spans = torch.tensor([[1, 3], [-1, -1], [0, 0]])
    batch, oracle = ReadingBatch(question, passage, spans), BiDAFOracle(network)  # type: ignore[arg-type]
    pairs = zip(sentences_of(question), sentences_of(passage), strict=True)
    expected = [oracle.log_probabilities(*pair) for pair in pairs]
    for row, sides in enumerate(expected):
        for scores, of_side in zip(network(batch), sides, strict=True):
            np.testing.assert_allclose(scores[row, : len(of_side)], of_side, rtol=1e-9, atol=1e-12)
            assert not scores[row, len(of_side) :].exp().any()
    starts, ends = ([expected[row][side][spans[row, side]] for row in (0, 2)] for side in (0, 1))
    assert network.loss(batch).item() == pytest.approx(-np.mean(starts) - np.mean(ends))


@pytest.mark.parametrize("max_answer_words", [1, 3, 100])
def test_decode_equals_brute_force(max_answer_words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of random scores, by which the best pairs of words are often reversed, or too long."""
    network = random_network(
        BiDAF, ReadingConfig(hidden_dim=4, max_answer_words=max_answer_words), GivenWords()
    )
    start, end = np.random.default_rng(0).normal(-5, 3, size=(2, 20, 9))
    monkeypatch.setattr(
        network, "forward", lambda _: (torch.from_numpy(start), torch.from_numpy(end))
    )
    for row, (first, last, probability) in enumerate(network.decode(None)):
        spans = [(i, j) for i in range(9) for j in range(i, min(i + max_answer_words, 9))]
        best = max(spans, key=lambda span: start[row, span[0]] + end[row, span[1]])
        assert (first, last) == best
        assert probability == pytest.approx(np.exp(start[row, first] + end[row, last]))
