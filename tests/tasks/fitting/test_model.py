"""Every task: training, saving and loading, predicting, unusual input."""

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_tasks import ToyTask, toy_tasks

from elmokit.checkpoints.pretrained import CheckpointError, Pretrained
from elmokit.data.readers import TaggedFile
from elmokit.tasks import TASKS, WordsConfig
from elmokit.tasks.fitting import fit, shuffled_batches
from elmokit.tasks.fitting.model import (
    PADDED_WORDS,
    TaskModel,
    load_task_model,
    predict_file,
    split_by_length,
)
from elmokit.tasks.fitting.task import find_task

NO_DROPOUT = WordsConfig(word_dim=16, elmo_dropout=0.0, word_dropout=0.0, rare_word_dropout=0.0)
WORDS = [
    *(replace(NO_DROPOUT, elmo=place) for place in ("none", "input", "output", "both")),
    replace(NO_DROPOUT, elmo="both", character_dim=8, word_dim=0),
    replace(NO_DROPOUT, mix_l2=0.01),
]
TAGGED = (
    "Ann B-PER\nsees O\nred B-THING\ndogs I-THING\n\nBob B-PER\nlikes O\nblue B-THING\ncats "
    "I-THING\n"
)


@pytest.fixture(params=[*TASKS, "translation"])
def toy(request: pytest.FixtureRequest) -> ToyTask:
    return toy_tasks()[request.param]


def fit_toy(
    toy: ToyTask, tmp_path: Path, words: WordsConfig = NO_DROPOUT, **options: Any
) -> tuple[TaskModel, Any]:
    options = {"words": words, "config": toy.config, "cache": tmp_path / "cache", **options}
    return fit(toy.task, toy.examples, toy.examples, **options)


def fitted(name: str, epochs: int = 6) -> TaskModel:
    toy = toy_tasks()[name]
    words = WordsConfig(elmo="none", word_dim=8)
    config = replace(toy.config, max_epochs=epochs)
    return fit(toy.task, toy.examples, toy.examples, words=words, config=config)[0]


@pytest.fixture(scope="module")
def tagger() -> TaskModel:
    return fitted("tagging")


# --- Every task -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_fit_memorizes_a_tiny_training_set(toy: ToyTask, bilm: Pretrained, tmp_path: Path) -> None:
    _, report = fit_toy(toy, tmp_path, model=bilm)
    assert report.dev[report.metric] > 0.95
    (mix,) = report.mixes  # learned: its weights are equal at first
    assert sum(mix.weights) == pytest.approx(1)
    assert len(set(mix.weights)) == 3


def assert_close(model: TaskModel, one: Any, other: Any) -> None:
    """Equal predictions, but for rounding of scores."""
    left, right = (json.loads(json.dumps(model.task.to_json(each))) for each in (one, other))
    for span, other in zip(left.pop("spans", ()), right.pop("spans", ()), strict=True):
        assert other == {**span, "score": pytest.approx(span["score"], abs=1e-4)}
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert right[name] == (pytest.approx(value, abs=1e-4) if "score" in name else value)


# An example without words, as `predict` takes it.
EMPTY = {"pairs": ("", ""), "reading": ("", ""), "coreference": []}


def test_a_model_is_saved_whole_and_answers_each_example_by_itself(
    toy: ToyTask, bilm: Pretrained, tmp_path: Path
) -> None:
    config = replace(toy.config, max_epochs=2)
    name = toy.task.name
    fitted, report = fit_toy(toy, tmp_path, model=bilm, config=config, output=tmp_path / "model")
    loaded = load_task_model(tmp_path / "model", "cpu", None if name in TASKS else type(toy.task))
    assert loaded.predict([toy.text]) == fitted.predict([toy.text])
    assert loaded.score(toy.examples) == fitted.score(toy.examples) == report.final
    assert (tmp_path / "model" / "report.json").read_text() == report.to_json()
    assert report.final.values == report.dev
    assert len(repr(report)) < 200
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "model"]

    # Predictions do not depend on the other examples of a batch.
    alone = [next(iter(loaded.predict_examples([example]))) for example in toy.examples[:5]]
    together = list(loaded.predict_examples(toy.examples[:5]))
    for one, other in zip(alone, together, strict=True):
        assert_close(loaded, one, other)
    # Nor on examples without words.
    if name != "roles":
        first, between, last = loaded.predict([EMPTY.get(name, ""), toy.text, EMPTY.get(name, "")])
        assert first == last
        assert_close(loaded, between, loaded.predict([toy.text])[0])


@pytest.mark.parametrize("words", WORDS, ids=str)
def test_every_choice_of_word_vectors_is_saved_with_the_model(
    words: WordsConfig, bilm: Pretrained, tmp_path: Path
) -> None:
    toy = toy_tasks()["tagging"]
    config = replace(toy.config, max_epochs=2)
    fitted, report = fit_toy(
        toy, tmp_path, words, model=bilm, output=tmp_path / "model", config=config
    )
    assert len(report.mixes) == {"none": 0, "both": 2}.get(words.elmo, 1)
    texts = [toy.text, ["new", "Ann", "newer"]]
    assert load_task_model(tmp_path / "model", device="cpu").predict(texts) == fitted.predict(texts)


# --- Batches --------------------------------------------------------------------------------------

# Batches of 64 are limited by their number if the examples are short, else by their words. Two
# examples fit into no batch with another one; one of them exceeds the limit alone. A few are empty.
LENGTHS = np.random.default_rng(0).integers(1, 600, 1000)
LENGTHS[[3, 500, 999]] = 0
LENGTHS[[10, 700]] = PADDED_WORDS // 2 + 1, PADDED_WORDS + 1


def test_batches_hold_every_example_with_words_once_within_both_limits() -> None:
    by_length = np.flatnonzero(LENGTHS)[np.argsort(LENGTHS[LENGTHS > 0], kind="stable")]
    in_order = list(split_by_length(by_length, LENGTHS, 64))
    first, again = (list(shuffled_batches(LENGTHS, 64, np.random.default_rng(0))) for _ in range(2))
    for batches in (in_order, first):
        assert sorted(np.concatenate(batches)) == np.flatnonzero(LENGTHS).tolist()
        assert all(
            len(batch) == 1 or len(batch) * LENGTHS[batch].max() <= PADDED_WORDS
            for batch in batches
        )
        assert max(map(len, batches)) == 64
    for batch, following in pairwise(in_order):  # no further example would have fitted
        assert len(batch) == 64 or (len(batch) + 1) * LENGTHS[following[0]] > PADDED_WORDS
    assert [batch.tolist() for batch in first] == [batch.tolist() for batch in again]
    equal = (
        list(shuffled_batches(np.full(1000, 5), 8, np.random.default_rng(seed))) for seed in (0, 1)
    )
    one, two = ({tuple(sorted(batch)) for batch in batches} for batches in equal)
    assert not one & two


# --- Input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_a_long_text_is_read_unless_attention_to_it_would_fill_the_memory(name: str) -> None:
    words = ["Ann", "sees", "red", "dogs"] * 500
    model = fitted(name, 1)
    texts = {
        "pairs": (" ".join(words), "Ann"),
        "reading": ("Who?", " ".join(words)),
        "roles": (words, 1),
    }
    model.predict(
        [texts.get(name, [words[:1000], words[1000:]] if name == "coreference" else words)]
    )
    if model.task.max_words is not None:
        text = "Ann " * 5001
        with pytest.raises(ValueError, match="at most 5,000 words"):
            model.predict([{"pairs": (text, "Ann"), "reading": ("Who?", text)}.get(name, text)])


WRONG = {
    "pairs": [["a b"], [["a"]], [{"first": "a", "second": "b"}]],
    "roles": [["a b"], [("a b",)], [("a b", "1")], [("a b", -1)], [("a b", 2)]],
    "reading": [["a b"], [("a",)], [("a", ["b"])]],
    "coreference": [["a b"], [{"a": "b"}]],
}


def test_inputs_of_another_kind_and_missing_answers_are_refused(
    toy: ToyTask, tmp_path: Path
) -> None:
    model = fitted(toy.task.name, 1)
    task = toy.task
    (tmp_path / "raw.txt").write_text("ab\n")
    inputs = WRONG.get(task.name, [[{"text": "a b"}], [3], [[1, 2]], "a b", {"a b": 1}])
    calls = [lambda each=each: model.predict(each) for each in inputs]
    calls += [
        lambda: model.score([]),
        lambda: model.score([*toy.examples[:1], model.example(toy.text)]),
    ]
    if task.name in WRONG:
        calls.append(
            lambda: predict_file(model, tmp_path / "raw.txt", tmp_path / "out.jsonl", text=True)
        )
    for call in calls:
        with pytest.raises(ValueError, match=rf"{task.name}|list|example 2|no examples"):
            call()


# --- Files ----------------------------------------------------------------------------------------


def test_a_file_with_answers_is_scored(tagger: TaskModel, tmp_path: Path) -> None:
    gold = tmp_path / "gold.txt"
    out = tmp_path / "out.txt"
    gold.write_text(TAGGED)
    found = predict_file(tagger, gold, out)
    assert found.examples == 2
    assert found.scores == tagger.score(gold)
    lines = out.read_text().splitlines()
    assert [line.rsplit(" ", 1)[0] for line in lines if line] == [
        line for line in TAGGED.splitlines() if line
    ]
    (tmp_path / "words.txt").write_text(
        "\n".join(line.split(" ")[0] for line in TAGGED.splitlines())
    )
    rows = "\n".join(f"{n}\t{word}" + "\t_" * 8 for n, word in enumerate(["Ann", "sees"], start=1))
    (tmp_path / "words.conllu").write_text(f"{rows}\n\n")
    (tmp_path / "bilou.txt").write_text(TAGGED + "\nAnn U-PER\n")
    for name, count in (("words.txt", 2), ("words.conllu", 1), ("bilou.txt", 3)):
        found = predict_file(
            tagger, tmp_path / name, out.with_suffix(Path(name).suffix), overwrite=True
        )
        assert (found.examples, found.scores) == (count, None)


def test_raw_text_is_written_in_columns_conllu_or_json(tagger: TaskModel, tmp_path: Path) -> None:
    raw = tmp_path / "raw.txt"
    raw.write_text("Ann sees red dogs.\n\nBob sleeps\n")
    outputs = [tmp_path / f"out.{suffix}" for suffix in ("conll", "conllu", "jsonl")]
    for output in outputs:
        assert predict_file(tagger, raw, output, text=True).examples == 3
    columns, conllu = (list(TaggedFile.of(path).sentences()) for path in outputs[:2])
    words = [" ".join(sentence.words) for sentence in columns]
    assert words == ["Ann sees red dogs .", "Bob sleeps"]
    lines = [json.loads(line) for line in outputs[2].read_text().splitlines()]
    assert [tuple(line["tags"]) for line in lines if line["words"]] == [
        sentence.tags for sentence in columns
    ]
    assert conllu == columns


# --- The directory of a model ---------------------------------------------------------------------


def change(**values: Any) -> Callable[[Path], None]:
    """A change to config.json."""

    def damage(directory: Path) -> None:
        described = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**described, **values}))

    return damage


def truncate(name: str) -> Callable[[Path], None]:
    return lambda directory: (
        (directory / name).write_bytes((directory / name).read_bytes()[:-20]) and None
    )


@pytest.mark.parametrize(
    "damage",
    [
        *map(truncate, ("config.json", "words.json", "weights.safetensors")),
        change(labels={}), change(format_version=5),
        change(task_config={"hidden_dim": 10**7}),  # which would fill the memory
        change(task_config={"hidden_dim": "8"}), change(task="/tmp/evil.py:Task"),
    ],
)  # fmt: skip
def test_a_damaged_or_hostile_model_is_refused(
    damage: Callable[[Path], None], tagger: TaskModel, tmp_path: Path
) -> None:
    tagger.save(tmp_path / "model")
    damage(tmp_path / "model")
    with pytest.raises(CheckpointError, match="model"):
        load_task_model(tmp_path / "model", device="cpu")


# --- Tasks of one's own ---------------------------------------------------------------------------


def test_a_task_of_ones_own_is_read_from_its_file_once() -> None:
    kind = type(toy_tasks()["translation"].task)
    file = inspect.getfile(kind)
    assert find_task(f"{file}:TranslationTask") is kind
    for wrong in ("dancing", "mine.txt:Mine", f"{file}:Other"):
        with pytest.raises((ValueError, AttributeError), match=r"task|Other"):
            find_task(wrong)
