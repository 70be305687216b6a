"""Readers of the published files of sentence pairs, and correlations against SciPy."""

import json
from pathlib import Path
from typing import Any

import pytest

from elmokit.tasks.pairs import PairPrediction, PairsConfig, PairsTask, SentencePair

SICK = (
    "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\tA dog runs\tA cat sits\t2.5\tNEUTRAL\n"
)
MRPC = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tHe said "yes.\tShe said no.\r\n'


def test_read_accepts_the_columns_of_published_files(tmp_path: Path) -> None:
    (tmp_path / "sick.txt").write_text(SICK)
    (tmp_path / "mrpc.tsv").write_bytes(MRPC.encode())
    task = PairsTask()
    (sick,) = task.read(tmp_path / "sick.txt")
    assert sick == SentencePair(("A", "dog", "runs"), ("A", "cat", "sits"), "NEUTRAL")
    (mrpc,) = task.read(tmp_path / "mrpc.tsv")
    assert mrpc == SentencePair(("He", "said", '"', "yes", "."), ("She", "said", "no", "."), "1")
    (score,) = PairsTask(PairsConfig(target="score")).read(tmp_path / "sick.txt")
    assert score == SentencePair(("A", "dog", "runs"), ("A", "cat", "sits"), score=2.5)


def test_from_text_splits_sentences_as_read_does(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("first\tsecond\tlabel\nIt's a dog.\tIt isn't.\tno\n")
    for name in ("english-1", "whitespace-1"):
        task = PairsTask(PairsConfig(tokenizer=name))
        (of_file,) = task.read(tmp_path / "pairs.tsv", with_answers=False)
        assert task.from_text(("It's a dog.", "It isn't."), lambda text: ["another", "tokenizer"]) == of_file


@pytest.mark.parametrize("text", ["a b", ["a"], {"first": "a", "second": "b"}])
def test_from_text_names_what_it_takes(text: Any) -> None:
    with pytest.raises(ValueError, match=r"a pair is two sentences: give \[first, second\] for each"):
        PairsTask().from_text(text, str.split)


def test_read_skips_pairs_of_json_lines_without_agreement(tmp_path: Path) -> None:
    rows = [{"sentence1": "A b", "sentence2": "c", "gold_label": label} for label in ("neutral", "-")]
    (tmp_path / "snli.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [pair.label for pair in PairsTask().read(tmp_path / "snli.jsonl")] == ["neutral"]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.tsv", "first\tsecond\nx\ty\n", "line 2: there is no column label or"),
        ("a.tsv", "first\tsecond\tlabel\nx\ty\n", "line 2: 2 columns, but 3 column names"),
        ("a.tsv", "first\tsecond\tlabel\nx\ty\t\n", "line 2: the label is empty"),
        ("a.tsv", "first\tsecond\tscore\nx\ty\tnan\n", "line 2: the score 'nan' is not a number"),
        ("a.tsv", "first\tsecond\tscore\nx\ty\tinf\n", "line 2: the score 'inf' is not a number"),
        ("a.jsonl", '{"first": "x", "second": "y", "score": NaN}\n', "line 1: the score 'nan' is not a number"),
        ("a.jsonl", '{"first": ["x"], "second": "y"}\n', "line 1: first is a list, not text"),
        ("a.jsonl", "[1]\n", "line 1: expected a JSON object"),
        ("a.jsonl", "{\n", "line 1: not JSON"),
    ],
)
def test_read_names_the_line_of_malformed_input(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    target = "score" if "score" in content else "label"
    with pytest.raises(ValueError, match=message):
        list(PairsTask(PairsConfig(target=target)).read(tmp_path / name))


def test_read_splits_at_tabs_alone(tmp_path: Path) -> None:
    """A carriage return within a line, quotes, and a field longer than Python's csv module reads."""
    long = "word " * 30_000
    text = f'first\tsecond\tlabel\r\nOne\rtwo "three\tfour\tyes\r\n\r\n{long}\tfour\tno\n'
    (tmp_path / "a.tsv").write_bytes(text.encode())
    first, second = PairsTask(PairsConfig(tokenizer="whitespace-1")).read(tmp_path / "a.tsv")
    assert first == SentencePair(("One", "two", '"three'), ("four",), "yes")
    assert (len(second.first), second.label) == (30_000, "no")


def test_check_refuses_scores_that_are_no_numbers() -> None:
    with pytest.raises(ValueError, match="the score of a pair is nan"):
        PairsTask(PairsConfig(target="score")).check(SentencePair(("a",), ("b",), score=float("nan")))


def test_score_of_paraphrases_includes_f1_of_the_positive_class() -> None:
    task = PairsTask(labels={"labels": ["0", "1"]})
    gold = [SentencePair(("a",), ("b",), label) for label in "1100"]
    found = [PairPrediction(("a",), ("b",), label) for label in "1010"]
    assert task.score(gold, found) == {"score": 0.5, "accuracy": 0.5, "f1": 0.5}
