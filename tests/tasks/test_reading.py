"""Positions of answers in a passage; the official scores of SQuAD."""

import gzip
import json
from pathlib import Path

import pytest

from elmokit.tasks.reading import (
    Answer,
    Question,
    ReadingTask,
    answer_f1,
    normalized_answer,
    word_offsets,
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
    assert ReadingTask().score([question], [found]) == {"f1": 1.0, "exact match": 1.0}


def test_read_accepts_compressed_files(tmp_path: Path) -> None:
    write_squad(tmp_path / "squad.json", "October 1973")
    (tmp_path / "squad.json.gz").write_bytes(gzip.compress((tmp_path / "squad.json").read_bytes()))
    assert list(ReadingTask().read(tmp_path / "squad.json.gz")) == list(ReadingTask().read(tmp_path / "squad.json"))


def test_word_offsets_of_a_repeated_word_follow_the_text() -> None:
    offsets = word_offsets("a b a", ["a", "b", "a", "gone"])
    assert offsets == ((0, 1), (2, 3), (4, 5), (5, 5))
    assert words_of_answer(offsets, 4, 5) == (2, 2) and words_of_answer(offsets, 1, 2) is None


def test_scores_equal_those_of_squad() -> None:
    assert normalized_answer("The  Cat, (sat)!") == "cat sat"
    assert answer_f1("the black cat", "a cat sat") == pytest.approx(2 * 1 / (2 + 2))
    assert answer_f1("dog", "cat") == 0.0
    question = Question("q", (), (), "", (), ("cat sat", "the dog"))
    score = ReadingTask().score([question], [Answer("q", "Dog", 0, 3, 1.0)])
    assert score == {"f1": 1.0, "exact match": 1.0}


@pytest.mark.parametrize("content", ["[]", "{", '{"data": [{"paragraphs": [{"context": "a"}]}]}', '{"data": 3}'])
def test_read_raises_for_other_json_and_names_the_format(content: str, tmp_path: Path) -> None:
    (tmp_path / "squad.json").write_text(content)
    with pytest.raises(ValueError, match="not JSON in the format of SQuAD"):
        list(ReadingTask().read(tmp_path / "squad.json"))
