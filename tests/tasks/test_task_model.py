"""Every task: training, saving and loading, resuming after a kill, unusual input."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tensor_files import read_tensors
from torch import nn
from toy_tasks import ToyTask, toy_tasks

from elmokit.checkpoints.errors import CheckpointError
from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.data.readers import TaggedSentence
from elmokit.nn.bilm import BiLM
from elmokit.tasks import task_model, training
from elmokit.tasks.config import WordsConfig
from elmokit.tasks.fit import fit
from elmokit.tasks.pairs import PairsTask
from elmokit.tasks.report import FitReport
from elmokit.tasks.tagging import TaggingBatch, TaggingConfig, TaggingNetwork, TaggingTask
from elmokit.tasks.task import TASKS, find_task
from elmokit.tasks.task_model import TaskModel, load_task_model
from elmokit.tasks.word_encoder import WordEncoder

NO_DROPOUT = WordsConfig(word_dim=16, elmo_dropout=0.0, word_dropout=0.0, rare_word_dropout=0.0)
PLACES = [replace(NO_DROPOUT, elmo=place) for place in ("none", "input", "output", "both")]
OTHER_WORDS = [
    replace(NO_DROPOUT, elmo="both", mix="uniform", word_dim=0),
    replace(NO_DROPOUT, mix="top", character_dim=8),
    replace(NO_DROPOUT, finetune=True, mix_l2=0.01),
]


@pytest.fixture
def model() -> Pretrained:
    torch.manual_seed(0)
    return Pretrained(BiLM(BiLMConfig.preset("tiny")))


@pytest.fixture(params=TASKS)
def toy(request: pytest.FixtureRequest) -> ToyTask:
    return toy_tasks()[request.param]


def fit_toy(toy: ToyTask, tmp_path: Path, words: WordsConfig = NO_DROPOUT, **options: Any) -> tuple[TaskModel, Any]:
    options = {"words": words, "config": toy.config, "cache": tmp_path / "cache", **options}
    if words.elmo == "none":
        options["model"] = None
    return fit(toy.task, toy.examples, toy.examples, **options)


def weights(model: TaskModel) -> dict[str, torch.Tensor]:
    return dict(model.network.state_dict())


@pytest.mark.slow
def test_fit_memorizes_a_tiny_training_set(toy: ToyTask, model: Pretrained, tmp_path: Path) -> None:
    _, report = fit_toy(toy, tmp_path, model=model)
    assert report.dev[toy.task.metric] > 0.95
    (mix,) = report.mixes
    assert sum(mix.weights) == pytest.approx(1) and len(set(mix.weights)) == 3  # learned: they are equal at first


def test_loaded_task_model_predicts_like_the_saved_one(toy: ToyTask, model: Pretrained, tmp_path: Path) -> None:
    fitted, report = fit_toy(
        toy, tmp_path, model=model, output=tmp_path / "model", config=replace(toy.config, max_epochs=1)
    )
    loaded = load_task_model(tmp_path / "model", device="cpu")
    inputs = [toy.text, toy.text]
    assert loaded.predict(inputs) == fitted.predict(inputs)
    assert loaded.score(toy.examples) == fitted.score(toy.examples) == report.final
    assert report.final.values == report.dev
    json.dumps([loaded.task.to_json(prediction) for prediction in loaded.predict(inputs)])
    assert not list(tmp_path.glob(".fit-*"))


@pytest.mark.parametrize("words", [*PLACES, *OTHER_WORDS], ids=str)
def test_fit_trains_with_every_choice_of_word_vectors(words: WordsConfig, model: Pretrained, tmp_path: Path) -> None:
    toy = toy_tasks()["tagging"]
    fitted, report = fit_toy(
        toy, tmp_path, words, model=model, output=tmp_path / "model", config=replace(toy.config, max_epochs=2)
    )
    assert len(report.mixes) == {"none": 0, "both": 2}.get(words.elmo, 1)
    loaded = load_task_model(tmp_path / "model", device="cpu")
    assert loaded.predict([toy.text]) == fitted.predict([toy.text])


@pytest.mark.parametrize("max_epochs, is_trained", [(1, False), (2, True)])
def test_finetuning_trains_a_copy_of_the_callers_bilm_after_the_first_epoch(
    max_epochs: int, is_trained: bool, model: Pretrained, tmp_path: Path
) -> None:
    before = {name: tensor.clone() for name, tensor in model.bilm.state_dict().items()}
    toy = toy_tasks()["tagging"]
    # The score rises from each epoch to the next, so that the last weights are kept.
    config = replace(toy.config, max_epochs=max_epochs, finetune_learning_rate=1e-3)
    fitted, _ = fit_toy(toy, tmp_path, replace(NO_DROPOUT, finetune=True), model=model, config=config)
    assert fitted.model is not None
    for name, tensor in model.bilm.state_dict().items():
        assert torch.equal(tensor, before[name])
    after = fitted.model.bilm.state_dict()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in after.items()) == is_trained


@pytest.mark.parametrize(
    "file, damage",
    [
        ("state.json", lambda data: b"{}"),
        ("state.json", lambda data: data[:20]),
        ("current.safetensors", lambda data: data[:-8]),
        ("optimizer.safetensors", lambda data: b""),
    ],
)
def test_fit_refuses_a_damaged_snapshot_and_says_what_to_do(
    file: str, damage: Any, model: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = toy_tasks()["tagging"]
    real = training.train_epoch

    def killed(*arguments: Any) -> float:
        if arguments[-1] > 1:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(training, "train_epoch", killed)
        fit_toy(toy, tmp_path, model=model, output=tmp_path / "model")
    path = tmp_path / ".fit-model" / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"is a damaged snapshot .*: remove it to train anew"):
        fit_toy(toy, tmp_path, model=model, output=tmp_path / "model")


def test_predict_does_not_depend_on_the_other_examples(toy: ToyTask, model: Pretrained, tmp_path: Path) -> None:
    fitted, _ = fit_toy(toy, tmp_path, model=model, config=replace(toy.config, max_epochs=2))
    alone = [next(iter(fitted.predict_examples([example]))) for example in toy.examples[:5]]
    together = list(fitted.predict_examples(toy.examples[:5]))
    for one, other in zip(alone, together, strict=True):
        left, right = fitted.task.to_json(one), fitted.task.to_json(other)
        for span, other_span in zip(left.pop("spans", ()), right.pop("spans", ()), strict=True):
            assert other_span == {**span, "score": pytest.approx(span["score"], abs=1e-4)}
        for name, value in left.items():
            assert right[name] == (pytest.approx(value, abs=1e-4) if "score" in name else value)


def test_predict_examples_equals_that_of_one_batch_without_holding_a_long_stream(
    model: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = toy_tasks()["tagging"]
    fitted, _ = fit_toy(toy, tmp_path, model=model, config=replace(toy.config, max_epochs=2))
    whole = list(fitted.predict_examples(toy.examples))
    monkeypatch.setattr(task_model, "WORDS_AT_ONCE", 5)  # sentences have three or four words
    read: list[int] = []
    stream = fitted.predict_examples(read.append(number) or each for number, each in enumerate(toy.examples))
    predictions = [next(stream)]
    assert read == [0, 1]
    predictions += stream
    assert [(each.words, each.tags) for each in predictions] == [(each.words, each.tags) for each in whole]
    for one, other in zip(predictions, whole, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


def terms_of_loss(example: Any) -> int:
    """How many terms the mean has that is an example's loss: words, those of the translation and its end, or one."""
    if hasattr(example, "target"):
        return len(example.target) + 1
    return len(example.words) if hasattr(example, "tags") else 1


def test_loss_of_a_padded_batch_is_the_mean_of_those_of_its_examples(
    toy: ToyTask, model: Pretrained, tmp_path: Path
) -> None:
    if toy.task.max_batch_size == 1:
        pytest.skip("it reads one example at a time")
    fitted, _ = fit_toy(toy, tmp_path, model=model, config=replace(toy.config, max_epochs=2))
    examples, cpu = fitted.example_set(toy.examples), torch.device("cpu")
    assert len(set(examples.lengths[:8].tolist())) > 1
    alone = [fitted.network.loss(examples.batch(np.array([index]), cpu)).item() for index in range(8)]
    together = fitted.network.loss(examples.batch(np.arange(8), cpu)).item()
    assert together == pytest.approx(np.average(alone, weights=[*map(terms_of_loss, toy.examples[:8])]), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", [1, 3])
def test_fit_resumes_after_a_kill_with_the_same_weights(
    toy: ToyTask, stop_after: int, model: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(toy.config, max_epochs=4)
    words = replace(NO_DROPOUT, elmo_dropout=0.3, word_dropout=0.3)
    whole, report = fit_toy(toy, tmp_path, words, model=model, config=config, output=tmp_path / "whole")
    real = training.train_epoch

    def killed(*arguments: Any) -> float:
        if arguments[-1] > stop_after:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(training, "train_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        fit_toy(toy, tmp_path, words, model=model, config=config, output=tmp_path / "killed")
    monkeypatch.undo()
    resumed, again = fit_toy(toy, tmp_path, words, model=model, config=config, output=tmp_path / "killed")
    assert [epoch.loss for epoch in again.epochs] == [epoch.loss for epoch in report.epochs]
    assert again.seconds > sum(epoch.seconds for epoch in again.epochs)
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(resumed)[name]), name


def test_fit_refuses_a_snapshot_of_other_settings(
    model: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = toy_tasks()["tagging"]

    calls = []

    def twice(*arguments: Any) -> float:
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return real_epoch(*arguments)

    real_epoch = training.train_epoch
    monkeypatch.setattr(training, "train_epoch", twice)
    with pytest.raises(KeyboardInterrupt):
        fit_toy(toy, tmp_path, model=model, output=tmp_path / "model")
    monkeypatch.undo()
    with pytest.raises(FileExistsError, match="other data or settings"):
        fit_toy(toy, tmp_path, model=model, output=tmp_path / "model", config=replace(toy.config, seed=9))


def test_fit_refuses_an_existing_output_before_training(model: Pretrained, tmp_path: Path) -> None:
    toy = toy_tasks()["tagging"]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("all of it")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=r"model has no config.json, so it is not overwritten"):
            fit_toy(toy, tmp_path, model=model, output=tmp_path / "model", overwrite=overwrite)


def test_save_replaces_only_a_task_model(model: Pretrained, tmp_path: Path) -> None:
    toy = toy_tasks()["tagging"]
    fitted, _ = fit_toy(toy, tmp_path, model=model, config=replace(toy.config, max_epochs=1))
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("all of it")
    with pytest.raises(FileExistsError, match=r"precious has no config.json, so it is not overwritten"):
        fitted.save(tmp_path / "precious", overwrite=True)
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "all of it"
    save(model, tmp_path / "bilm")
    with pytest.raises(FileExistsError, match=r"bilm holds no model.*format_version and task"):
        fitted.save(tmp_path / "bilm", overwrite=True)
    fitted.save(tmp_path / "model")
    with pytest.raises(FileExistsError, match="model exists"):
        fitted.save(tmp_path / "model")
    with pytest.raises(FileExistsError, match="model is a model without a report"):
        fit_toy(toy, tmp_path, model=model, output=tmp_path / "model")
    fitted.save(tmp_path / "model", overwrite=True)
    assert load_task_model(tmp_path / "model", device="cpu").predict([toy.text]) == fitted.predict([toy.text])


def test_loaded_task_model_knows_words_with_unusual_characters(tmp_path: Path) -> None:
    toy = toy_tasks()["tagging"]
    words = ("\ufeffAnn", "sees\r", "red\u2028", "\ud800")
    examples = [TaggedSentence(words, ("B-PER", "O", "O", "O"))] * 3
    options = {"words": WordsConfig(elmo="none", word_dim=8), "config": replace(toy.config, max_epochs=1)}
    fitted, _ = fit(toy.task, examples, examples, **options, output=tmp_path / "model")
    loaded = load_task_model(tmp_path / "model", device="cpu")
    assert loaded.table.words == fitted.table.words == tuple(sorted(words))
    broken = replace(examples[0], words=("Ann", "sees", "red\ndogs", "."))
    with pytest.raises(ValueError, match=r"example 2 of the development set: the word 'red\\ndogs' has a line break"):
        fit(toy.task, examples, [examples[0], broken], **options)


def test_loaded_task_model_knows_labels_with_lone_surrogates(tmp_path: Path) -> None:
    toy = toy_tasks()["tagging"]
    examples = [TaggedSentence(("Ann", "sees"), ("\ud800", "VERB"))] * 3
    config = replace(toy.config, max_epochs=1)
    words = WordsConfig(elmo="none", word_dim=8)
    fitted, report = fit(toy.task, examples, examples, words=words, config=config, output=tmp_path / "model")
    loaded = load_task_model(tmp_path / "model", device="cpu")
    assert loaded.task.labels["tags"] == fitted.task.labels["tags"] == ["VERB", "\ud800"]
    assert FitReport.read(tmp_path / "model" / "report.json") == report


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


def test_network_of_ones_own_keeps_statistics_and_tied_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = toy_tasks()["tagging"]
    toy = replace(toy, task=NormalizedTask(TaggingConfig(hidden_dim=8)))
    words, config = WordsConfig(elmo="none", word_dim=8), replace(toy.config, max_epochs=4)
    after_first = fit_toy(toy, tmp_path, words, config=replace(config, max_epochs=1))[0]
    whole, report = fit_toy(toy, tmp_path, words, config=config, output=tmp_path / "whole")
    loaded = load_task_model(tmp_path / "whole", "cpu", NormalizedTask)
    assert loaded.predict([toy.text]) == whole.predict([toy.text])
    assert loaded.score(toy.examples).values == report.dev
    real, real_score = training.train_epoch, training.score

    def killed(*arguments: Any) -> float:
        if arguments[-1] > 2:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(training, "train_epoch", killed)
        fit_toy(toy, tmp_path, words, config=config, output=tmp_path / "killed")
    resumed, _ = fit_toy(toy, tmp_path, words, config=config, output=tmp_path / "killed")
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(resumed)[name]), name

    falling = iter([1.0, 0.5, 0.4, 0.3])
    monkeypatch.setattr(training, "score", lambda *a: {**real_score(*a), "score": next(falling)})
    first_is_best, _ = fit_toy(toy, tmp_path, words, config=config)
    for name, tensor in weights(after_first).items():
        assert torch.equal(tensor, weights(first_is_best)[name]), name


def test_fit_accepts_a_single_training_example(toy: ToyTask, model: Pretrained, tmp_path: Path) -> None:
    one = replace(toy, examples=toy.examples[:1])
    fitted, _ = fit_toy(one, tmp_path, model=model, config=replace(toy.config, max_epochs=2))
    assert len(list(fitted.predict_examples(toy.examples))) == len(toy.examples)


# An example without words, as `predict` takes it.
EMPTY = {
    "tagging": "", "classification": "", "pairs": ("", ""), "roles": None, "reading": ("", ""), "coreference": [],
    "translation": "",
}  # fmt: skip


def test_predict_answers_an_empty_input_and_its_neighbours(toy: ToyTask, model: Pretrained, tmp_path: Path) -> None:
    fitted, _ = fit_toy(toy, tmp_path, model=model, config=replace(toy.config, max_epochs=1))
    empty = EMPTY[toy.task.name]
    if empty is None:
        with pytest.raises(ValueError, match="there is no word 0 in a sentence of 0 words"):
            fitted.predict([("", 0)])
        return
    (alone,) = fitted.predict([toy.text])
    first, second, third = fitted.predict([empty, toy.text, empty])
    left, right = fitted.task.to_json(second), fitted.task.to_json(alone)
    for name, value in left.items():
        assert right[name] == (pytest.approx(value, abs=1e-4) if "score" in name else value)
    assert first == third


@pytest.mark.parametrize("name", ["tagging", "classification", "roles", "coreference"])
def test_predict_reads_a_long_document(name: str, model: Pretrained, tmp_path: Path) -> None:
    toy = toy_tasks()[name]
    fitted, _ = fit_toy(toy, tmp_path, model=model, config=replace(toy.config, max_epochs=1))
    words = ["Ann", "sees", "red", "dogs"] * 500
    long = {"roles": (words, 1), "coreference": [words[:1000], words[1000:]]}.get(name, words)
    (prediction,) = fitted.predict([long])
    assert len(prediction.words) == 2000


@pytest.mark.parametrize("name", ["classification", "pairs", "reading"])
def test_a_text_that_is_too_long_is_refused_with_advice(name: str, model: Pretrained, tmp_path: Path) -> None:
    toy = toy_tasks()[name]
    fitted, _ = fit_toy(toy, tmp_path, model=model, config=replace(toy.config, max_epochs=1))
    text = "Ann " * 5001
    long = {"pairs": (text, "Ann"), "reading": ("Who?", text)}.get(name, text)
    with pytest.raises(ValueError, match=rf"example 2: it has 5,001 words, but {name} reads at most 5,000: split it"):
        fitted.predict([toy.text, long])


@pytest.mark.parametrize("name", ["tagging", "classification", "pairs", "roles"])
def test_labels_that_the_training_set_lacks_count_as_errors(name: str, model: Pretrained, tmp_path: Path) -> None:
    toy = toy_tasks()[name]
    examples = toy.examples[:4]
    if name in ("tagging", "roles"):
        test = [replace(example, tags=("B-NEW", *["O"] * (len(example.words) - 1))) for example in examples]
    else:
        test = [replace(example, label="new") for example in examples]
    options = {"model": model, "cache": tmp_path, "words": NO_DROPOUT, "config": replace(toy.config, max_epochs=2)}
    label = "NEW" if name in ("tagging", "roles") else "new"
    with pytest.warns(UserWarning, match=f"the test set has labels that the training set lacks, .*: {label}"):
        _, report = fit(toy.task, toy.examples, toy.examples, test, **options)
    assert report.test is not None and report.test[toy.task.metric] == 0
    assert report.by_label is not None
    assert (report.by_label[label].recall, report.by_label[label].support) == (0, 4)


@pytest.mark.parametrize(
    "of_model, of_task, is_other",
    [
        ("words-1", "english-1", True),
        ("english-1", "english-1", False),
        ("whitespace-1", "english-1", False),
        ("words-1", "whitespace-1", False),
        (None, "english-1", False),
    ],
)
def test_a_task_that_tokenizes_in_another_way_than_the_model_says_so(
    of_model: str | None, of_task: str, is_other: bool, model: Pretrained, tmp_path: Path
) -> None:
    toy = toy_tasks()["pairs"]
    task = PairsTask(replace(toy.task.config, tokenizer=of_task))
    model = replace(model, tokenizer=of_model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(task, toy.examples, toy.examples, model=model, cache=tmp_path, config=replace(toy.config, max_epochs=1))
    found = [str(each.message) for each in caught if "tokenized by" in str(each.message)]
    assert len(found) == is_other
    assert not is_other or "choose the tokenizer words-1 for the task" in found[0]


def test_fit_raises_for_a_set_without_words_and_names_it(model: Pretrained, tmp_path: Path) -> None:
    toy = toy_tasks()["tagging"]
    with pytest.raises(ValueError, match="the development set holds no words"):
        fit(toy.task, toy.examples, [], model=model, cache=tmp_path)


def test_load_task_model_raises_checkpoint_error_for_damaged_files(model: Pretrained, tmp_path: Path) -> None:
    toy = toy_tasks()["tagging"]
    fit_toy(toy, tmp_path, model=model, output=tmp_path / "model", config=replace(toy.config, max_epochs=1))
    path = tmp_path / "model" / "config.json"
    described = json.loads(path.read_text())
    for change in (
        {"task": "dancing"},
        {"format_version": 99},
        {"more": 1},
        {"task_config": {"hidden_dim": "x"}},
        {"labels": {"tags": ["O", []]}},
    ):
        path.write_text(json.dumps({**described, **change}))
        with pytest.raises(CheckpointError, match=r"config.json is not the configuration of a task model"):
            load_task_model(tmp_path / "model")
    path.write_text(json.dumps(described))
    # Settings that would fill the memory are compared with the file first.
    for change in (
        {"task_config": {**described["task_config"], "hidden_dim": 10**7}},
        {"labels": {}},
        {"labels": {"tags": 3}},
    ):
        path.write_text(json.dumps({**described, **change}))
        with pytest.raises(CheckpointError, match=r"does not fit its configuration|make no network"):
            load_task_model(tmp_path / "model")
    path.write_text(json.dumps(described))
    weights = tmp_path / "model" / "weights.safetensors"
    whole, tensors = weights.read_bytes(), read_tensors(weights)
    tensors["output.bias"][0] = float("nan")
    save_file(tensors, weights)
    with pytest.raises(CheckpointError, match=r"weights that are not finite: output\.bias; fit the model again"):
        load_task_model(tmp_path / "model")
    weights.write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        load_task_model(tmp_path / "model")


def test_load_task_model_runs_no_code_that_its_files_name(model: Pretrained, tmp_path: Path) -> None:
    toy = toy_tasks()["tagging"]
    fit_toy(toy, tmp_path, model=model, output=tmp_path / "model", config=replace(toy.config, max_epochs=1))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w').close()")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "task": f"{tmp_path / 'evil.py'}:Task"}))
    with pytest.raises(CheckpointError, match="give the task"):
        load_task_model(tmp_path / "model")
    assert not (tmp_path / "it-ran").exists()


def test_find_task_reads_a_class_from_a_file(tmp_path: Path) -> None:
    source = "from elmokit.tasks.tagging import TaggingTask\nclass Mine(TaggingTask):\n    name = 'mine'\n"
    (tmp_path / "mine.py").write_text(source)
    assert find_task(f"{tmp_path / 'mine.py'}:Mine").name == "mine"
    for wrong, message in (
        ("dancing", "there is no task .dancing.: choose tagging"),
        (f"{tmp_path / 'none.py'}:Mine", r"there is no file .*none\.py"),
        (f"{tmp_path / 'mine.py'}:Other", r"mine\.py holds no class Other derived from"),
    ):
        with pytest.raises(ValueError, match=message):
            find_task(wrong)


OWN_TASK = """from __future__ import annotations
from dataclasses import dataclass
from typing import Literal
from elmokit.tasks.tagging import TaggingTask

with open({log!r}, "a") as log:
    log.write("executed ")

@dataclass(frozen=True)
class Settings:
    color: Literal["red", "blue"] = "red"

class Mine(TaggingTask):
    name = {name!r}
    Config = Settings
"""


def test_find_task_reads_a_file_with_deferred_annotations_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(OWN_TASK.format(log=str(tmp_path / name / "log"), name=name))
    found = [find_task(f"{tmp_path / name / 'mine.py'}:Mine") for name in ("one", "one", "two")]
    assert [task.name for task in found] == ["one", "one", "two"] and found[0] is found[1]
    assert (tmp_path / "one" / "log").read_text() == "executed "
    (tmp_path / "one" / "mine.py").write_text(OWN_TASK.format(log=str(tmp_path / "one" / "log"), name="changed"))
    assert find_task(f"{tmp_path / 'one' / 'mine.py'}:Mine").name == "changed"


def test_find_task_registers_no_module_of_a_file_that_raises(tmp_path: Path) -> None:
    (tmp_path / "broken_task.py").write_text("raise RuntimeError('broken')")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            find_task(f"{tmp_path / 'broken_task.py'}:Mine")
    (tmp_path / "broken_task.txt").write_text("")
    with pytest.raises(ValueError, match=r"its name must end in .py"):
        find_task(f"{tmp_path / 'broken_task.txt'}:Mine")
