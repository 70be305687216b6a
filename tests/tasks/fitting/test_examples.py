"""Tables, data frames and lists give the same examples, vectors and models."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file, encode_file
from elmokit.storage.store import EmbeddingStore
from elmokit.tasks import FitConfig, WordsConfig
from elmokit.tasks.classification import ClassificationConfig, ClassificationTask
from elmokit.tasks.fitting import fit
from elmokit.tasks.fitting.model import TaskModel, load_task_model, predict_file
from elmokit.tasks.fitting.task import read_examples
from elmokit.tasks.pairs import PairsTask
from elmokit.tasks.tagging import TaggingTask

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

TEXTS = [
    '"Well", she said, it\'s fun.',
    "a dull\nand boring mess",
    "naïve, but moving\u2026",
    "1984",
    " a  story ",
]
FRAME = pd.DataFrame({"id": range(20), "review": TEXTS * 4, "stars": [1, 5, 2, 5, 1] * 4})
COLUMNS: Any = {"column": "review", "label_column": "stars"}
WORDS = WordsConfig(elmo="none", word_dim=8)
ONE_EPOCH = FitConfig(max_epochs=1)


def write(frame: Any, path: Path) -> Path:
    """A table by pandas; a cell of TSV has no line break."""
    if ".tsv" in path.name:
        frame.replace("\n", " ", regex=True).to_csv(path, sep="\t", index=False)
    elif ".csv" in path.name:
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    return path


@pytest.mark.parametrize(
    "name", ["a.csv", "a.csv.gz", "a.tsv", "a.tsv.zst", "a.jsonl", "a.json.gz", "a.parquet"]
)
def test_a_table_gives_the_vectors_and_the_examples_of_its_frame(
    name: str, bilm: Pretrained, tmp_path: Path
) -> None:
    embedder = Embedder(replace(bilm, tokenizer="english-1"), "cpu")
    table = write(FRAME, tmp_path / name)
    encode_file(table, tmp_path / "encoded.npy", embedder, column="review")
    encoded = np.load(tmp_path / "encoded.npy")
    np.testing.assert_array_equal(encoded, embedder.encode(FRAME["review"]))
    embed_file(table, tmp_path / "store", embedder, column="review")
    words = [list(words) for words, _ in EmbeddingStore(tmp_path / "store")]
    assert words == list(map(embedder.tokenize, FRAME["review"]))

    task = ClassificationTask(ClassificationConfig(**COLUMNS))
    expected = list(read_examples(task, FRAME))
    assert [example.label for example in expected] == ["1", "5", "2", "5", "1"] * 4
    rows = FRAME[["review", "stars"]].values
    for source in (table, rows, FRAME.to_dict("records"), expected):
        assert list(read_examples(task, source)) == expected


SENTENCES = [
    (["Ann", "sees", "New York"], ["B-PER", "O", "B-LOC"]),
    (["Bob", "sleeps"], ["B-PER", "O"]),
]


def test_sentences_with_tags_come_from_columns_of_lists(tmp_path: Path) -> None:
    frame = pd.DataFrame(SENTENCES, columns=["words", "tags"])
    tagged = tmp_path / "a.conll"
    tagged.write_text("".join("".join(map("{}\t{}\n".format, *each)) + "\n" for each in SENTENCES))
    expected = list(TaggingTask().read(tagged))
    table = write(frame, tmp_path / "a.parquet")
    for source in (
        frame,
        table,
        write(frame, tmp_path / "a.jsonl"),
        pd.read_parquet(table),
        SENTENCES,
        expected,
    ):
        assert list(read_examples(TaggingTask(), source)) == expected


def test_pairs_come_from_tuples_and_frames() -> None:
    frame = pd.DataFrame(
        {"#1 String": ["A dog", "A cat"], "#2 String": ["It runs", "It sits"], "Quality": [1, 0]}
    )
    task = PairsTask()
    pairs = list(read_examples(task, frame))
    assert [(pair.first, pair.second, pair.label) for pair in pairs] == [
        (("A", "dog"), ("It", "runs"), "1"), (("A", "cat"), ("It", "sits"), "0"),
    ]  # fmt: skip
    assert list(read_examples(task, frame.itertuples(index=False, name=None))) == pairs


# --- Rows that do not fit -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task, examples, place",
    [
        (
            "classification",
            [{"review": "a", "label": "b"}],
            "example 1: .*'text' among 'review', 'label'",
        ),
        (
            "classification",
            pd.DataFrame({"text": ["a", None], "label": [1, 2]}),
            "example 2: .*'text' is empty",
        ),
        (
            "classification",
            pd.DataFrame({"text": ["a", "b"], "label": ["c", pd.NA]}),
            "example 2: .*'label' is empty",
        ),
        ("classification", [("a", "b"), ("a", float("nan"))], "example 2"),
        ("classification", [("a", "b", "c")], "example 1"),
        ("tagging", [(["Ann"], [3])], "example 1.*names"),
    ],
)
def test_rows_that_do_not_fit_are_named(task: str, examples: Any, place: str) -> None:
    with pytest.raises(ValueError, match=place):
        fit(task, examples, examples, words=WORDS, config=ONE_EPOCH)


def test_a_file_or_a_model_of_another_kind_is_called_by_its_name(
    bilm: Pretrained, tagger: TaskModel, tmp_path: Path
) -> None:
    write(FRAME, tmp_path / "a.parquet").rename(tmp_path / "train-00000-of-00001")
    with pytest.raises(ValueError, match=r"is Parquet.*--column"):
        encode_file(tmp_path / "train-00000-of-00001", tmp_path / "out.npy", bilm)
    save(bilm, tmp_path / "bilm")
    with pytest.raises(ValueError, match="language model"):
        load_task_model(tmp_path / "bilm")
    tagger.save(tmp_path / "tagger")
    with pytest.raises(ValueError, match="task model"):
        Embedder(tmp_path / "tagger")


# --- Files with empty cells and without answers ---------------------------------------------------


@pytest.fixture(scope="module")
def classifier() -> TaskModel:
    return fit(
        "classification", FRAME, FRAME, words=WORDS, config=ONE_EPOCH, network="pooled", **COLUMNS
    )[0]


@pytest.fixture(scope="module")
def tagger() -> TaskModel:
    return fit("tagging", SENTENCES, SENTENCES, words=WORDS, config=ONE_EPOCH)[0]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_rows_keep_their_order_where_cells_are_empty(
    name: str, bilm: Pretrained, classifier: TaskModel, tmp_path: Path
) -> None:
    texts = ["a film", None, "  ", "a story"]
    table = write(pd.DataFrame({"text": texts}), tmp_path / name)
    encoded = tmp_path / "e.npy"
    labels = tmp_path / "labels.jsonl"
    encode_file(table, encoded, bilm, device="cpu")
    assert np.load(encoded).any(axis=1).tolist() == [True, False, False, True]
    for options in ({"column": "text"}, {"text": True}):
        found = predict_file(classifier, table, labels, overwrite=True, **options)
        words = [json.loads(line)["predicted"]["words"] for line in labels.read_text().splitlines()]
        assert words == [["a", "film"], [], [], ["a", "story"]]
        assert (found.examples, found.scores) == (4, None)


def test_a_tagger_reads_a_column_of_texts_and_what_it_wrote_itself(
    tagger: TaskModel, tmp_path: Path
) -> None:
    table = write(pd.DataFrame({"id": [1, 2], "note": ["Ann sleeps.", "Bob"]}), tmp_path / "a.tsv")
    predict_file(tagger, table, tmp_path / "out.jsonl", column="note")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["words"] for line in lines] == [["Ann", "sleeps", "."], ["Bob"]]
    # What it wrote is an input with answers.
    again = predict_file(tagger, tmp_path / "out.jsonl", tmp_path / "again.jsonl")
    assert again.scores.values["accuracy"] == 1
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()
