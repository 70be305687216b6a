"""Pictures of reports: one run, several seeds, several tasks."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy_tasks import toy_tasks

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
from elmokit.tasks.config import WordsConfig
from elmokit.tasks.fit import fit, fit_seeds
from elmokit.tasks.plots import draw_layer_weights, draw_learning_curves, mixes_by_name, plot_reports, read_reports

figure = pytest.importorskip("matplotlib.figure")
PNG = b"\x89PNG"


def test_plot_reports_draws_curves_and_weights_of_every_seed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, toy = Pretrained(BiLM(BiLMConfig.preset("tiny"))), toy_tasks()["tagging"]
    options = {"config": replace(toy.config, max_epochs=3), "model": model, "cache": tmp_path / "cache"}
    words = WordsConfig(elmo="both", word_dim=8)
    fit_seeds(toy.task, toy.examples, toy.examples, seeds=(0, 1), words=words, output=tmp_path / "$runs", **options)
    reports = read_reports(tmp_path / "$runs")
    assert list(reports) == ["seed-0", "seed-1"]
    mixes = mixes_by_name(reports)
    assert list(mixes) == ["seed-0, input", "seed-0, output", "seed-1, input", "seed-1, output"]
    left, right = figure.Figure().subplots(1, 2)
    draw_learning_curves(left, reports)
    draw_layer_weights(right, mixes)
    curve = left.get_lines()[0].get_ydata()
    assert list(curve) == [100 * epoch.scores["score"] for epoch in reports["seed-0"].epochs]
    (image,) = right.get_images()
    assert image.get_array().tolist() == [mix.weights for mix in mixes.values()]
    assert plot_reports(tmp_path / "$runs").read_bytes().startswith(PNG)
    fit_seeds(toy.task, toy.examples, toy.examples, seeds=(1,), words=words, output=tmp_path / "$runs", **options)
    assert list(read_reports(tmp_path / "$runs")) == ["seed-1"]


def test_plot_reports_of_a_run_without_elmo_has_no_weights(tmp_path: Path) -> None:
    toy = toy_tasks()["tagging"]
    words = WordsConfig(elmo="none", word_dim=8)
    config = replace(toy.config, max_epochs=2)
    fit(toy.task, toy.examples, toy.examples, words=words, config=config, output=tmp_path / "run")
    assert mixes_by_name(read_reports(tmp_path / "run")) == {}
    assert plot_reports(tmp_path / "run").read_bytes().startswith(PNG)
    with pytest.raises(FileNotFoundError, match=r"holds no report.json"):
        read_reports(tmp_path)
