"""Readers of labelled texts and trees; pooling that ignores padding."""

from pathlib import Path

import pytest
import torch

from elmokit.tasks.attention import masked_max, masked_mean, masked_softmax
from elmokit.tasks.classification import ClassificationConfig, ClassificationTask, LabelledText, labelled_phrases

TREE = "(3 (2 It) (4 (2 's) (4 (2 a) (3 -LRB-good-RRB-))))"


def test_labelled_phrases_start_with_the_whole_sentence() -> None:
    assert [(" ".join(phrase.words), phrase.label) for phrase in labelled_phrases(TREE)] == [
        ("It 's a -LRB-good-RRB-", "3"),
        ("It", "2"),
        ("'s a -LRB-good-RRB-", "4"),
        ("'s", "2"),
        ("a -LRB-good-RRB-", "4"),
        ("a", "2"),
        ("-LRB-good-RRB-", "3"),
    ]


@pytest.mark.parametrize("phrases, count", [(True, 7), (False, 1)])
def test_read_returns_phrases_or_whole_sentences_of_trees(phrases: bool, count: int, tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text(f"{TREE}\n\n{TREE}\n")
    task = ClassificationTask(ClassificationConfig(phrases=phrases))
    assert len(list(task.read(tmp_path / "trees.txt"))) == 2 * count


def test_read_splits_lines_into_label_and_words(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("1 A Good film\n\n0 Bad .\n")
    task = ClassificationTask(ClassificationConfig(lowercase=True))
    found = list(task.read(tmp_path / "texts.txt"))
    assert found == [LabelledText(("a", "good", "film"), "1"), LabelledText(("bad", "."), "0")]
    assert [text.label for text in task.read(tmp_path / "texts.txt", with_answers=False)] == [None, None]
    (tmp_path / "texts.txt").write_text("1 A\n0\n")
    with pytest.raises(ValueError, match=r"texts.txt, line 2: expected \"LABEL TEXT\""):
        list(task.read(tmp_path / "texts.txt"))


def test_pooling_and_softmax_ignore_padding() -> None:
    vectors = torch.randn(3, 5, 2)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False], [False] * 5])
    for row, count in ((0, 5), (1, 2)):
        torch.testing.assert_close(masked_mean(vectors, mask)[row], vectors[row, :count].mean(0))
        torch.testing.assert_close(masked_max(vectors, mask)[row], vectors[row, :count].amax(0))
        weights = masked_softmax(vectors[..., 0], mask)[row]
        torch.testing.assert_close(weights[:count], vectors[row, :count, 0].softmax(0))
        assert not weights[count:].any()
    for pooled in (masked_mean(vectors, mask), masked_max(vectors, mask), masked_softmax(vectors[..., 0], mask)):
        assert not pooled[2].any()
