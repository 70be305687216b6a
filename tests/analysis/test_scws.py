"""Ratings of words in context, against vectors of single sentences and SciPy's correlation."""

from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.analysis.scws import plot_scws, read_scws, scws
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
    for name, layers in (("layer 0", 0), ("layer 2", 2), ("mix", "mix")):
        cosines = []
        for pair in pairs:
            a, b = (embedder.embed([use.sentence], layers)[0][use.position] for use in (pair.first, pair.second))
            cosines.append(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
        expected = stats.spearmanr(np.round(cosines, 6), [pair.rating for pair in pairs]).statistic
        assert report.correlations[name] == pytest.approx(100 * expected)
    assert report.same_word is not None and "same word" in str(report)
    pytest.importorskip("matplotlib")
    assert plot_scws(report, tmp_path / "scws.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "content, message",
    [
        ("1\tBrazil\tn\n", "line 1: 3 columns, but SCWS has 18"),
        ("\t".join(["1", "a", "n", "b", "n", "a b", "<b> c </b>", "1", *["1"] * 10]) + "\n", "expected one word"),
        ("\t".join(["1", "a", "n", "b", "n", "<b> </b>", "<b> c </b>", "1", *["1"] * 10]) + "\n", "expected one word"),
        ("\t".join(["1", "a", "n", "b", "n", "<b> a </b>", "<b> c </b>", "x", *["1"] * 10]) + "\n", "is not a number"),
        ("", "has 0 pairs, and a correlation needs 2"),
    ],
)  # fmt: skip
def test_scws_names_the_line_that_is_not_in_its_format(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "ratings.txt").write_text(content)
    with pytest.raises(ValueError, match=message):
        scws(tmp_path / "ratings.txt")
