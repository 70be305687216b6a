"""Ratings of words in context, against vectors of single sentences and SciPy's correlation."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import cosine

from elmokit import cli
from elmokit.analysis.scws import ScwsReport, plot_scws, read_scws, scws
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM

CONTEXTS = [
    ("the <b> bank </b> of the river", "money in the <b> bank </b> .", 2.0),
    ("a <b> dog </b> barks", "his <b> cat </b> sleeps", 6.5),
    ("the <b> bank </b> failed", "a <b> Bank </b> was robbed", 9.0),
    ("the <b> bank </b> lends", "the <b> bank </b> pays", 9.5),
    ("fast <b> car </b>", "red <b> tree </b> .", 1.0),
]


def write_ratings(path: Path, contexts: list[tuple[str, str, float]] = CONTEXTS) -> Path:
    rows = [
        [str(number), "w", "n", "v", "n", first, second, str(rating), *["5.0"] * 10]
        for number, (first, second, rating) in enumerate(contexts, start=1)
    ]
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def test_scws_correlates_cosines_of_every_layer_with_ratings(tmp_path: Path) -> None:
    stats = pytest.importorskip("scipy.stats")
    torch.manual_seed(0)
    embedder = Embedder(Pretrained(BiLM(BiLMConfig.preset("tiny"))), device="cpu")
    report = scws(write_ratings(tmp_path / "ratings.txt"), embedder)
    pairs = list(read_scws(tmp_path / "ratings.txt"))
    assert [pair.first.sentence[pair.first.position] for pair in pairs] == ["bank", "dog", "bank", "bank", "car"]
    assert list(report.correlations) == ["layer 0", "layer 1", "layer 2", "mix"] and report.pairs == 5
    assert report.same_word is not None and "same word" in str(report)
    same = [0, 2, 3]  # bank and bank, also in upper case
    for name, layers in (("layer 0", 0), ("layer 2", 2), ("mix", "mix")):
        cosines = []
        for pair in pairs:
            a, b = (embedder.embed([use.sentence], layers)[0][use.position] for use in (pair.first, pair.second))
            cosines.append(cosine(a, b))
        ratings = [pair.rating for pair in pairs]
        expected = stats.spearmanr(np.round(cosines, 6), ratings).statistic
        assert report.correlations[name] == pytest.approx(100 * expected)
        expected = stats.spearmanr(np.round(cosines, 6)[same], np.array(ratings)[same]).statistic
        assert report.same_word[name] == pytest.approx(100 * expected)
    pytest.importorskip("matplotlib")
    assert plot_scws(report, tmp_path / "scws.png").read_bytes().startswith(b"\x89PNG")


def test_scws_verb_refuses_an_unknown_picture_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("elmokit.analysis.scws.scws", lambda *_: pytest.fail("it was computed"))
    command = ["scws", str(write_ratings(tmp_path / "ratings.txt")), "--plot", str(tmp_path / "map.xyz")]
    assert cli.main(command) == 2
    assert "map.xyz: matplotlib cannot write this format: choose .png, .svg or .pdf" in capsys.readouterr().err


def test_scws_verb_refuses_one_file_for_report_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.analysis.scws.scws", lambda *_: pytest.fail("it was computed"))
    monkeypatch.chdir(tmp_path)
    write_ratings(tmp_path / "ratings.txt")
    for overwrite in ([], ["--overwrite"]):
        assert (
            cli.main(["scws", "ratings.txt", "--output", "same.svg", "--plot", f"{tmp_path}/same.svg", *overwrite]) == 2
        )
        assert "same.svg would hold the report and the picture: name two files" in capsys.readouterr().err


def test_scws_verb_replaces_no_picture_that_appeared_meanwhile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plot.svg"

    def appear(*_: object) -> ScwsReport:
        picture.write_text("of another run")
        return ScwsReport({"mix": 1.0}, 5, None, "0")

    monkeypatch.setattr("elmokit.analysis.scws.scws", appear)
    command = ["scws", str(write_ratings(tmp_path / "ratings.txt")), "--plot", str(picture)]
    assert cli.main(command) == 2
    assert "plot.svg exists" in capsys.readouterr().err and picture.read_text() == "of another run"
    assert cli.main([*command, "--overwrite"]) == 0
    assert "<svg" in picture.read_text()


def test_scws_verb_replaces_no_report_that_appeared_meanwhile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report, output = ScwsReport({"layer 0": 1.0}, 5, None, "0"), tmp_path / "report.json"
    ratings = str(write_ratings(tmp_path / "ratings.txt"))

    def slow(*_: object) -> ScwsReport:
        output.write_text("of another run")
        return report

    monkeypatch.setattr("elmokit.analysis.scws.scws", slow)
    assert cli.main(["scws", ratings, "--output", str(output)]) == 2
    assert output.read_text() == "of another run" and "report.json exists" in capsys.readouterr().err
    assert cli.main(["scws", ratings, "--output", str(output), "--overwrite"]) == 0
    assert json.loads(output.read_text())["pairs"] == 5


@pytest.mark.parametrize(
    "content, message",
    [
        ("1\tBrazil\tn\n", "line 1: 3 columns, but SCWS has 18"),
        ("\t".join(["1", "a", "n", "b", "n", "a b", "<b> c </b>", "1", *["1"] * 10]) + "\n", "expected one word"),
        ("\t".join(["1", "a", "n", "b", "n", "<b> </b>", "<b> c </b>", "1", *["1"] * 10]) + "\n", "expected one word"),
        ("\t".join(["1", "a", "n", "b", "n", "<b> a </b>", "<b> c </b>", "x", *["1"] * 10]) + "\n", "is not a number"),
        ("\t".join(["1", "a", "n", "b", "n", "<b> a </b>", "<b> c </b>", "nan", *["1"] * 10]), "rating 'nan' is not"),
        ("\t".join(["1", "a", "n", "b", "n", "<b> a </b>", "<b> c </b>", "inf", *["1"] * 10]), "rating 'inf' is not"),
        ("", "has 0 pairs, and a correlation needs 2"),
    ],
)  # fmt: skip
def test_scws_names_the_line_that_is_not_in_its_format(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "ratings.txt").write_text(content)
    with pytest.raises(ValueError, match=message):
        scws(tmp_path / "ratings.txt")
