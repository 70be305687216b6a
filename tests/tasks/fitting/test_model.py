"""Every task: training, saving and loading, predicting, unusual input."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_tasks import ToyTask, toy_tasks

from elmokit.checkpoints.errors import CheckpointError
from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.data.readers import Layout, TaggedSentence, read_tagged
from elmokit.nn.bilm import BiLM
from elmokit.tasks.classification import LabelledText
from elmokit.tasks.config import TASKS, WordsConfig
from elmokit.tasks.fitting import model as model_module
from elmokit.tasks.fitting.fit import POOL, fit, shuffled_batches
from elmokit.tasks.fitting.model import (
    PADDED_WORDS,
    TaskModel,
    load_task_model,
    predict_file,
    score_file,
    split_by_length,
)
from elmokit.tasks.fitting.report import FitReport
from elmokit.tasks.fitting.task import find_task

NO_DROPOUT = WordsConfig(word_dim=16, elmo_dropout=0.0, word_dropout=0.0, rare_word_dropout=0.0)
WORDS = [
    *(replace(NO_DROPOUT, elmo=place) for place in ("none", "input", "output", "both")),
    replace(NO_DROPOUT, elmo="both", mix="uniform", word_dim=0),
    replace(NO_DROPOUT, mix="top", character_dim=8),
    replace(NO_DROPOUT, finetune=True, mix_l2=0.01),
]
TAGGED = "Ann B-PER\nsees O\nred B-THING\ndogs I-THING\n\nBob B-PER\nlikes O\nblue B-THING\ncats I-THING\n"
CPU = torch.device("cpu")


@pytest.fixture
def bilm() -> Pretrained:
    torch.manual_seed(0)
    return Pretrained(BiLM(BiLMConfig.preset("tiny")))


@pytest.fixture(params=[*TASKS, "translation"])
def toy(request: pytest.FixtureRequest) -> ToyTask:
    return toy_tasks()[request.param]


def fit_toy(toy: ToyTask, tmp_path: Path, words: WordsConfig = NO_DROPOUT, **options: Any) -> tuple[TaskModel, Any]:
    options = {"words": words, "config": toy.config, "cache": tmp_path / "cache", **options}
    return fit(toy.task, toy.examples, toy.examples, **options)


def fitted(name: str, epochs: int = 6) -> TaskModel:
    toy = toy_tasks()[name]
    words, config = WordsConfig(elmo="none", word_dim=8), replace(toy.config, max_epochs=epochs)
    return fit(toy.task, toy.examples, toy.examples, words=words, config=config)[0]


@pytest.fixture(scope="module")
def tagger() -> TaskModel:
    return fitted("tagging")


# --- Every task ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fit_memorizes_a_tiny_training_set(toy: ToyTask, bilm: Pretrained, tmp_path: Path) -> None:
    _, report = fit_toy(toy, tmp_path, model=bilm)
    assert report.dev[toy.task.metric] > 0.95
    (mix,) = report.mixes
    assert sum(mix.weights) == pytest.approx(1) and len(set(mix.weights)) == 3  # learned: they are equal at first


def assert_close(model: TaskModel, one: Any, other: Any) -> None:
    """Equal predictions, but for rounding of scores."""
    left, right = (json.loads(json.dumps(model.task.to_json(each))) for each in (one, other))
    for span, other in zip(left.pop("spans", ()), right.pop("spans", ()), strict=True):
        assert other == {**span, "score": pytest.approx(span["score"], abs=1e-4)}
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert right[name] == (pytest.approx(value, abs=1e-4) if "score" in name else value)


def terms_of_loss(example: Any) -> int:
    """How many terms the mean has that is an example's loss: words, those of the translation and its end, or one."""
    if hasattr(example, "target"):
        return len(example.target) + 1
    return len(example.words) if hasattr(example, "tags") else 1


# An example without words, as `predict` takes it.
EMPTY = {"pairs": ("", ""), "reading": ("", ""), "coreference": []}


def test_a_model_is_saved_whole_and_answers_each_example_by_itself(
    toy: ToyTask, bilm: Pretrained, tmp_path: Path
) -> None:
    config, name = replace(toy.config, max_epochs=2), toy.task.name
    fitted, report = fit_toy(toy, tmp_path, model=bilm, config=config, output=tmp_path / "model")
    loaded = load_task_model(tmp_path / "model", "cpu", None if name in TASKS else type(toy.task))
    assert loaded.predict([toy.text]) == fitted.predict([toy.text])
    assert loaded.score(toy.examples) == fitted.score(toy.examples) == report.final
    assert FitReport.read(tmp_path / "model" / "report.json") == report and report.final.values == report.dev
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "model"]

    # Predictions do not depend on the other examples of a batch, nor the loss on padding.
    alone = [next(iter(loaded.predict_examples([example]))) for example in toy.examples[:5]]
    together = list(loaded.predict_examples(toy.examples[:5]))
    for one, other in zip(alone, together, strict=True):
        assert_close(loaded, one, other)
    if name != "coreference":
        examples = loaded.example_set(toy.examples)
        assert len(set(examples.lengths[:8].tolist())) > 1
        losses = [loaded.network.loss(examples.batch(np.array([index]), CPU)).item() for index in range(8)]
        expected = np.average(losses, weights=[*map(terms_of_loss, toy.examples[:8])])
        assert loaded.network.loss(examples.batch(np.arange(8), CPU)).item() == pytest.approx(expected, rel=1e-4)

    # Nor on examples without words.
    if name != "roles":
        first, between, last = loaded.predict([EMPTY.get(name, ""), toy.text, EMPTY.get(name, "")])
        assert first == last
        assert_close(loaded, between, loaded.predict([toy.text])[0])


def test_one_example_is_enough_to_train_on(toy: ToyTask, tmp_path: Path) -> None:
    one, words = replace(toy, examples=toy.examples[:1]), replace(NO_DROPOUT, elmo="none")
    fitted, _ = fit_toy(one, tmp_path, words, config=replace(toy.config, max_epochs=1))
    assert len(list(fitted.predict_examples(toy.examples))) == len(toy.examples)


@pytest.mark.parametrize("words", WORDS, ids=str)
def test_every_choice_of_word_vectors_is_saved_with_the_model(
    words: WordsConfig, bilm: Pretrained, tmp_path: Path
) -> None:
    toy = toy_tasks()["tagging"]
    config = replace(toy.config, max_epochs=2)
    fitted, report = fit_toy(toy, tmp_path, words, model=bilm, output=tmp_path / "model", config=config)
    assert len(report.mixes) == {"none": 0, "both": 2}.get(words.elmo, 1)
    assert load_task_model(tmp_path / "model", device="cpu").predict([toy.text]) == fitted.predict([toy.text])


@pytest.mark.parametrize("storage_dtype, tolerance", [("float16", 2e-2), ("float32", 2e-5)])
def test_cached_layers_equal_those_of_the_running_bilm(
    storage_dtype: Any, tolerance: float, bilm: Pretrained, tmp_path: Path
) -> None:
    toy, words = toy_tasks()["tagging"], replace(NO_DROPOUT, storage_dtype=storage_dtype)
    cached, report = fit_toy(toy, tmp_path, words, model=bilm)
    batch = cached.example_set(toy.examples).batch(np.arange(8), CPU)
    cached.network.words.config = replace(words, finetune=True)
    running = TaskModel(cached.task, cached.network, cached.table, cached.model)
    live = running.example_set(toy.examples).batch(np.arange(8), CPU)
    assert batch.words.layers is not None and live.words.layers is None
    with torch.no_grad():
        difference = (cached.network.forward(batch) - cached.network.forward(live))[batch.words.mask]
    assert difference.abs().max() < tolerance
    assert running.score(toy.examples).values == report.dev


# --- Batches ---------------------------------------------------------------------------------------------------------

# Batches of 64 are limited by their number if the examples are short, else by their words. Two examples fit into no
# batch with another one; one of them exceeds the limit alone. A few are empty.
LENGTHS = np.random.default_rng(0).integers(1, 600, 1000)
LENGTHS[[3, 500, 999]] = 0
LENGTHS[[10, 700]] = PADDED_WORDS // 2 + 1, PADDED_WORDS + 1


def test_batches_hold_every_example_with_words_once_within_both_limits() -> None:
    by_length = np.flatnonzero(LENGTHS)[np.argsort(LENGTHS[LENGTHS > 0], kind="stable")]
    in_order = list(split_by_length(by_length, LENGTHS, 64))
    for batches in (in_order, list(shuffled_batches(LENGTHS, 64, np.random.default_rng(0)))):
        assert sorted(np.concatenate(batches)) == np.flatnonzero(LENGTHS).tolist()
        assert all(len(batch) == 1 or len(batch) * LENGTHS[batch].max() <= PADDED_WORDS for batch in batches)
        assert max(map(len, batches)) == 64
    for batch, following in pairwise(in_order):  # no further example would have fitted
        assert len(batch) == 64 or (len(batch) + 1) * LENGTHS[following[0]] > PADDED_WORDS


def test_shuffled_batches_have_similar_lengths_and_another_order_for_another_seed() -> None:
    lengths = np.random.default_rng(1).permutation(8 * POOL) + 1  # a pool of batches of 8
    first, again, other = (list(shuffled_batches(lengths, 8, np.random.default_rng(seed))) for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert all(np.ptp(lengths[batch]) == 7 for batch in first)
    equal = np.full(1000, 5)
    one, two = (list(shuffled_batches(equal, 8, np.random.default_rng(seed))) for seed in (0, 1))
    assert not {tuple(sorted(batch)) for batch in one} & {tuple(sorted(batch)) for batch in two}
    assert list(shuffled_batches(np.zeros(3, np.int64), 2, np.random.default_rng(0))) == []


def test_a_long_stream_is_not_held_in_memory(tagger: TaskModel, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = toy_tasks()["tagging"].examples
    whole = list(tagger.predict_examples(examples))
    monkeypatch.setattr(model_module, "WORDS_AT_ONCE", 5)  # sentences have three or four words
    read: list[int] = []
    stream = tagger.predict_examples(read.append(number) or each for number, each in enumerate(examples))
    predictions = [next(stream)]
    assert read == [0, 1]
    predictions += stream
    for one, other in zip(predictions, whole, strict=True):
        assert_close(tagger, one, other)


def test_marginals_are_computed_to_predict_and_not_to_score(tagger: TaskModel, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = [], torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: calls.append(1) or real(*a, **k))
    tagger.score(toy_tasks()["tagging"].examples)
    assert not calls
    (tagging,) = tagger.predict(["Ann sees red dogs"])
    assert calls and len(tagging.scores) == 4


# --- Input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tagging", "classification", "roles", "coreference"])
def test_a_long_document_is_read(name: str) -> None:
    words = ["Ann", "sees", "red", "dogs"] * 500
    long = {"roles": (words, 1), "coreference": [words[:1000], words[1000:]]}.get(name, words)
    (prediction,) = fitted(name, 1).predict([long])
    assert len(prediction.words) == 2000


@pytest.mark.parametrize("name", ["classification", "pairs", "reading"])
def test_networks_with_attention_refuse_a_text_that_would_fill_the_memory(name: str) -> None:
    text = "Ann " * 5001
    long = {"pairs": (text, "Ann"), "reading": ("Who?", text)}.get(name, text)
    with pytest.raises(ValueError, match="at most 5,000 words"):
        fitted(name, 1).predict([long])


@pytest.mark.parametrize("name", ["tagging", "classification", "pairs", "roles"])
def test_labels_that_the_training_set_lacks_count_as_errors(name: str, tmp_path: Path) -> None:
    toy, label = toy_tasks()[name], "NEW"
    changes = [
        {"tags": ("B-NEW", *["O"] * (len(example.words) - 1))} if hasattr(example, "tags") else {"label": "NEW"}
        for example in toy.examples[:4]
    ]
    test = [replace(example, **change) for example, change in zip(toy.examples, changes, strict=False)]
    words, config = replace(NO_DROPOUT, elmo="none"), replace(toy.config, max_epochs=2)
    _, report = fit(toy.task, toy.examples, toy.examples, test, words=words, config=config)
    assert report.test is not None and report.test[toy.task.metric] == 0 and report.by_label is not None
    assert (report.by_label[label].recall, report.by_label[label].support) == (0, 4)


WRONG = {
    "pairs": ["a b", ["a"], {"first": "a", "second": "b"}],
    "roles": ["a b", ("a b",), ("a b", "1"), ("a b", -1), ("a b", 2), {"a": 1, "b": 2}],
    "reading": ["a b", ("a",), ("a", ["b"]), {"a": 1, "b": 2}],
    "coreference": ["a b", {"a": "b"}],
}


def test_inputs_of_another_kind_are_refused(toy: ToyTask, tmp_path: Path) -> None:
    model, task = fitted(toy.task.name, 1), toy.task
    assert task.reads_text == isinstance(toy.text, str)
    (tmp_path / "raw.txt").write_text("ab\n")
    inputs = [[each] for each in WRONG.get(task.name, [{"text": "a b"}, 3, [1, 2]])]
    calls = [lambda each=each: model.predict(each) for each in inputs]
    if not task.reads_text:
        calls.append(lambda: predict_file(model, tmp_path / "raw.txt", tmp_path / "out.jsonl", text=True))
    for call in calls:
        with pytest.raises(ValueError, match=task.name):
            call()


def test_strings_in_place_of_lists_and_missing_answers_are_refused(tagger: TaskModel) -> None:
    classifier, known = fitted("classification", 1), LabelledText(("a", "film"), "owls")
    for wrong in (LabelledText("a good film", "owls"), LabelledText(("b",))):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="example 2"):
            classifier.score([known, wrong])
    for refused in (lambda: tagger.predict("Ann sees dogs"), lambda: tagger.score([])):
        with pytest.raises(ValueError, match=r"list|no examples"):
            refused()


# --- Files -----------------------------------------------------------------------------------------------------------


def test_a_file_with_answers_is_scored(tagger: TaskModel, tmp_path: Path) -> None:
    gold, out = tmp_path / "gold.txt", tmp_path / "out.txt"
    gold.write_text(TAGGED)
    found = predict_file(tagger, gold, out)
    assert found.examples == 2 and found.scores == score_file(tagger, gold)
    assert "against the answers in the file" in str(found) and "PER" in str(found)
    lines = out.read_text().splitlines()
    assert [line.rsplit(" ", 1)[0] for line in lines if line] == [line for line in TAGGED.splitlines() if line]
    (tmp_path / "words.txt").write_text("\n".join(line.split(" ")[0] for line in TAGGED.splitlines()))
    rows = "\n".join(f"{n}\t{word}" + "\t_" * 8 for n, word in enumerate(["Ann", "sees"], start=1))
    (tmp_path / "words.conllu").write_text(f"{rows}\n\n")
    (tmp_path / "bilou.txt").write_text(TAGGED + "\nAnn U-PER\n")
    for name, count in (("words.txt", 2), ("words.conllu", 1), ("bilou.txt", 3)):
        found = predict_file(tagger, tmp_path / name, out.with_suffix(Path(name).suffix), overwrite=True)
        assert (found.examples, found.scores) == (count, None)
    rows = "first\tsecond\tlabel\nAnn sees red dogs\tAnn sees red dogs\tsame\nBob sees\tAnn sees\t-\n"
    (tmp_path / "pairs.tsv").write_text(rows)  # without agreement on the second pair
    found = predict_file(fitted("pairs", 1), tmp_path / "pairs.tsv", tmp_path / "out.jsonl")
    assert (found.examples, found.scores) == (2, None)


def test_raw_text_is_written_in_columns_conllu_or_json(tagger: TaskModel, tmp_path: Path) -> None:
    raw = tmp_path / "raw.txt"
    raw.write_text("Ann sees red dogs.\n\nBob sleeps\n")
    outputs = [tmp_path / f"out.{suffix}" for suffix in ("conll", "conllu", "jsonl")]
    assert [predict_file(tagger, raw, output, text=True).examples for output in outputs] == [3, 3, 3]
    columns, conllu = (list(read_tagged(path, Layout.of(path))) for path in outputs[:2])
    assert [" ".join(sentence.words) for sentence in columns] == ["Ann sees red dogs .", "Bob sleeps"]
    lines = [json.loads(line) for line in outputs[2].read_text().splitlines()]
    assert [tuple(line["tags"]) for line in lines if line["words"]] == [sentence.tags for sentence in columns]
    assert conllu == columns


def test_an_output_is_replaced_on_request_only(tagger: TaskModel, tmp_path: Path) -> None:
    gold = tmp_path / "gold.txt"
    gold.write_text(TAGGED)
    with pytest.raises(ValueError, match="input"):
        predict_file(tagger, gold, gold, overwrite=True)
    for output in (tmp_path / "out.txt", tmp_path / "out.jsonl"):
        output.write_text("of another program")
        with pytest.raises(FileExistsError):
            predict_file(tagger, gold, output)
        assert output.read_text() == "of another program"
        predict_file(tagger, gold, output, overwrite=True)
        assert "Ann" in output.read_text()


# --- The directory of a model ----------------------------------------------------------------------------------------


def test_save_replaces_only_a_task_model(tagger: TaskModel, bilm: Pretrained, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("all of it")
    save(bilm, tmp_path / "bilm")
    tagger.save(tmp_path / "model")
    tagger.save(tmp_path / "notes")
    (tmp_path / "notes" / "notes.md").write_text("mine")
    for name in ("precious", "bilm", "notes"):
        with pytest.raises(FileExistsError):
            tagger.save(tmp_path / name, overwrite=True)
    (tmp_path / "model" / "config.json").write_text('{"format_version": 4, "task": "other"}')
    with pytest.raises(FileExistsError):
        tagger.save(tmp_path / "model")
    tagger.save(tmp_path / "model", overwrite=True)
    assert load_task_model(tmp_path / "model", device="cpu").predict(["Ann"]) == tagger.predict(["Ann"])


def test_words_and_labels_with_unusual_characters_are_kept(tmp_path: Path) -> None:
    task, words = toy_tasks()["tagging"].task, ("\ufeffAnn", "sees\r", "red\u2028\n", "dogs")
    examples = [TaggedSentence(words, ("\u2028", "VERB", "", "\n"))] * 3
    config = replace(toy_tasks()["tagging"].config, max_epochs=1)
    options: Any = {"words": WordsConfig(elmo="none", word_dim=8), "config": config, "output": tmp_path / "model"}
    fitted, report = fit(task, examples, examples, **options)
    loaded = load_task_model(tmp_path / "model", device="cpu")
    assert loaded.table.words == fitted.table.words == tuple(sorted(words))
    assert loaded.task.labels["tags"] == fitted.task.labels["tags"] == ["", "\n", "VERB", "\u2028"]
    assert FitReport.read(tmp_path / "model" / "report.json") == report


def change(**values: Any) -> Callable[[Path], None]:
    """A change to config.json."""

    def damage(directory: Path) -> None:
        described = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**described, **values}))

    return damage


def truncate(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_bytes((directory / name).read_bytes()[:-20]) and None


@pytest.mark.parametrize(
    "damage",
    [
        truncate("config.json"),
        truncate("words.json"),
        truncate("weights.safetensors"),
        change(format_version=3),
        change(labels={}),
        change(labels={"tags": 3}),
        change(task_config={"hidden_dim": 10**7}),  # which would fill the memory
        change(task_config={"hidden_dim": "8"}),
        change(task="/tmp/evil.py:Task"),
        change(more=1),
    ],
)
def test_a_damaged_or_hostile_model_is_refused(
    damage: Callable[[Path], None], tagger: TaskModel, tmp_path: Path
) -> None:
    tagger.save(tmp_path / "model")
    damage(tmp_path / "model")
    with pytest.raises(CheckpointError, match="model"):
        load_task_model(tmp_path / "model", device="cpu")


# --- Tasks of one's own ----------------------------------------------------------------------------------------------

OWN_TASK = """from __future__ import annotations
from dataclasses import dataclass
from typing import Literal
from elmokit.settings import check
from elmokit.tasks.tagging import TaggingTask

@dataclass(frozen=True)
class Settings:
    color: Literal["red", "blue"] = "red"

    def __post_init__(self) -> None:
        check(self)

class Mine(TaggingTask):
    name = "mine"
    Config = Settings
"""


def test_a_task_of_ones_own_is_read_from_its_file_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN_TASK)
    task = find_task(f"{file}:Mine")
    assert task.name == "mine" and task.Config("blue").color == "blue" and find_task(f"{file}:Mine") is task
    for wrong in ("dancing", f"{tmp_path}/mine.txt:Mine", f"{file}:Other", f"{file}:Settings"):
        with pytest.raises(ValueError, match=r"task|class"):
            find_task(wrong)
