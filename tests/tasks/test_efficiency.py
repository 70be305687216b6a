"""Growing parts of a training set, with and without ELMo."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy_tasks import toy_tasks

from elmokit import cli
from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
from elmokit.tasks.config import WordsConfig
from elmokit.tasks.efficiency import sample_efficiency
from elmokit.tasks.plots import read_reports


def test_sample_efficiency_trains_on_nested_parts_with_and_without_elmo(tmp_path: Path) -> None:
    torch.manual_seed(0)
    toy, model = toy_tasks()["tagging"], Pretrained(BiLM(BiLMConfig.preset("tiny")))
    options = {
        "fractions": (0.25, 1), "seeds": (0, 1), "output": tmp_path / "runs", "cache": tmp_path / "cache",
        "words": WordsConfig(word_dim=8, mix_l2=0.001), "model": model, "config": replace(toy.config, max_epochs=2),
    }  # fmt: skip
    report = sample_efficiency(toy.task, toy.examples, toy.examples, toy.examples, **options)
    assert {name: [size for size, _ in row] for name, row in report.scores.items()} == {
        "without ELMo": [6, 24],
        "with ELMo": [6, 24],
    }
    runs = read_reports(tmp_path / "runs" / "with-ELMo-6")
    assert [run.examples for run in runs.values()] == [6, 6]
    scores = [run.test["score"] for run in runs.values() if run.test is not None]
    assert report.scores["with ELMo"][0][1].mean == pytest.approx(sum(scores) / 2)
    assert json.loads((tmp_path / "runs" / "report.json").read_text())["split"] == "test"
    assert str(report).startswith("score on the test set, in percent")
    assert sample_efficiency(toy.task, toy.examples, toy.examples, toy.examples, **options) == report
    with pytest.raises(ValueError, match="fractions must be numbers above 0, at most 1"):
        sample_efficiency(toy.task, toy.examples, toy.examples, **{**options, "fractions": (2,)})
    with pytest.raises(FileExistsError, match="is from a run with other learning_rate: choose another name, or remove"):
        config = replace(toy.config, max_epochs=2, learning_rate=0.5)
        sample_efficiency(toy.task, toy.examples, toy.examples, toy.examples, **{**options, "config": config})
    with pytest.raises(FileExistsError, match="is a task model: choose"):
        one = tmp_path / "runs" / "with-ELMo-6" / "seed-0"
        sample_efficiency(toy.task, toy.examples, toy.examples, **{**options, "output": one})


def test_sample_efficiency_says_before_the_training_what_is_missing(tmp_path: Path) -> None:
    toy = toy_tasks()["classification"]
    options = {"seeds": (0,), "output": tmp_path / "runs", "config": replace(toy.config, max_epochs=1)}
    with pytest.raises(ValueError, match="without ELMo the network has no input: give word_dim"):
        words = WordsConfig(word_dim=0)
        sample_efficiency(toy.task, toy.examples, toy.examples, fractions=(1,), words=words, **options)
    label = toy.examples[0].label
    rare = [example for example in toy.examples if example.label == label]
    many = [example for example in toy.examples if example.label != label] * 10
    message = r"the smallest part of the training set, \d examples, has no words, or none of the labels .*: raise the"
    with pytest.raises(ValueError, match=message):
        sample_efficiency(toy.task, [*many, rare[0]], rare, fractions=(0.01, 1), **options)
    with pytest.raises(ValueError, match="check the files and the column of the labels"):
        sample_efficiency(toy.task, many, rare, fractions=(0.01, 1), **options)
    assert not (tmp_path / "runs").exists()


def test_verbs_of_sample_efficiency_and_layer_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    torch.manual_seed(0)
    save(Pretrained(BiLM(BiLMConfig.preset("tiny"))), tmp_path / "tiny")
    (tmp_path / "train.txt").write_text("Ann B-PER\nsees O\ndogs B-THING\n\nBob B-PER\nlikes O\ncats B-THING\n\n" * 4)
    command = (
        "sample-efficiency tagging {0}/train.txt {0}/train.txt --output {0}/runs --model {0}/tiny --cache {0}/cache "
        "--fractions 0.5,1 --seeds 1 --max-epochs 1 --hidden-dim 8 --word-dim 8 --device cpu --plot {0}/curve.png"
    )
    assert cli.main(command.format(tmp_path).split()) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("score on the development set, in percent") and "with ELMo" in printed
    weights = "layer-weights {0}/runs/with-ELMo-4 {0}/runs/with-ELMo-8/seed-1 --plot {0}/weights.png"
    assert cli.main(weights.format(tmp_path).split()) == 0
    assert capsys.readouterr().out.count(": gamma ") == 2
    for name, verb in (("curve.png", command), ("weights.png", weights)):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        (tmp_path / name).write_text("another")
        capsys.readouterr()
        assert cli.main(verb.format(tmp_path).split()) == 2
        printed = capsys.readouterr()
        assert not printed.out and f"{name} exists" in printed.err  # before the work
        assert (tmp_path / name).read_text() == "another"
        assert cli.main([*verb.format(tmp_path).split(), "--overwrite"]) == 0
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert cli.main(["layer-weights", str(tmp_path / "runs" / "without-ELMo-4")]) == 2
    assert "none of these models reads ELMo" in capsys.readouterr().err
