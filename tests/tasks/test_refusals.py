"""Files that are not in a task's format, and examples that make no sense, are refused."""

import re
from math import nan
from pathlib import Path
from typing import Any

import pytest

from elmokit.tasks.classification import ClassificationTask
from elmokit.tasks.coreference import CorefDocument, CoreferenceTask
from elmokit.tasks.fitting.task import Task, checked, read_examples
from elmokit.tasks.pairs import PairsConfig, PairsTask, SentencePair
from elmokit.tasks.reading import Question, ReadingTask
from elmokit.tasks.roles import PredicateFrame, RolesConfig, RolesTask

DOCUMENT = "#begin document (d)\n"
WORD = "d\t0\t0\tword"
END = "#end document\n"
CELLS = (
    "(A* (B*) *)",
    "* *) *",
    "(A* * *",
    "(A(V*)) * *",
    "(A*(V*) * *",
    "B-A (V*) *",
    "_ (V*) *",
    "(A*)) (V*) *",
    "(*) (V*) *",
)
CLASSIFIER = ClassificationTask()
PAIRS = PairsTask()
SCORES = PairsTask(PairsConfig(target="score"))
AT_COLUMN_30 = RolesTask(RolesConfig(role_column=30))
ROW = "doc 0 5 serve VB *)) serve 01 1 spk * * (V*) -"


def roles(cells: str) -> str:
    rows = enumerate(cells.split(" "))
    return "\n".join(f"d 0 {i} w X * - {'p.01' if i == 1 else '-'} {cell}" for i, cell in rows)


@pytest.mark.parametrize(
    "task, name, content",
    [
        *(
            (CLASSIFIER, "a.txt", f"1 A\n{line}\n")
            for line in ("0", "(3 (2 It", "(3 a) b", "((S (N a)))")
        ),
        (CLASSIFIER, "a.txt", "__label__a __label__b text\n"),
        *(
            (CLASSIFIER, "a.txt", f"{first}\n(3 (2 ) (4 good))\n")
            for first in ("1\tA", "(3 (2 It) (4 is))")
        ),
        (CoreferenceTask(), "a.conll", f"{DOCUMENT}{WORD}\t0)\n{END}"),
        (CoreferenceTask(), "a.conll", f"{DOCUMENT}{WORD}\t(0\n{END}"),
        (CoreferenceTask(), "a.conll", f"{DOCUMENT}{WORD}\n{END}"),
        (CoreferenceTask(), "a.conll", f"{DOCUMENT}{WORD}\t-\n"),
        (CoreferenceTask(), "a.conll", f"{DOCUMENT}{WORD}\t-\n{DOCUMENT}{WORD}\t-\n{END}"),
        (PAIRS, "a.tsv", "first\tsecond\nx\ty\n"),
        (PAIRS, "a.tsv", "first\tsecond\tlabel\nx\ty\n"),
        (PAIRS, "a.jsonl", '{"first": 3, "second": "y", "label": "z"}\n'),
        (PAIRS, "a.jsonl", "{\n"),
        *(
            (ReadingTask(), "a.json", content)
            for content in (
                "[]",
                "{",
                '{"data": 3}',
                '{"data": [{"paragraphs": [{"context": "a"}]}]}',
                '{"data": [{"paragraphs": [{"context": null, "qas": []}]}]}',
                '{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": 1, "question": 3, '
                '"answers": []}]}]}]}',
            )
        ),
        *((RolesTask(), "a.conll", roles(cells)) for cells in CELLS),
        (RolesTask(), "a.conll", ROW),
        (AT_COLUMN_30, "a.conll", ROW),
    ],
)
def test_a_file_in_another_format_is_refused_with_its_name(
    task: Task, name: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=re.escape(name)):
        list(read_examples(task, tmp_path / name))


QUESTION = Question(
    "7", ("Who", "?"), ("Ann", "sees"), "Ann sees", ((0, 3), (4, 8)), ("Ann",), (0, 0)
)


@pytest.mark.parametrize(
    "task, kind, fields",
    [
        *(
            (CoreferenceTask(), CorefDocument, ("d", (tuple("abcde"),), clusters))
            for clusters in (
                None,
                (((0, 6), (0, 1)),),
                (((0, 1), (2, 3)), ((0, 1), (4, 5))),
            )
        ),
        *(
            (ReadingTask(), Question, tuple({**vars(QUESTION), **changed}.values()))
            for changed in (
                {"answers": ()},
                {"span": (-1, 0)},
                {"span": (1, 2)},
                {"offsets": ((0, 3),)},
            )
        ),
        *(
            (RolesTask(), PredicateFrame, (("a", "b"), 1, tags))
            for tags in (
                ("A0", "V"),
                ("I-A0", "B-V"),
                ("B-A0", "I-A1"),
                ("B-", "B-V"),
                ("O", "I-V"),
                ("O",),
            )
        ),
        (RolesTask(), PredicateFrame, (("a", "b"), 2, ("O", "O"))),
        (PAIRS, SentencePair, (("a",), ("b",))),
        (PAIRS, SentencePair, (("a",), ("b",), "")),
        (SCORES, SentencePair, (("a",), ("b",), "z", nan)),
    ],
)
def test_an_example_without_a_sensible_answer_is_refused(
    task: Task, kind: Any, fields: tuple[Any, ...]
) -> None:
    with pytest.raises(ValueError, match=r"example 1|no word 2"):
        list(checked(task, [kind(*fields)]))
