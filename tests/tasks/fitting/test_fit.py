"""Training: resumed after a kill, finished runs, early stopping, fine-tuning, pretrained
vectors.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_tasks import toy_tasks

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
from elmokit.tasks.config import WordsConfig
from elmokit.tasks.fitting import fit as fit_module
from elmokit.tasks.fitting.fit import Epoch, FitReport, fit, train_epoch, unimproved
from elmokit.tasks.fitting.model import TaskModel
from elmokit.tasks.tagging import TaggingTask

TOY = toy_tasks()["tagging"]
QUICK = replace(TOY.config, max_epochs=2)
LEARNED = WordsConfig(elmo="none", word_dim=8)


def fit_quick(toy: Any = TOY, **options: Any) -> tuple[TaskModel, FitReport]:
    return fit(
        toy.task, toy.examples, toy.examples, **{"words": LEARNED, "config": QUICK, **options}
    )


def kill_after(
    epochs: int, monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any
) -> None:
    """Run `fit_quick` until it has trained for some epochs."""

    def killed(*arguments: Any) -> float:
        if arguments[-1] > epochs:
            raise KeyboardInterrupt
        return train_epoch(*arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(fit_module, "train_epoch", killed)
        fit_quick(*arguments, **options)


def weights(model: TaskModel) -> dict[str, torch.Tensor]:
    return dict(model.network.state_dict())


def assert_equal_weights(one: TaskModel, other: TaskModel) -> None:
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name]), name


# --- Resuming -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tagging", "reading"])
@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_weights(
    name: str, bilm: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = toy_tasks()[name]
    words = WordsConfig(word_dim=8, elmo_dropout=0.3, word_dropout=0.3, finetune=name == "tagging")
    options = {
        "words": words,
        "config": replace(toy.config, max_epochs=4),
        "model": bilm,
        "cache": tmp_path / "cache",
    }
    whole, report = fit_quick(toy, output=tmp_path / "whole", **options)
    kill_after(2, monkeypatch, toy, output=tmp_path / "killed", **options)
    resumed, again = fit_quick(toy, output=tmp_path / "killed", **options)
    assert [epoch.loss for epoch in again.epochs] == [epoch.loss for epoch in report.epochs]
    assert_equal_weights(whole, resumed)
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"killed", "whole"}


def test_the_best_weights_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    after_first, _ = fit_quick(config=replace(QUICK, max_epochs=1))
    scores = iter([1.0, 0.5, 0.4, 0.3, 0.3])
    monkeypatch.setattr(TaggingTask, "score", lambda *_: {"score": next(scores)})
    assert_equal_weights(after_first, fit_quick(config=replace(QUICK, max_epochs=4))[0])


def test_a_finished_run_is_loaded_and_another_one_refused(
    bilm: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (zip(each.words, each.tags, strict=True) for each in TOY.examples)
    text = "\n".join("".join(f"{word} {tag}\n" for word, tag in row) for row in rows)
    (tmp_path / "train").write_text(text), (tmp_path / "dev").write_text(text)
    (tmp_path / "vectors.txt").write_text("Ann 1 2\nBob 3 4\n")
    words, seed = (
        WordsConfig(word_dim=8, vectors=str(tmp_path / "vectors.txt")),
        replace(QUICK, seed=7),
    )
    options: dict[str, Any] = {
        "words": words,
        "config": QUICK,
        "model": bilm,
        "cache": tmp_path / "cache",
    }

    def run(**changed: Any) -> tuple[TaskModel, FitReport]:
        return fit(
            TOY.task,
            tmp_path / "train",
            tmp_path / "dev",
            output=tmp_path / "model",
            **{**options, **changed},
        )

    def refused(message: str, **changed: Any) -> None:
        with pytest.raises(FileExistsError, match=message):
            run(**changed)

    fitted, report = run()
    with monkeypatch.context() as patched:
        patched.setattr(fit_module, "train_epoch", lambda *_: pytest.fail("trained again"))
        again, same = run(config=replace(QUICK, device=None))
        assert same == report and again.predict([TOY.text]) == fitted.predict([TOY.text])
        refused("seed", config=seed)
        refused("model", model=Pretrained(BiLM(BiLMConfig.preset("tiny"))))
        refused("elmo", words=LEARNED)
        for name, message in (("vectors.txt", "vectors"), ("dev", "examples")):
            (tmp_path / name).write_text((tmp_path / name).read_text().replace("Ann", "Eve"))
            refused(message)
    _, report = run(overwrite=True, config=seed)
    assert report.settings["fit"]["seed"] == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cache",
        "dev",
        "model",
        "train",
        "vectors.txt",
    ]


def test_the_state_of_another_run_and_foreign_files_are_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_after(1, monkeypatch, output=tmp_path / "model")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("all of it")
    seed = replace(QUICK, seed=7)
    for name, overwrite in (("model", False), ("foreign", False), ("foreign", True)):
        with monkeypatch.context() as patched, pytest.raises(FileExistsError, match=name):
            patched.setattr(TaskModel, "open_caches", lambda *_: pytest.fail("computed vectors"))
            fit_quick(output=tmp_path / name, config=seed, overwrite=overwrite)
    fit_quick(output=tmp_path / "model", config=seed, overwrite=True)
    assert (tmp_path / "foreign" / "thesis.txt").read_text() == "all of it"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "model"]


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
    assert unimproved([Epoch(1.0, {"f1": score}, 0.1, 1.0) for score in scores], "f1") == expected


def test_the_rate_is_halved_and_training_stops_where_the_score_no_longer_rises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (
        len(fit_quick(config=replace(QUICK, max_minutes=1e-9))[1].epochs) == 1
    )  # the limit of time
    scores = iter([0.2, 0.5, 0.4, 0.5, 0.6, 0.6, 0.1, 0.6, 0.6])
    monkeypatch.setattr(TaggingTask, "score", lambda *_: {"score": next(scores)})
    rates = []

    def epoch(network: Any, examples: Any, optimizer: torch.optim.Optimizer, *others: Any) -> float:
        rates.append(optimizer.param_groups[0]["lr"])
        return train_epoch(network, examples, optimizer, *others)

    monkeypatch.setattr(fit_module, "train_epoch", epoch)
    _, report = fit_quick(
        config=replace(QUICK, max_epochs=20, learning_rate=0.008, patience=3, halve_after=2)
    )
    # Halved after the second epoch in a row without a new best score, over after the third.
    assert (
        rates
        == [epoch.learning_rate for epoch in report.epochs]
        == [0.008] * 4 + [0.004] * 3 + [0.002]
    )
    assert report.best_epoch == 5


@pytest.mark.parametrize("finetune_after", [0, 1, 2])
def test_finetuning_trains_a_copy_of_the_callers_bilm_from_its_epoch_on(
    finetune_after: int, bilm: Pretrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    bilm.bilm.train()
    before = {name: tensor.clone() for name, tensor in bilm.bilm.state_dict().items()}
    scores = iter([0.1, 0.2, 0.3])  # so that the last weights are kept
    monkeypatch.setattr(TaggingTask, "score", lambda *_: {"score": next(scores)})
    config = replace(QUICK, finetune_after=finetune_after)
    fitted, report = fit_quick(
        model=bilm, words=WordsConfig(finetune=True, word_dim=8), config=config
    )
    assert fitted.model is not None and bilm.bilm.training
    assert all(parameter.requires_grad for parameter in bilm.bilm.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in bilm.bilm.state_dict().items())
    is_trained = [
        not torch.equal(tensor, before[name])
        for name, tensor in fitted.model.bilm.state_dict().items()
    ]
    assert any(is_trained) == (finetune_after < 2)
    assert report.parameters > sum(parameter.numel() for parameter in bilm.bilm.parameters())
