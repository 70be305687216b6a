"""From files to models: pretrained vectors, several seeds, finished runs, limits of time."""

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
import torch
from toy_tasks import toy_tasks

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.data.readers import TaggedSentence
from elmokit.nn.bilm import BiLM
from elmokit.tasks import training
from elmokit.tasks.config import FitConfig, WordsConfig
from elmokit.tasks.fit import fit, fit_seeds
from elmokit.tasks.metrics import F1Score
from elmokit.tasks.report import FitReport
from elmokit.tasks.task import Task, find_task
from elmokit.tasks.task_model import TaskModel, load_task_model, make_network
from elmokit.tasks.word_batches import WordTable

TOY = toy_tasks()["tagging"]
QUICK = replace(TOY.config, max_epochs=2)
LEARNED = WordsConfig(elmo="none", word_dim=8)


def fit_quick(**options: Any) -> tuple[Any, FitReport]:
    return fit(TOY.task, TOY.examples, TOY.examples, **{"words": LEARNED, "config": QUICK, **options})


def make_untrained(task: Task, examples: Sequence[Any] = ()) -> TaskModel:
    labelled, table = type(task)(task.config, task.learn(examples)), WordTable.of([])
    return TaskModel(labelled, make_network(labelled, LEARNED, table, None), table, None)


# --- Pretrained vectors ----------------------------------------------------------------------------------------------


def test_fit_with_word_vectors_reads_words_that_the_training_set_lacks(tmp_path: Path) -> None:
    """The tag depends on the vector alone, so that words that were never seen are tagged correctly."""
    seen, unseen = [f"seen{n}" for n in range(12)], [f"unseen{n}" for n in range(12)]
    lines = [f"{word} {1 if number % 2 else -1} 0.5" for words in (seen, unseen) for number, word in enumerate(words)]
    (tmp_path / "vectors.txt").write_text("\n".join(lines) + "\n")
    sentences = [TaggedSentence((word,), ("ODD" if number % 2 else "EVEN",)) for number, word in enumerate(seen)]
    words = WordsConfig(elmo="none", word_dim=0, vectors=str(tmp_path / "vectors.txt"), word_dropout=0.0)
    config = FitConfig(max_epochs=30, patience=30, halve_after=30, learning_rate=0.02, device="cpu")
    fitted, report = fit(TOY.task, sentences, sentences, words=words, config=config, output=tmp_path / "model")
    assert report.coverage == {"exact": 12, "lowercase": 0, "missing": 0}
    (tmp_path / "vectors.txt").unlink()
    loaded = load_task_model(tmp_path / "model", device="cpu")
    tags = [tagging.tags[0] for tagging in loaded.predict([[word.capitalize()] for word in unseen])]
    assert tags == ["EVEN", "ODD"] * 6
    assert loaded.predict([unseen]) == fitted.predict([unseen])


def test_word_vectors_are_not_trained(tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text("Ann 1 2\nzebra 3 4\n")
    words = replace(LEARNED, vectors=str(tmp_path / "vectors.txt"), vectors_kept=0)
    fitted, report = fit_quick(words=words)
    assert fitted.table.vectors is not None and fitted.table.vectors.words == ("Ann",)
    assert fitted.network.words.get_buffer("vectors").tolist() == [[0, 0], [1, 2]]
    assert report.coverage is not None and report.coverage["exact"] == 1


@pytest.mark.parametrize("changed", ["Bob 1 2\nAnn 3 4\n", "Ann 1 2\nBob 3 5\n"])
def test_fit_refuses_the_output_of_a_run_whose_vectors_had_other_words_or_numbers(changed: str, tmp_path: Path) -> None:
    words = replace(LEARNED, vectors=str(tmp_path / "vectors.txt"))
    (tmp_path / "vectors.txt").write_text("Ann 1 2\nBob 3 4\n")
    fit_quick(words=words, output=tmp_path / "model")
    (tmp_path / "vectors.txt").write_text(changed)
    with pytest.raises(FileExistsError, match="from a run with other data"):
        fit_quick(words=words, output=tmp_path / "model")


def test_fit_refuses_the_output_of_a_run_with_another_bilm(tmp_path: Path) -> None:
    """Which differs in its weights alone."""
    torch.manual_seed(0)
    first, second = (Pretrained(BiLM(BiLMConfig.preset("tiny"))) for _ in range(2))
    options: dict[str, Any] = {"words": WordsConfig(), "output": tmp_path / "model", "cache": tmp_path / "cache"}
    _, report = fit_quick(model=first, **options)
    assert fit_quick(model=first, **options)[1] == report
    with pytest.raises(FileExistsError, match="from a run with other data"):
        fit_quick(model=second, **options)


# --- Runs ------------------------------------------------------------------------------------------------------------


def test_fit_that_is_finished_is_loaded_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, report = fit_quick(output=tmp_path / "model")
    with monkeypatch.context() as patched:
        patched.setattr(training, "train_epoch", lambda *_: pytest.fail("trained again"))
        again, same = fit_quick(output=tmp_path / "model")
    assert same == report
    assert again.predict([TOY.text]) == fitted.predict([TOY.text])
    other = replace(QUICK, seed=7)
    with pytest.raises(FileExistsError, match="from a run with other seed: choose"):
        fit_quick(output=tmp_path / "model", config=other)
    _, overwritten = fit_quick(output=tmp_path / "model", config=other, overwrite=True)
    assert overwritten.settings["fit"]["seed"] == 7


def test_fit_that_is_finished_is_loaded_on_another_device(tmp_path: Path) -> None:
    _, report = fit_quick(output=tmp_path / "model", config=replace(QUICK, device="cpu"))
    assert fit_quick(output=tmp_path / "model", config=replace(QUICK, device=None))[1] == report


def test_fit_refuses_the_output_of_a_task_whose_code_was_changed(tmp_path: Path) -> None:
    code = "from elmokit.tasks.tagging import TaggingTask\n\nclass Own(TaggingTask):\n    name = 'own'\n"
    for text in (code, code + "    # changed\n"):
        (tmp_path / "own.py").write_text(text)
        os.utime(tmp_path / "own.py", ns=(len(text), len(text)))
        task = find_task(f"{tmp_path}/own.py:Own")()
        if text == code:
            fit(task, TOY.examples, TOY.examples, words=LEARNED, config=QUICK, output=tmp_path / "model")
    with pytest.raises(FileExistsError, match="other code of the task"):
        fit(task, TOY.examples, TOY.examples, words=LEARNED, config=QUICK, output=tmp_path / "model")


def test_fit_hashes_the_code_of_its_task_not_that_of_another_file_of_this_name(tmp_path: Path) -> None:
    code = "from elmokit.tasks.tagging import TaggingTask\n\nclass Own(TaggingTask):\n    name = 'own'\n"
    for directory in ("one", "two"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "own.py").write_text(code)
    one, _ = (find_task(f"{tmp_path / directory}/own.py:Own")() for directory in ("one", "two"))
    fit(one, TOY.examples, TOY.examples, words=LEARNED, config=QUICK, output=tmp_path / "model")
    (tmp_path / "two" / "own.py").write_text(f"{code}    # changed\n")
    fit(one, TOY.examples, TOY.examples, words=LEARNED, config=QUICK, output=tmp_path / "model")  # loads it
    (tmp_path / "one" / "own.py").write_text(f"{code}    # changed\n")
    with pytest.raises(FileExistsError, match="other code of the task"):
        fit(one, TOY.examples, TOY.examples, words=LEARNED, config=QUICK, output=tmp_path / "model")


@pytest.mark.parametrize("number", [1, 2])
def test_fit_names_the_set_whose_tags_are_of_another_scheme(number: int) -> None:
    sets = [TOY.examples, TOY.examples, TOY.examples]
    sets[number] = [*TOY.examples, TaggedSentence(("Ann",), ("U-PER",))]
    name = ("training", "development", "test")[number]
    message = f"example {len(sets[number])} of the {name} set: tags like U-PER are BILOU"
    with pytest.raises(ValueError, match=message):
        fit(TOY.task, *sets, words=LEARNED, config=QUICK)


@dataclass(frozen=True, eq=False)
class SentenceWithFeatures(TaggedSentence):
    features: Any = None


@pytest.mark.parametrize("of_array", [np.array, torch.from_numpy, lambda array: {"nested": [array]}])
@pytest.mark.parametrize(("position", "value"), [(1000, 1.0), (0, 1 + 1e-15)])
def test_fit_refuses_the_output_of_a_run_whose_arrays_differ(
    tmp_path: Path, position: int, value: float, of_array: Callable[[np.ndarray], Any]
) -> None:
    """Examples may hold arrays, which `repr` abbreviates above 1,000 numbers, and rounds to 8 digits."""
    features = np.ones(2001)
    features[1000] = 0
    changed = features.copy()
    changed[position] = value
    examples, others = (
        [SentenceWithFeatures(each.words, each.tags, of_array(array)) for each in TOY.examples]
        for array in (features, changed)
    )
    options: dict[str, Any] = {"words": LEARNED, "config": QUICK, "output": tmp_path / "model"}
    fit(TOY.task, examples, TOY.examples, **options)
    with np.printoptions(linewidth=200, precision=3):
        fit(TOY.task, examples, TOY.examples, **options)  # the same run
    with pytest.raises(FileExistsError, match="from a run with other data"):
        fit(TOY.task, others, TOY.examples, **options)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_fit_refuses_a_string_in_place_of_words(number: int) -> None:
    sets: list[Any] = [TOY.examples, TOY.examples, TOY.examples]
    sets[number] = [TOY.examples[0], TaggedSentence("Ann", ("O", "O", "O"))]  # type: ignore[arg-type]
    name = ("training", "development", "test")[number]
    with pytest.raises(ValueError, match=f"example 2 of the {name} set: 'Ann' is a string, not a sequence of words"):
        fit(TOY.task, *sets, words=LEARNED, config=QUICK)


def test_fit_leaves_the_bilm_alone_until_its_epoch() -> None:
    given = Pretrained(BiLM(BiLMConfig.preset("tiny")))
    words, bilms = WordsConfig(finetune=True, word_dim=8), {}
    for epochs in (0, 1):
        config = replace(QUICK, max_epochs=1, finetune_after=epochs)
        model, _ = fit_quick(model=given, words=words, config=config)
        bilms[epochs] = model.network.words.elmo.bilm.state_dict()
    before = given.bilm.state_dict()
    assert all(torch.equal(bilms[1][name], value) for name, value in before.items())
    assert not all(torch.equal(bilms[0][name], value) for name, value in before.items())


def test_fit_refuses_the_output_of_another_split_of_the_same_examples(tmp_path: Path) -> None:
    first, second = TOY.examples[:16], TOY.examples[16:]
    fit(TOY.task, first, second, words=LEARNED, config=QUICK, output=tmp_path / "model")
    with pytest.raises(FileExistsError, match="from a run with other data, or other code of the task"):
        fit(TOY.task, first[:12], [*first[12:], *second], words=LEARNED, config=QUICK, output=tmp_path / "model")


def test_fit_seeds_reports_mean_and_deviation_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"words": LEARNED, "config": QUICK, "output": tmp_path / "runs"}
    real = training.train_epoch

    def killed(*arguments: Any) -> float:
        if arguments[3].seed == 1:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(training, "train_epoch", killed)
        with pytest.raises(KeyboardInterrupt):
            fit_seeds(TOY.task, TOY.examples, TOY.examples, TOY.examples[:8], seeds=(0, 1, 2), **options)
    finished = (tmp_path / "runs" / "seed-0" / "report.json").read_bytes()
    report = fit_seeds(TOY.task, TOY.examples, TOY.examples, TOY.examples[:8], seeds=(0, 1, 2), **options)
    assert (tmp_path / "runs" / "seed-0" / "report.json").read_bytes() == finished
    runs = [FitReport.read(tmp_path / "runs" / f"seed-{seed}" / "report.json") for seed in range(3)]
    assert len({run.epochs[0].loss for run in runs}) == 3
    scores = [run.test["accuracy"] for run in runs if run.test is not None]
    assert report.test is not None
    assert (report.test["accuracy"].mean, report.test["accuracy"].deviation) == (mean(scores), stdev(scores))
    assert "3 seeds" in str(report) and json.loads((tmp_path / "runs" / "report.json").read_text())["seeds"] == [
        0,
        1,
        2,
    ]
    with pytest.raises(ValueError, match="seeds must be different numbers"):
        fit_seeds(TOY.task, TOY.examples, TOY.examples, seeds=(1, 1), **options)


@pytest.mark.parametrize("overwrite", [False, True])
def test_fit_refuses_a_directory_of_several_models(overwrite: bool, tmp_path: Path) -> None:
    fit_seeds(TOY.task, TOY.examples, TOY.examples, seeds=(1,), words=LEARNED, config=QUICK, output=tmp_path / "runs")
    with pytest.raises(FileExistsError, match="runs holds the models of several seeds: choose another directory"):
        fit_quick(output=tmp_path / "runs", overwrite=overwrite)
    (tmp_path / "sizes").mkdir()
    (tmp_path / "runs").rename(tmp_path / "sizes" / "with-ELMo-6")
    (tmp_path / "sizes" / "report.json").write_text("{}")  # as sample_efficiency writes one
    with pytest.raises(FileExistsError, match=r"sizes has no config.json, so it is not overwritten"):
        fit_quick(output=tmp_path / "sizes", overwrite=overwrite)
    assert (tmp_path / "sizes" / "with-ELMo-6" / "seed-1" / "weights.safetensors").is_file()


def test_fit_seeds_refuses_the_directory_of_a_model(tmp_path: Path) -> None:
    fit_quick(output=tmp_path / "model")
    with pytest.raises(FileExistsError, match="model is a task model: choose"):
        fit_seeds(TOY.task, TOY.examples, TOY.examples, seeds=(1,), output=tmp_path / "model", words=LEARNED)


def test_fit_seeds_replaces_no_report_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "report.json").write_text('{"mine": 1}')
    with pytest.raises(FileExistsError, match=r"report\.json is not a SeedsReport: move it, or choose another output"):
        fit_seeds(TOY.task, TOY.examples, TOY.examples, seeds=(1,), output=tmp_path / "runs", words=LEARNED)
    assert (tmp_path / "runs" / "report.json").read_text() == '{"mine": 1}'


def test_fit_refuses_a_task_that_would_be_loaded_as_another() -> None:
    class Changed(type(TOY.task)):
        pass

    with pytest.raises(ValueError, match=r"Changed has the name of elmokit's own task 'tagging', .* a name of its own"):
        fit(Changed(), TOY.examples, TOY.examples, words=LEARNED, config=QUICK)


def test_fit_refuses_the_state_of_an_unfinished_other_run_before_it_computes_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr("elmokit.tasks.training._last_epoch", killed)
        fit_quick(output=tmp_path / "model")
    other = {"output": tmp_path / "model", "config": replace(QUICK, seed=7)}
    with monkeypatch.context() as patched, pytest.raises(FileExistsError, match="is the state of an unfinished run"):
        patched.setattr(TaskModel, "open_caches", lambda *_: pytest.fail("computed vectors"))
        fit_quick(**other)
    fit_quick(**other, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_fit_halves_the_rate_and_stops_where_the_score_no_longer_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.2, 0.5, 0.4, 0.5, 0.6, 0.6, 0.1, 0.6])
    monkeypatch.setattr(training, "score", lambda *_: {TOY.task.metric: next(scores)})
    rates, real = [], training.train_epoch

    def epoch(network: Any, examples: Any, optimizer: torch.optim.Optimizer, *others: Any) -> float:
        rates.append(optimizer.param_groups[0]["lr"])
        return real(network, examples, optimizer, *others)

    monkeypatch.setattr(training, "train_epoch", epoch)
    config = replace(TOY.config, max_epochs=20, learning_rate=0.008, patience=3, halve_after=2)
    _, report = fit_quick(config=config)
    # Halved after the second epoch in a row without a new best score, over after the third.
    assert rates == [epoch.learning_rate for epoch in report.epochs] == [0.008] * 4 + [0.004] * 3 + [0.002]
    assert report.best_epoch == 5


def test_fit_draws_the_initial_weights_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    initial, real = [], training.train_epoch

    def noted(network: Any, *others: Any) -> float:
        initial.append(network.output.weight.detach().clone())
        return real(network, *others)

    monkeypatch.setattr(training, "train_epoch", noted)
    losses = [fit_quick(config=replace(QUICK, max_epochs=1, seed=seed))[1].epochs[0].loss for seed in (0, 1, 0)]
    assert torch.equal(initial[0], initial[2]) and not torch.equal(initial[0], initial[1])
    assert losses[0] == losses[2] != losses[1]


def test_fit_clips_the_norm_of_all_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    norms, step = [], torch.optim.Adam.step

    def noted(optimizer: torch.optim.Adam, *arguments: Any, **options: Any) -> Any:
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        norms.append(float(torch.stack([gradient.norm() for gradient in gradients]).norm()))
        return step(optimizer, *arguments, **options)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    fit_quick(config=replace(QUICK, max_epochs=1, max_grad_norm=0.01))
    assert norms == pytest.approx([0.01] * 3, rel=1e-3)  # of 24 examples, 8 at a time


def test_fit_stops_after_the_epoch_that_exceeds_the_limit_of_time() -> None:
    _, report = fit_quick(config=replace(TOY.config, max_minutes=1e-9))
    assert len(report.epochs) == 1
    with pytest.raises(ValueError, match="max_minutes must be a number above 0"):
        FitConfig(max_minutes=0)


def test_fit_computes_crf_marginals_only_to_predict(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: calls.append(1) or real(*a, **k))
    fitted, _ = fit_quick()
    assert not calls
    (tagging,) = fitted.predict([TOY.text])
    assert calls and len(tagging.scores) == 4


def test_task_model_computes_no_crf_marginals_to_score(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, report = fit_quick()
    monkeypatch.setattr(torch.autograd, "grad", lambda *_, **__: pytest.fail("computed marginals"))
    assert fitted.score(TOY.examples).values == report.dev


def test_fit_leaves_the_callers_model_as_it_is() -> None:
    torch.manual_seed(0)
    model = Pretrained(BiLM(BiLMConfig.preset("tiny")))
    model.bilm.train()
    words = WordsConfig(word_dim=8)
    fit_quick(words=words, model=model)
    assert model.bilm.training and all(parameter.requires_grad for parameter in model.bilm.parameters())


def test_fit_refuses_batches_that_a_task_cannot_read_before_it_computes_vectors() -> None:
    toy = toy_tasks()["coreference"]
    with pytest.raises(ValueError, match="coreference does not support batches of this size: set batch_size to 1"):
        fit(toy.task, "missing.conll", "missing.conll", config=replace(toy.config, batch_size=8))


@pytest.mark.parametrize(
    "name, library, message",
    [
        ("translation", "sacrebleu.metrics.bleu", "BLEU needs sacrebleu: pip install"),
        ("coreference", "scipy.optimize", "scores of coreference need SciPy: pip install"),
    ],
)
def test_a_library_that_the_score_lacks_is_named_before_any_work(
    name: str, library: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = toy_tasks()[name]
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=message):
        fit(toy.task, "missing.txt", "missing.txt", words=LEARNED, config=toy.config)
    model = make_untrained(toy.task, toy.examples)
    monkeypatch.setattr(model, "predict_examples", lambda *_, **__: pytest.fail("predicted"))
    with pytest.raises(ValueError, match=message):
        model.score(toy.examples)


# --- Reports ---------------------------------------------------------------------------------------------------------


def test_report_begins_with_the_result_and_is_read_as_it_was_written(tmp_path: Path) -> None:
    _, report = fit_quick(config=replace(TOY.config, max_epochs=15), output=tmp_path / "model")
    assert FitReport.read(tmp_path / "model" / "report.json") == report
    assert report.by_label is not None and set(report.by_label) == {"PER", "THING"}
    assert isinstance(report.by_label["PER"], F1Score) and report.by_label["PER"].support == 24
    first, second, *rest = str(report).splitlines()
    assert first == "development set, in percent"
    assert second.startswith(f"score {100 * report.dev['score']:.2f}  f1 ")
    assert any(line.split() == ["precision", "recall", "f1", "count"] for line in rest)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"by_label": 3}'])
def test_report_that_is_damaged_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(ValueError, match="is not the report of a task model"):
        FitReport.read(tmp_path / "report.json")


def test_a_second_run_with_the_same_output_is_refused_while_the_first_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = training.train_epoch

    def epoch(*arguments: Any) -> float:
        with pytest.raises(ValueError, match="another process is writing"):
            fit_quick(output=tmp_path / "model")
        return inner(*arguments)

    monkeypatch.setattr(training, "train_epoch", epoch)
    fit_quick(output=tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_state_of_a_finished_run_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kill between saving the model and removing the state leaves it."""
    remove = shutil.rmtree
    with monkeypatch.context() as patched:
        patched.setattr(
            "shutil.rmtree", lambda path, **options: str(path).endswith("/.fit-model") or remove(path, **options)
        )
        fit_quick(output=tmp_path / "model")
    assert (tmp_path / ".fit-model" / "state.json").is_file()
    fit_quick(output=tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_overwriting_a_model_loses_no_other_file(tmp_path: Path) -> None:
    fitted, _ = fit_quick(output=tmp_path / "model")
    (tmp_path / "model" / "notes.md").write_text("mine")
    fit_quick(output=tmp_path / "model")  # loads it
    for replace_it in (
        lambda: fit_quick(output=tmp_path / "model", overwrite=True),
        lambda: fitted.save(tmp_path / "model", overwrite=True),
    ):
        with pytest.raises(FileExistsError, match=r"holds more than a model \(notes\.md\)"):
            replace_it()
    (tmp_path / "model" / "notes.md").unlink()
    fit_quick(output=tmp_path / "model", overwrite=True)


def test_fit_refuses_a_score_that_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for scores in ({TOY.task.metric: float("nan")}, {TOY.task.metric: 0.5, "recall of rare": float("nan")}):
        monkeypatch.setattr(training, "score", lambda *_, scores=scores: scores)
        with pytest.raises(ValueError, match=f"{[*scores][-1]} on the development set after epoch 1 is nan"):
            fit_quick(output=tmp_path / "model")
        monkeypatch.undo()
    real = type(TOY.task).score
    monkeypatch.setattr(
        type(TOY.task), "score", lambda task, examples, *rest: real(task, examples, *rest) | {"rare": math.nan}
    )
    monkeypatch.setattr(training, "score", lambda *_: {TOY.task.metric: 0.5})
    with pytest.raises(ValueError, match="rare on the development set is nan"):
        fit_quick(output=tmp_path / "model")
    monkeypatch.undo()
    assert len(fit_quick(output=tmp_path / "model")[1].epochs) == QUICK.max_epochs  # resumed from its snapshot


def test_words_that_are_truncated_are_warned_of_in_every_run(tmp_path: Path) -> None:
    long = [TaggedSentence((*TOY.examples[0].words[1:], "y" * 60), TOY.examples[0].tags), *TOY.examples]
    bilm = Pretrained(BiLM(BiLMConfig.preset("tiny")))
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"1 distinct word is longer .* truncated, such as .yyy"):
            fit(TOY.task, long, TOY.examples, model=bilm, config=replace(QUICK, max_epochs=1), cache=tmp_path)
