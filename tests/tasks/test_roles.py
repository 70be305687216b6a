"""Brackets of roles as tags, and reversal of padded sentences."""

from pathlib import Path

import pytest
import torch

from elmokit.tasks.roles import Frame, PredicateFrame, RolesTask, reversed_words

ROWS = [
    "doc 0 0 Bush NNP * - - (ARG0*) *",
    "doc 0 1 nominated VBD * nominate nominate.01 (V*) *",
    "doc 0 2 two CD * - - (ARG1* (ARG0*",
    "doc 0 3 people NNS * - - * *)",
    "doc 0 4 to TO * - - * *",
    "doc 0 5 serve VB * serve serve.01 *) (V*)",
]


def test_read_yields_an_example_per_predicate(tmp_path: Path) -> None:
    (tmp_path / "srl.conll").write_text("\n".join(["#begin document (doc);", *ROWS, ""]))
    first, second = RolesTask().read(tmp_path / "srl.conll")
    assert (first.predicate, second.predicate) == (1, 5)
    assert first.tags == ("B-ARG0", "B-V", "B-ARG1", "I-ARG1", "I-ARG1", "I-ARG1")
    assert second.tags == ("O", "O", "B-ARG0", "I-ARG0", "O", "B-V")
    assert [frame.tags for frame in RolesTask().read(tmp_path / "srl.conll", with_answers=False)] == [(), ()]


@pytest.mark.parametrize(
    "cells, message",
    [
        (["(A*", "(B*)", "*)"], "opens a span inside another one"),
        (["*", "*)", "*"], "closes a span that was never opened"),
        (["(A*", "*", "*"], "the span of A is never closed"),
    ],
)
def test_read_raises_for_overlapping_or_unbalanced_spans(cells: list[str], message: str, tmp_path: Path) -> None:
    rows = [f"d 0 {i} w X * - {'p.01' if i == 1 else '-'} {cell}" for i, cell in enumerate(cells)]
    (tmp_path / "srl.conll").write_text("\n".join(rows))
    with pytest.raises(ValueError, match=message):
        list(RolesTask().read(tmp_path / "srl.conll"))


def test_read_raises_for_a_wrong_number_of_columns(tmp_path: Path) -> None:
    (tmp_path / "srl.conll").write_text("\n".join([*ROWS[:2], ROWS[2] + " *"]))
    with pytest.raises(ValueError, match="its lines have 10, 11 columns"):
        list(RolesTask().read(tmp_path / "srl.conll"))


def test_score_excludes_the_predicate_itself() -> None:
    words = ("a", "b", "c")
    gold = [PredicateFrame(words, 1, ("B-ARG0", "B-V", "B-ARG1"))]
    scores = RolesTask().score(gold, [Frame(words, 1, (), ("B-ARG0", "B-V", "O"))])
    assert (scores["precision"], scores["recall"]) == (1.0, 0.5)


def test_reversed_words_keeps_padding_in_place() -> None:
    x = torch.arange(8.0).reshape(2, 4, 1)
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    assert reversed_words(x, mask).squeeze(2).tolist() == [[3, 2, 1, 0], [5, 4, 6, 7]]
    assert torch.equal(reversed_words(reversed_words(x, mask), mask), x)
