"""Training: resumed after a kill, finished runs, early stopping, fine-tuning, pretrained vectors."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from toy_tasks import toy_tasks

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.data.readers import TaggedSentence
from elmokit.nn.bilm import BiLM
from elmokit.tasks.config import TASKS, FitConfig, WordsConfig
from elmokit.tasks.fitting import fit as fit_module
from elmokit.tasks.fitting.fit import fit, train_epoch, unimproved
from elmokit.tasks.fitting.model import ExampleSet, TaskModel, load_task_model
from elmokit.tasks.fitting.report import Epoch, FitReport
from elmokit.tasks.fitting.words import WordEncoder
from elmokit.tasks.tagging import TaggingBatch, TaggingConfig, TaggingNetwork, TaggingTask

TOY = toy_tasks()["tagging"]
QUICK = replace(TOY.config, max_epochs=2)
LEARNED = WordsConfig(elmo="none", word_dim=8)


def fit_quick(toy: Any = TOY, **options: Any) -> tuple[TaskModel, FitReport]:
    return fit(toy.task, toy.examples, toy.examples, **{"words": LEARNED, "config": QUICK, **options})


@pytest.fixture
def bilm() -> Pretrained:
    torch.manual_seed(0)
    return Pretrained(BiLM(BiLMConfig.preset("tiny")))


def kill_after(epochs: int, monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> None:
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


# --- Resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_after, finetune", [(1, True), (3, False)])
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_weights(
    name: str, stop_after: int, finetune: bool, bilm: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = toy_tasks()[name]
    words = WordsConfig(word_dim=8, elmo_dropout=0.3, word_dropout=0.3, finetune=finetune)
    options = {"words": words, "config": replace(toy.config, max_epochs=4), "model": bilm, "cache": tmp_path / "cache"}
    whole, report = fit_quick(toy, output=tmp_path / "whole", **options)
    kill_after(stop_after, monkeypatch, toy, output=tmp_path / "killed", **options)
    resumed, again = fit_quick(toy, output=tmp_path / "killed", **options)
    assert [epoch.loss for epoch in again.epochs] == [epoch.loss for epoch in report.epochs]
    assert again.seconds > sum(epoch.seconds for epoch in again.epochs)
    assert_equal_weights(whole, resumed)
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"killed", "whole"}


class NormalizedNetwork(TaggingNetwork):
    """A network with statistics, which no gradient changes, and with tied weights."""

    def __init__(self, config: TaggingConfig, words: WordEncoder, num_tags: int) -> None:
        super().__init__(config, words, num_tags, crf=None)
        self.norm = nn.BatchNorm1d(words.dim)
        self.there, self.back = nn.Linear(words.dim, words.dim), nn.Linear(words.dim, words.dim)
        self.back.weight = self.there.weight

    def forward(self, batch: TaggingBatch) -> torch.Tensor:
        encoded = self.words(batch.words)
        vectors = self.back(self.there(self.norm(encoded.vectors.flatten(0, 1)))).view_as(encoded.vectors)
        return self.output(self.lstm(vectors, encoded.mask))


class NormalizedTask(TaggingTask):
    name = "normalized"

    def network(self, words: WordEncoder) -> TaggingNetwork:
        return NormalizedNetwork(self.config, words, len(self.labels["tags"]))


def test_a_network_of_ones_own_keeps_statistics_and_tied_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy, config = replace(TOY, task=NormalizedTask(TaggingConfig(hidden_dim=8))), replace(TOY.config, max_epochs=4)
    after_first, _ = fit_quick(toy, config=replace(config, max_epochs=1))
    whole, report = fit_quick(toy, config=config, output=tmp_path / "whole")
    loaded = load_task_model(tmp_path / "whole", "cpu", NormalizedTask)
    assert loaded.predict([toy.text]) == whole.predict([toy.text])
    assert loaded.score(toy.examples).values == report.dev
    kill_after(2, monkeypatch, toy, config=config, output=tmp_path / "killed")
    assert_equal_weights(whole, fit_quick(toy, config=config, output=tmp_path / "killed")[0])
    scores = iter([1.0, 0.5, 0.4, 0.3, 0.3])
    monkeypatch.setattr(NormalizedTask, "score", lambda *_: {"score": next(scores)})
    assert_equal_weights(after_first, fit_quick(toy, config=config)[0])  # the best ones


def test_a_finished_run_is_loaded_and_another_one_refused(
    bilm: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train", "dev"):
        rows = (zip(each.words, each.tags, strict=True) for each in TOY.examples)
        text = "\n".join("".join(f"{word} {tag}\n" for word, tag in row) for row in rows)
        (tmp_path / name).write_text(text)
    (tmp_path / "vectors.txt").write_text("Ann 1 2\nBob 3 4\n")
    words = WordsConfig(word_dim=8, vectors=str(tmp_path / "vectors.txt"))
    options: dict[str, Any] = {"words": words, "config": QUICK, "model": bilm, "cache": tmp_path / "cache"}

    def run(**changed: Any) -> tuple[TaskModel, FitReport]:
        return fit(TOY.task, tmp_path / "train", tmp_path / "dev", output=tmp_path / "model", **{**options, **changed})

    fitted, report = run()
    with monkeypatch.context() as patched:
        patched.setattr(fit_module, "train_epoch", lambda *_: pytest.fail("trained again"))
        again, same = run(config=replace(QUICK, device=None))
    assert same == report and again.predict([TOY.text]) == fitted.predict([TOY.text])
    other = Pretrained(BiLM(BiLMConfig.preset("tiny")))
    seed = replace(QUICK, seed=7)
    for changed, message in (({"config": seed}, "seed"), ({"model": other}, "model"), ({"words": LEARNED}, "elmo")):
        with pytest.raises(FileExistsError, match=message):
            run(**changed)
    for name in ("vectors.txt", "dev"):
        (tmp_path / name).write_text((tmp_path / name).read_text().replace("Ann", "Eve"))
        with pytest.raises(FileExistsError, match="files"):
            run()
        _, report = run(overwrite=True, config=seed)
        assert report.settings["fit"]["seed"] == 7
        run(overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "dev", "model", "train", "vectors.txt"]


def test_the_state_of_another_run_is_refused_before_vectors_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_after(1, monkeypatch, output=tmp_path / "model")
    other: dict[str, Any] = {"output": tmp_path / "model", "config": replace(QUICK, seed=7)}
    with monkeypatch.context() as patched, pytest.raises(FileExistsError, match="seed"):
        patched.setattr(TaskModel, "open_caches", lambda *_: pytest.fail("computed vectors"))
        fit_quick(**other)
    fit_quick(**other, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_kill_after_the_model_was_saved_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(fit_module, "shutil", SimpleNamespace(rmtree=killed))
        fit_quick(output=tmp_path / "model")
    assert (tmp_path / ".fit-model").exists()
    fit_quick(output=tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_second_run_with_the_same_output_is_refused_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def epoch(*arguments: Any) -> float:
        with pytest.raises(ValueError, match="another process"):
            fit_quick(output=tmp_path / "model")
        return train_epoch(*arguments)

    monkeypatch.setattr(fit_module, "train_epoch", epoch)
    fit_quick(output=tmp_path / "model")


@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_but_a_task_model_is_overwritten(overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("all of it")
    with pytest.raises(FileExistsError, match="model"):
        fit_quick(output=tmp_path / "model", overwrite=overwrite)
    assert (tmp_path / "model" / "thesis.txt").read_text() == "all of it"


# --- Epochs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], 0),
        ([0.5], 0),
        ([0.5, 0.6, 0.6, 0.4], 2),
        ([0.0, 0.0, 0.0], 0),  # not one span is found yet
        ([0.7, 0.7, 0.7, 0.6, 0.7], 2),  # of the changes since the third epoch
        ([0.0, 0.0, 0.3], 0),
        ([1.0, 1.0, 1.0], 2),  # nothing is left to learn
    ],
)
def test_unimproved_epochs_count_from_the_first_change_of_the_score(scores: list[float], expected: int) -> None:
    assert unimproved([Epoch(1.0, {"f1": score}, 0.1, 1.0) for score in scores], "f1") == expected


def test_the_rate_is_halved_and_training_stops_where_the_score_no_longer_rises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = iter([0.2, 0.5, 0.4, 0.5, 0.6, 0.6, 0.1, 0.6, 0.6])
    monkeypatch.setattr(TaggingTask, "score", lambda *_: {"score": next(scores)})
    rates = []

    def epoch(network: Any, examples: Any, optimizer: torch.optim.Optimizer, *others: Any) -> float:
        rates.append(optimizer.param_groups[0]["lr"])
        return train_epoch(network, examples, optimizer, *others)

    monkeypatch.setattr(fit_module, "train_epoch", epoch)
    _, report = fit_quick(config=replace(QUICK, max_epochs=20, learning_rate=0.008, patience=3, halve_after=2))
    # Halved after the second epoch in a row without a new best score, over after the third.
    assert rates == [epoch.learning_rate for epoch in report.epochs] == [0.008] * 4 + [0.004] * 3 + [0.002]
    assert report.best_epoch == 5


def test_the_seed_alone_decides_and_the_global_generator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[list[int]] = []
    real = ExampleSet.batch

    def noted(examples: ExampleSet, chosen: np.ndarray, device: torch.device) -> Any:
        orders.append(chosen.tolist())
        return real(examples, chosen, device)

    monkeypatch.setattr(ExampleSet, "batch", noted)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, same, other = (fit_quick(config=replace(QUICK, seed=seed))[0] for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert_equal_weights(one, same)
    assert not torch.equal(one.network.output.weight, other.network.output.weight)
    run = len(orders) // 3
    assert orders[:run] == orders[run : 2 * run] != orders[2 * run :]
    assert orders[:3] != orders[run // 2 : run // 2 + 3]  # the next epoch has another order


def test_the_norm_of_all_gradients_is_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    norms, step = [], torch.optim.Adam.step

    def noted(optimizer: torch.optim.Adam, *arguments: Any, **options: Any) -> Any:
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        norms.append(float(torch.stack([gradient.norm() for gradient in gradients]).norm()))
        return step(optimizer, *arguments, **options)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    fit_quick(config=replace(QUICK, max_epochs=1, max_grad_norm=0.01))
    assert norms == pytest.approx([0.01] * 3, rel=1e-3)  # of 24 examples, 8 at a time


def test_training_stops_after_the_epoch_that_exceeds_the_limit_of_time() -> None:
    assert len(fit_quick(config=replace(QUICK, max_minutes=1e-9))[1].epochs) == 1


def test_a_score_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaggingTask, "score", lambda *_: {"score": 0.5, "rare": math.nan})
    with pytest.raises(ValueError, match="rare"):
        fit_quick()


@pytest.mark.parametrize("finetune_after", [0, 1, 2])
def test_finetuning_trains_a_copy_of_the_callers_bilm_from_its_epoch_on(
    finetune_after: int, bilm: Pretrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    bilm.bilm.train()
    before = {name: tensor.clone() for name, tensor in bilm.bilm.state_dict().items()}
    scores = iter([0.1, 0.2, 0.3])  # so that the last weights are kept
    monkeypatch.setattr(TaggingTask, "score", lambda *_: {"score": next(scores)})
    config = replace(QUICK, finetune_after=finetune_after)
    fitted, report = fit_quick(model=bilm, words=WordsConfig(finetune=True, word_dim=8), config=config)
    assert fitted.model is not None and bilm.bilm.training
    assert all(parameter.requires_grad for parameter in bilm.bilm.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in bilm.bilm.state_dict().items())
    is_trained = [not torch.equal(tensor, before[name]) for name, tensor in fitted.model.bilm.state_dict().items()]
    assert any(is_trained) == (finetune_after < 2)
    assert report.parameters > sum(parameter.numel() for parameter in bilm.bilm.parameters())


# --- Examples --------------------------------------------------------------------------------------------------------


def test_pretrained_vectors_serve_words_that_the_training_set_lacks(tmp_path: Path) -> None:
    """The tag depends on the vector alone, which is not trained."""
    seen, unseen = [f"seen{n}" for n in range(12)], [f"unseen{n}" for n in range(12)]
    lines = [f"{word} {1 if number % 2 else -1} 0.5" for words in (seen, unseen) for number, word in enumerate(words)]
    (tmp_path / "vectors.txt").write_text("\n".join(lines) + "\n")
    sentences = [TaggedSentence((word,), ("ODD" if number % 2 else "EVEN",)) for number, word in enumerate(seen)]
    words = WordsConfig(elmo="none", word_dim=0, vectors=str(tmp_path / "vectors.txt"), word_dropout=0.0)
    config = FitConfig(max_epochs=30, patience=30, halve_after=30, learning_rate=0.02, device="cpu")
    fitted, _ = fit(TOY.task, sentences, sentences, words=words, config=config, output=tmp_path / "model")
    (tmp_path / "vectors.txt").unlink()
    loaded = load_task_model(tmp_path / "model", device="cpu")
    tags = [tagging.tags[0] for tagging in loaded.predict([[word.capitalize()] for word in unseen])]
    assert tags == ["EVEN", "ODD"] * 6
    assert loaded.predict([unseen]) == fitted.predict([unseen])
    assert loaded.network.words.get_buffer("vectors")[1].tolist() == [-1, 0.5]


@pytest.mark.parametrize("number, name", [(0, "training"), (1, "development"), (2, "test")])
def test_an_invalid_example_is_named_by_its_set_and_number(number: int, name: str) -> None:
    for wrong in (TaggedSentence("Ann", ("O",) * 3), TaggedSentence(("Ann", "sees"), ("O",))):  # type: ignore[arg-type]
        sets = [[*TOY.examples] for _ in range(3)]
        sets[number][1] = wrong
        with pytest.raises(ValueError, match=f"example 2 of the {name} set"):
            fit(TOY.task, *sets, words=LEARNED, config=QUICK)
    sets[number] = [TaggedSentence((), ())]
    with pytest.raises(ValueError, match=f"{name} set"):
        fit(TOY.task, *sets, words=LEARNED, config=QUICK)
