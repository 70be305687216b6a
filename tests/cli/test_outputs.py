"""Outputs of all verbs: what the suffix says, read by the library for it; others are refused."""

import json
import shlex
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from tiny_model import tiny_model

import elmokit
from elmokit import cli
from elmokit.lm import score_file

TABLES = [".csv", ".tsv", ".jsonl", ".parquet"]
PICTURES = [".svg", ".png", ".pdf"]
TEXT = ["the cat sees a dog", 'a dog, "$x^$" runs', "the dogs run", "the dog runs", "a dog"]
VERBS = {  # the command, the formats, the columns of a table, its rows
    "senses dog --corpus text.csv": ([*TABLES, *PICTURES, ".html"], {"line", "cluster", "x2"}, 4),
    "neighbors dog --in 'a dog barks' --corpus text.csv": (TABLES, {"rank", "line"}, 4),
    "compare dog 'a dog' 'dog runs'": ([*TABLES, *PICTURES], {"layers", "use 2"}, 8),
    "change dog cat --first text.csv --second text.csv": ([*TABLES, *PICTURES], {"pairwise_p"}, 2),
    "score text.csv": ([".csv", ".tsv", ".parquet"], {"line", "word", "id", "forward_nats"}, 23),
    "predict text.csv --model fitted": (TABLES, {"id", "text"}, 5),
    "encode text.csv": ([".parquet"], {"id", "text", "vector"}, 5),
    "embed text.csv": ([".parquet"], {"tokens", "vectors"}, 5),
}
READ: dict[str, Any] = {
    ".csv": pd.read_csv,
    ".tsv": lambda file: pd.read_csv(file, sep="\t"),
    ".jsonl": lambda file: pd.read_json(file, lines=True),
    ".parquet": pd.read_parquet,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a classifier and a table of texts."""
    directory = tmp_path_factory.mktemp("outputs")
    model = tiny_model(["dog", "the", "a", "runs", "cat", "."], tokenizer="english-1")
    elmokit.save(model, directory / "model")
    labels = ["yes", "no", "yes", "no", "yes"]
    table = pd.DataFrame({"id": range(10, 15), "text": TEXT, "label": labels})
    table.to_csv(directory / "text.csv", index=False)
    settings: Any = {"network": "pooled", "config": elmokit.FitConfig(max_epochs=1)}
    output = directory / "fitted"
    elmokit.fit("classification", table, table, model=model, output=output, **settings)
    return directory


def check(file: Path, columns: set[str], rows: int) -> None:
    """Read an output as what its suffix says."""
    content = file.read_bytes()
    if file.suffix in READ:
        table = READ[file.suffix](file)
        assert columns <= set(table)
        assert len(table) == rows
        predicted = [column for column in table if column.startswith("predicted")]
        assert bool(predicted) == (file.stem == "predict")
    elif file.suffix == ".png":
        Image.open(BytesIO(content)).verify()
    elif file.suffix == ".svg":
        assert ElementTree.fromstring(content).tag.endswith("svg")
    else:
        assert content.startswith({".pdf": b"%PDF", ".html": b"<!DOCTYPE html>"}[file.suffix])


@pytest.mark.filterwarnings("ignore:.* of the words are not in")
@pytest.mark.parametrize("command", VERBS)
def test_an_output_is_what_its_suffix_says_or_is_refused(
    command: str, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(directory)
    monkeypatch.setenv("HOME", str(directory))
    monkeypatch.setenv("ELMOKIT_CACHE", str(directory / "cache"))
    formats, columns, rows = VERBS[command]
    arguments = shlex.split(command)
    if "--model" not in arguments:
        arguments += ["--model", "model"]
    for suffix in [*TABLES, *PICTURES, ".html", ".npy", ".json", ".xlsx", ".png.gz", ""]:
        output = Path(f"{arguments[0]}{suffix}")
        code = cli.main([*arguments, "--output", f"~/{output}"])
        if suffix in formats:
            assert code == 0
            check(directory / output, columns, rows)
            assert cli.main([*arguments, "--output", str(output)]) == 2  # it exists
            output.unlink()
        elif code == 0:  # formats that are no tables, each with tests elsewhere
            assert (arguments[0], suffix) in {
                ("encode", ".npy"),
                ("score", ".jsonl"),
                ("score", ""),
                ("embed", ""),
            }
        assert not (directory / "~").exists()
    capsys.readouterr()
    if "text.csv" in arguments:  # its input
        assert cli.main([*arguments, "--output", "text.csv", "--overwrite"]) == 2
    assert pd.read_csv("text.csv").text.tolist() == TEXT


def test_reports_save_what_commands_write(directory: Path, tmp_path: Path) -> None:
    embedder = elmokit.Embedder(directory / "model", softmax=True)
    results = [
        elmokit.senses("dog", TEXT, embedder),  # of a list
        elmokit.neighbors("dog", "a dog", pd.Series(TEXT), embedder),
        elmokit.senses("dog", directory / "text.csv", embedder),
    ]
    for number, result in enumerate(results):
        result.save(tmp_path / f"{number}.csv")
    assert (tmp_path / "0.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()
    uses = pd.read_csv(tmp_path / "0.csv")
    assert [TEXT[line - 1].split()[0] for line in uses.line] == ["the", "a", "the", "a"]
    assert [row.sentence.split()[row.position] for row in uses.itertuples()] == list(uses.word)
    with pytest.raises(ValueError, match=r"\.csv"):
        results[1].save(tmp_path / "neighbors.png")


def test_regions_in_rows_are_scored_as_sentences(directory: Path, tmp_path: Path) -> None:
    model = directory / "model"
    regions = [("a", "the dog"), ("a", "runs"), ("b", "the"), ("b", "dog runs ."), ("a", "a cat")]
    table = pd.DataFrame(regions, columns=["item", "text"]).assign(rt=range(5))
    table.to_csv(tmp_path / "regions.csv", index=False)
    sentences = ["the dog | runs", "the | dog runs .", "a cat"]
    (tmp_path / "regions.txt").write_text("\n".join(sentences))
    options: Any = {"per": "region", "bits": True}
    score_file(tmp_path / "regions.txt", tmp_path / "0.csv", model, **options)
    output = tmp_path / "1.parquet"
    score_file(tmp_path / "regions.csv", output, model, group=["item"], bits=True)
    expected = pd.read_csv(tmp_path / "0.csv")
    found = pd.read_parquet(output)
    assert found.region.tolist() == [text for _, text in regions]
    assert found.rt.tolist() == list("01234")
    assert found.line.tolist() == [1, 1, 3, 3, 5]
    np.testing.assert_allclose(found.forward_bits, expected.forward_bits, atol=2e-6)
    for file in ("regions.csv", "none.txt"):  # which have no |
        (tmp_path / "none.txt").write_text("the dog runs\n")
        with pytest.raises(ValueError, match="group"):
            score_file(tmp_path / file, tmp_path / "2.csv", model, **options)
        assert not (tmp_path / "2.csv").exists()


def test_predictions_of_a_tagger_have_a_row_for_each_word(tmp_path: Path) -> None:
    examples = [(["a", "b"], ["X", "Y"]), (["b"], ["Y"])] * 4
    config = elmokit.FitConfig(max_epochs=1)
    tagger, _ = elmokit.fit("tagging", examples, examples, model=tiny_model(), config=config)
    tagger.save(tmp_path / "tagger")
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"words": w}) for w, _ in examples))
    arguments = ["predict", str(tmp_path / "text.jsonl"), "--model", str(tmp_path / "tagger")]
    for suffix in (".csv", ".parquet"):
        output = tmp_path / f"tags{suffix}"
        assert cli.main([*arguments, "--output", str(output)]) == 0
        table = READ[suffix](output)
        assert table.word.tolist() == [word for words, _ in examples for word in words]
        assert table.sentence.tolist() == [1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8]


def test_the_command_and_the_function_train_the_same_model(directory: Path, tmp_path: Path) -> None:
    table, model = str(directory / "text.csv"), str(directory / "model")
    outputs = tmp_path / "command", tmp_path / "function"
    options = f"--network pooled --max-epochs 2 --cache {tmp_path} --output {outputs[0]}".split()
    assert cli.main(["fit", "classification", table, table, "--model", model, *options]) == 0
    settings: Any = {"network": "pooled", "config": elmokit.FitConfig(max_epochs=2)}
    settings |= {"cache": tmp_path, "output": outputs[1], "model": model}
    elmokit.fit("classification", table, table, **settings)
    reports = [json.loads((output / "report.json").read_text()) for output in outputs]
    assert reports[0]["settings"] == reports[1]["settings"]
    weights = [(output / "weights.safetensors").read_bytes() for output in outputs]
    assert weights[0] == weights[1]
