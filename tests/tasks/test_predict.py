"""Predictions for files: scored where the file holds answers, for every task."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_tasks import toy_tasks

from elmokit.data.readers import Layout, read_tagged
from elmokit.tasks.classification import ClassificationTask, LabelledText
from elmokit.tasks.config import TASKS, WordsConfig
from elmokit.tasks.fit import fit
from elmokit.tasks.predict import predict_file, score_file
from elmokit.tasks.task_model import TaskModel

TAGGED = "Ann B-PER\nsees O\nred B-THING\ndogs I-THING\n\nBob B-PER\nlikes O\nblue B-THING\ncats I-THING\n"


def fitted(name: str) -> TaskModel:
    toy = toy_tasks()[name]
    words = WordsConfig(elmo="none", word_dim=8)
    return fit(toy.task, toy.examples, toy.examples, words=words, config=replace(toy.config, max_epochs=6))[0]


@pytest.fixture(scope="module")
def tagger() -> TaskModel:
    return fitted("tagging")


def test_predict_file_scores_a_file_with_answers_like_evaluate_task(tagger: TaskModel, tmp_path: Path) -> None:
    (tmp_path / "gold.txt").write_text(TAGGED)
    found = predict_file(tagger, tmp_path / "gold.txt", tmp_path / "out.txt")
    assert found.examples == 2 and found.scores == score_file(tagger, tmp_path / "gold.txt")
    assert "against the answers in the file" in str(found) and "PER" in str(found)
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert [line.rsplit(" ", 1)[0] for line in lines if line] == [line for line in TAGGED.splitlines() if line]


def test_predict_file_replaces_no_output_that_appears_meanwhile(
    tagger: TaskModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gold.txt").write_text(TAGGED)
    predict_examples = TaskModel.predict_examples

    def slowly(*arguments: Any) -> Iterator[Any]:
        yield from predict_examples(*arguments)
        for name in ("out.txt", "out.jsonl"):
            (tmp_path / name).write_text("of another program")

    monkeypatch.setattr(TaskModel, "predict_examples", slowly)
    for name in ("out.txt", "out.jsonl"):
        with pytest.raises(FileExistsError):
            predict_file(tagger, tmp_path / "gold.txt", tmp_path / name)
        assert (tmp_path / name).read_text() == "of another program"
        predict_file(tagger, tmp_path / "gold.txt", tmp_path / name, overwrite=True)
        assert "Ann" in (tmp_path / name).read_text()
        (tmp_path / "out.jsonl").unlink()


def test_score_refuses_a_string_in_place_of_words() -> None:
    """Its characters would be taken for words."""
    model = fitted("classification")
    label = model.task.labels["labels"][0]
    with pytest.raises(ValueError, match="example 2: 'a good film' is a string, not a sequence of words"):
        model.score([LabelledText(("a", "film"), label), LabelledText("a good film", label)])  # type: ignore[arg-type]


def test_predict_file_without_answers_is_not_scored(tagger: TaskModel, tmp_path: Path) -> None:
    words = "\n".join(line.split()[0] if line else "" for line in TAGGED.splitlines())
    (tmp_path / "words.txt").write_text(words)
    found = predict_file(tagger, tmp_path / "words.txt", tmp_path / "out.txt")
    assert found.scores is None and "not scored: " in str(found) and "there is no column of tags" in str(found)
    with pytest.raises(ValueError, match="there is no column of tags"):
        score_file(tagger, tmp_path / "words.txt")


def test_predict_file_writes_raw_text_in_columns_or_as_json(tagger: TaskModel, tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("Ann sees red dogs.\n\nBob sleeps\n")
    assert predict_file(tagger, tmp_path / "raw.txt", tmp_path / "out.conll", text=True).examples == 3
    sentences = list(read_tagged(tmp_path / "out.conll", Layout.of(tmp_path / "out.conll")))
    assert [" ".join(sentence.words) for sentence in sentences] == ["Ann sees red dogs .", "Bob sleeps"]
    predict_file(tagger, tmp_path / "raw.txt", tmp_path / "out.jsonl", text=True)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [tuple(line["tags"]) for line in lines if line["words"]] == [sentence.tags for sentence in sentences]


def test_predict_file_writes_raw_text_in_conllu(tagger: TaskModel, tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("Ann sees red dogs.\nBob sleeps\n")
    predict_file(tagger, tmp_path / "raw.txt", tmp_path / "out.conllu", text=True)
    predict_file(tagger, tmp_path / "raw.txt", tmp_path / "out.conll", text=True)
    conllu, columns = (
        list(read_tagged(path, Layout.of(path))) for path in (tmp_path / "out.conllu", tmp_path / "out.conll")
    )
    assert conllu == columns and len(conllu) == 2
    assert (tmp_path / "out.conllu").read_text().splitlines()[0].split("\t")[0] == "1"


def test_score_refuses_a_file_without_examples(tagger: TaskModel, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="there are no examples to score"):
        score_file(tagger, tmp_path / "empty.txt")


@pytest.mark.parametrize("name", TASKS)
def test_predict_file_refuses_raw_text_of_tasks_that_read_none(name: str, tmp_path: Path) -> None:
    toy = toy_tasks()[name]
    words, config = WordsConfig(elmo="none", word_dim=8), replace(toy.config, max_epochs=1)
    model = fit(toy.task, toy.examples, toy.examples, words=words, config=config)[0]
    (tmp_path / "raw.txt").write_text("ab\n")
    assert model.task.reads_text == isinstance(toy.text, str)
    if model.task.reads_text:
        assert predict_file(model, tmp_path / "raw.txt", tmp_path / "out.jsonl", text=True).examples == 1
        return
    with pytest.raises(ValueError, match=f"an input of {name} is not a line of raw text: .* without --text"):
        predict_file(model, tmp_path / "raw.txt", tmp_path / "out.jsonl", text=True)


def test_predict_file_is_not_scored_if_some_examples_have_no_answer(tmp_path: Path) -> None:
    pairs = fitted("pairs")
    rows = ["first\tsecond\tlabel", "Ann sees red dogs\tAnn sees red dogs\tsame", "Bob sees\tAnn sees\t-"]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows) + "\n")
    found = predict_file(pairs, tmp_path / "pairs.tsv", tmp_path / "out.jsonl")
    assert (found.examples, found.scores) == (2, None)
    assert found.unscored == "not every example of the file has an answer"


def test_predict_file_is_not_scored_if_tags_are_missing_or_of_another_scheme(tagger: TaskModel, tmp_path: Path) -> None:
    rows = "\n".join(f"{n}\t{word}\t_\t_\t_\t_\t_\t_\t_\t_" for n, word in enumerate(["Ann", "sees"], start=1))
    (tmp_path / "words.conllu").write_text(f"{rows}\n\n")
    found = predict_file(tagger, tmp_path / "words.conllu", tmp_path / "out.conllu")
    assert found.scores is None and found.unscored is not None and "2 words and 0 tags" in found.unscored
    (tmp_path / "bilou.txt").write_text(TAGGED + "\nAnn U-PER\n")
    with pytest.raises(ValueError, match="example 3: tags like U-PER are BILOU"):
        score_file(tagger, tmp_path / "bilou.txt")


def test_score_names_the_example_without_an_answer() -> None:
    classifier = fitted("classification")
    with pytest.raises(ValueError, match="example 2: the text has no label"):
        classifier.score([LabelledText(("a",), "red"), LabelledText(("b",))])


def test_predict_file_does_not_replace_the_translations_that_are_read(tmp_path: Path) -> None:
    translator = fitted("translation")
    (tmp_path / "a.en").write_text("ab\n")
    (tmp_path / "a.de").write_text("ba\n")
    with pytest.raises(ValueError, match=r"a.de is the input"):
        predict_file(translator, tmp_path / "a.en", tmp_path / "a.de", overwrite=True)
    assert (tmp_path / "a.de").read_text() == "ba\n"


def test_scores_of_labels_follow_from_the_confusion(tmp_path: Path) -> None:
    classifier = fitted("classification")
    (tmp_path / "texts.txt").write_text("red Ann sees red dogs\nred Bob sees red dogs\nblue Ann sees blue cats\n")
    task = ClassificationTask(labels={"labels": ["blue", "green", "red"]})  # in the order of the trained ones
    model = TaskModel(task, classifier.network, classifier.table, None)
    scores = score_file(model, tmp_path / "texts.txt")
    assert scores.confusion is not None and scores.by_label is not None
    assert sum(sum(row.values()) for row in scores.confusion.values()) == 3
    assert scores.by_label["red"].support == 2
    assert scores.by_label["red"].recall == scores.confusion["red"].get("red", 0) / 2
