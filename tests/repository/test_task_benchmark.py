"""The benchmark of tasks: skips what is finished, refuses other setups, and counts GAP's decisions."""

import sys
from pathlib import Path

import pytest

from elmokit.tasks.coreference import CorefClusters

QUALITY = Path(__file__).parents[2] / "benchmarks" / "quality"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(QUALITY), str(QUALITY.parent), *sys.path])


def test_gap_counts_decisions_about_both_names() -> None:
    from task_sets import gap_document, gap_f1

    text = "Ann Lee met Eve Ray. She left."
    row = {
        "ID": "test-1", "Text": text, "Pronoun": "She", "Pronoun-offset": "21",
        "A": "Ann Lee", "A-offset": "0", "A-coref": "TRUE", "B": "Eve Ray", "B-offset": "12", "B-coref": "FALSE",
    }  # fmt: skip
    document, spans = gap_document(row)
    words = [word for sentence in document.sentences for word in sentence]
    assert {name: words[start:end] for name, (start, end) in spans.items()} == {
        "Pronoun": ["She"], "A": ["Ann", "Lee"], "B": ["Eve", "Ray"]
    }  # fmt: skip
    for clusters, expected in (
        ((((0, 2), (6, 7)),), 1.0),
        ((((1, 2), (6, 7)),), 1.0),  # an overlapping mention of the name
        ((((3, 5), (6, 7)),), 0.0),
        ((((0, 2), (3, 5), (6, 7)),), 2 / 3),
        ((), 0.0),
    ):
        assert gap_f1([(row, CorefClusters("", tuple(words), clusters), spans)]) == pytest.approx(expected)
