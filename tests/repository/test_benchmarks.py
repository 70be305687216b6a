"""What the benchmarks count: operations of a word, and GAP's decisions."""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import conv1d, linear
from torch.utils.flop_counter import FlopCounterMode

from elmokit.config import BiLMConfig
from elmokit.tasks.coreference import CorefClusters

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts' directories on the path, as where one of them is run."""
    folders = (BENCHMARKS / "speed", BENCHMARKS, BENCHMARKS / "quality")
    monkeypatch.setattr(sys, "path", [*map(str, folders), *sys.path])


def test_operations_of_a_long_word_are_those_that_pytorch_counts() -> None:
    from roofline import word_operations

    config = BiLMConfig.preset("small").char_cnn
    with FlopCounterMode(display=False) as counter:
        for width, number in config.filters:
            conv1d(
                torch.zeros(1, config.embedding_dim, 50),
                torch.zeros(number, config.embedding_dim, width),
            )
        filters = config.num_filters
        linear(torch.zeros(1, filters), torch.zeros(2 * filters, filters))
        linear(torch.zeros(1, filters), torch.zeros(128, filters))
    assert word_operations(config, 128, "x" * 60) == counter.get_total_flops()
    assert word_operations(config, 128, "x") < counter.get_total_flops()


def test_gap_counts_decisions_about_both_names() -> None:
    from task_sets import gap_document, gap_f1

    text = "Ann Lee met Eve Ray. She left."
    row = {
        "ID": "test-1",
        "Text": text,
        "Pronoun": "She",
        "Pronoun-offset": "21",
        "A": "Ann Lee",
        "A-offset": "0",
        "A-coref": "TRUE",
        "B": "Eve Ray",
        "B-offset": "12",
        "B-coref": "FALSE",
    }
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
        assert gap_f1([(row, CorefClusters("", tuple(words), clusters), spans)]) == pytest.approx(
            expected
        )
