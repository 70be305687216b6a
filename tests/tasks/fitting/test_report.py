"""Scores as they are printed: in percent, by label, and the most frequent errors."""

from elmokit.tasks.fitting.report import TaskScores, score_by_label

CONFUSION = {"a": {"a": 5, "b": 2}, "b": {"b": 1, "a": 3, "c": 2}, "cc": {"cc": 9}}  # by correct label


def test_scores_are_printed_in_percent_with_a_row_for_each_label_and_the_errors_by_frequency() -> None:
    scores = TaskScores({"score": 15 / 22, "f1": 1.0}, score_by_label(CONFUSION), CONFUSION)
    assert [line.split() for line in str(scores).splitlines() if line] == [
        ["score", "68.18", "f1", "100.00"],
        ["precision", "recall", "f1", "count"],
        ["a", "62.50", "71.43", "66.67", "7"],
        ["b", "33.33", "16.67", "22.22", "6"],
        ["c", "0.00", "0.00", "0.00", "0"],  # never correct
        ["cc", "100.00", "100.00", "100.00", "9"],
        ["most", "frequent", "errors"],
        ["3", "b", "as", "a"],
        ["2", "a", "as", "b"],
        ["2", "b", "as", "c"],
    ]
    assert str(TaskScores({"bleu": 0.12345})) == "bleu 12.35"
