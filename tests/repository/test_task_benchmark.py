"""The benchmark of tasks: skips what is finished, refuses other setups, and counts GAP's decisions."""

import json
import sys
from pathlib import Path

import pytest
import torch
from toy_tasks import toy_tasks

from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
from elmokit.tasks.config import WordsConfig
from elmokit.tasks.coreference import CorefClusters

QUALITY = Path(__file__).parents[2] / "benchmarks" / "quality"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(QUALITY), str(QUALITY.parent), *sys.path])


def test_finished_runs_are_skipped_and_summarized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    import task_sets
    import task_table
    import tasks

    toy = toy_tasks()["tagging"]
    benchmark = task_sets.Benchmark(
        task=toy.task,
        read=lambda task, data: (toy.examples, toy.examples, toy.examples),
        score="f1",
        words=WordsConfig(word_dim=8),
        more_scores=lambda model, data: {"length": float(len(model.task.labels["tags"]))},
    )
    monkeypatch.setattr(tasks, "BENCHMARKS", {"toy": benchmark})
    torch.manual_seed(0)
    save(Pretrained(BiLM(BiLMConfig.preset("tiny"))), tmp_path / "tiny")
    output = tmp_path / "tasks.json"
    command = [
        *("--eval", tmp_path, "--work", tmp_path / "work", "--cache", tmp_path / "cache", "--output", output),
        *("--model", tmp_path / "tiny", "--max-epochs", "2", "--threads", "1", "--only", "toy", "--seeds"),
    ]
    tasks.main([*map(str, command), "1"])
    first = json.loads(output.read_text())
    assert {kind: list(runs) for kind, runs in first["toy"].items()} == {"without ELMo": ["1"], "tiny": ["1"]}
    recorded = first["toy"]["tiny"]["1"]
    assert {"commit", "date", "command", "machine", "setup", "seconds", "mixes"} <= set(recorded)
    assert recorded["test"]["length"] == 5
    capsys.readouterr()
    tasks.main([*map(str, command), "1", "2"])
    printed = capsys.readouterr().out
    assert "toy, tiny, seed 2" in printed and "seed 1\n" not in printed
    assert json.loads(output.read_text())["toy"]["tiny"]["1"] == recorded
    rows = list(task_table.summary(json.loads(output.read_text())))
    assert {(row["words"], row["score"]): row["seeds"] for row in rows} == {
        (words, score): 2 for words in ("without ELMo", "tiny") for score in ("f1", "length")
    }
    without, with_elmo = (row["mean"] for row in rows if row["score"] == "f1")
    assert rows[2]["error_reduction"] == pytest.approx(100 * (with_elmo - without) / (100 - without), abs=0.1)
    with pytest.raises(SystemExit, match="of another setup"):
        tasks.main([*map(str, command), "1", "--max-minutes", "1"])


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
