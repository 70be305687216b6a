"""Training: repeated runs, outputs, unknown labels, early stopping."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_tasks import toy_tasks

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.tasks import WordsConfig, fitting
from elmokit.tasks.fitting import FitReport, fit, train_epoch, unimproved
from elmokit.tasks.fitting.layers import LayerCache
from elmokit.tasks.fitting.model import TaskModel
from elmokit.tasks.fitting.task import TaskScores
from elmokit.tasks.tagging import TaggingTask

TOY = toy_tasks()["tagging"]
QUICK = replace(TOY.config, max_epochs=2)
LEARNED = WordsConfig(elmo="none", word_dim=8)


def fit_quick(toy: Any = TOY, **options: Any) -> tuple[TaskModel, FitReport]:
    return fit(
        toy.task, toy.examples, toy.examples, **{"words": LEARNED, "config": QUICK, **options}
    )


def weights(model: TaskModel) -> dict[str, torch.Tensor]:
    return dict(model.network.state_dict())


def assert_equal_weights(one: TaskModel, other: TaskModel) -> None:
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name]), name


# --- The whole ------------------------------------------------------------------------------------


def test_a_run_that_is_repeated_ends_with_the_same_weights_and_computes_no_layers(
    bilm: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = WordsConfig(word_dim=8, elmo_dropout=0.3, word_dropout=0.3)
    options = {"words": words, "model": bilm, "cache": tmp_path / "cache"}
    one, report = fit_quick(output=tmp_path / "one", **options)
    monkeypatch.setattr(LayerCache, "compute", lambda *_: pytest.fail("computed layers"))
    other, again = fit_quick(output=tmp_path / "other", **options)
    assert [epoch.loss for epoch in again.epochs] == [epoch.loss for epoch in report.epochs]
    assert_equal_weights(one, other)
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"one", "other"}


def test_the_best_weights_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    after_first, _ = fit_quick(config=replace(QUICK, max_epochs=1))
    scores = iter([1.0, 0.5, 0.4, 0.3, 0.3])
    monkeypatch.setattr(TaggingTask, "score", lambda *_: TaskScores({"score": next(scores)}))
    assert_equal_weights(after_first, fit_quick(config=replace(QUICK, max_epochs=4))[0])


def test_an_output_is_replaced_if_asked_for_and_foreign_files_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_quick(output=tmp_path / "model")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("all of it")
    for name, overwrite in (("model", False), ("foreign", False), ("foreign", True)):
        with monkeypatch.context() as patched, pytest.raises(FileExistsError, match=name):
            patched.setattr(fitting, "train_epoch", lambda *_: pytest.fail("trained"))
            fit_quick(output=tmp_path / name, overwrite=overwrite)
    _, report = fit_quick(output=tmp_path / "model", config=replace(QUICK, seed=7), overwrite=True)
    assert (tmp_path / "model" / "report.json").read_text() == report.to_json()
    assert (tmp_path / "foreign" / "thesis.txt").read_text() == "all of it"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "model"]


@pytest.mark.parametrize(
    "task, answers, others",
    [
        ("classification", [1, 0], [1.0, 0.0]),
        ("classification", [1, 0], ["no", "yes"]),
        ("tagging", [["B-PER", "O"], ["O", "O"]], [["B-LOC", "I-LOC"], ["B-LOC", "I-LOC"]]),
    ],
)
def test_labels_that_training_lacks_are_counted_and_refused_if_they_are_all(
    task: str, answers: list[Any], others: list[Any]
) -> None:
    texts: Any = ["a film", "no film"] if task == "classification" else [["a", "b"], ["c", "d"]]
    examples, unknown = ([*zip(texts, each, strict=True)] for each in (answers, others))

    def run(dev: list[Any]) -> Any:
        return fit(task, examples, dev, words=LEARNED, config=replace(QUICK, max_epochs=1))

    if others == [1.0, 0.0]:  # as pandas reads integers beside empty cells
        run(unknown)
        return
    with pytest.raises(ValueError, match="of the training set"):
        run(unknown)
    with pytest.warns(UserWarning, match=r"[12] of [36] labels"):
        run([*examples, unknown[0]])


# --- Epochs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        # the last: not one span is found yet
        ([], 0), ([0.5], 0), ([0.5, 0.6, 0.6, 0.4], 2), ([0.0, 0.0, 0.0], 0),
        ([0.7, 0.7, 0.7, 0.6, 0.7], 2),  # of the changes since the third epoch
        ([0.0, 0.0, 0.3], 0), ([1.0, 1.0, 1.0], 2),  # nothing is left to learn
    ],
)  # fmt: skip
def test_unimproved_epochs_count_from_the_first_change_of_the_score(
    scores: list[float], expected: int
) -> None:
    assert unimproved(scores) == expected


def test_the_rate_is_halved_and_training_stops_where_the_score_no_longer_rises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, report = fit_quick(config=replace(QUICK, max_minutes=1e-9))
    assert len(report.epochs) == 1
    scores = iter([0.2, 0.5, 0.4, 0.5, 0.6, 0.6, 0.1, 0.6, 0.6])
    monkeypatch.setattr(TaggingTask, "score", lambda *_: TaskScores({"score": next(scores)}))
    rates = []

    def epoch(network: Any, examples: Any, optimizer: torch.optim.Optimizer, *others: Any) -> float:
        rates.append(optimizer.param_groups[0]["lr"])
        return train_epoch(network, examples, optimizer, *others)

    monkeypatch.setattr(fitting, "train_epoch", epoch)
    _, report = fit_quick(
        config=replace(QUICK, max_epochs=20, learning_rate=0.008, patience=3, halve_after=2)
    )
    # Halved after the second epoch in a row without a new best score, over after the third.
    assert rates == [0.008] * 4 + [0.004] * 3 + [0.002]
    assert rates == [epoch.learning_rate for epoch in report.epochs]
    assert report.best_epoch == 5
