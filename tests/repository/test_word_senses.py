"""Word-sense disambiguation, against uses embedded one by one and votes counted one by one."""

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from oracle import cosine

from elmokit.embed import Embedder

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "quality"))
from word_senses import (
    Instance,
    LemmaSenses,
    Sentence,
    all_words,
    coarse_wsd,
    lemma_senses,
    read_first_senses,
    read_raganato,
    read_semcor,
)

MONEY = "bank%1:14:00::"
RIVER = "bank%1:17:01::"
XML = """<corpus><sentence id="d0.s0"><wf>the</wf>
<instance id="{0}d0.s0.t0" lemma="Savings_bank" pos="NOUN">savings_bank</instance>
<wf>lent money</wf></sentence>
<sentence id="d0.s1"><instance id="{0}d0.s1.t0" lemma="bank" pos="NOUN">bank</instance>
<wf>of</wf><wf>a</wf><wf>river</wf></sentence></corpus>"""
KEYS = f"{{0}}d0.s0.t0 savings_{MONEY}\n{{0}}d0.s1.t0 {RIVER} {MONEY}\n"
SEMCOR = [
    ("the savings_bank lent money", 1, "Savings_bank", MONEY),
    ("the bank of a river", 1, "bank", RIVER),
    ("they walked along the bank", 4, "bank", RIVER),
    ("a bank that lent money", 1, "bank", MONEY),
]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder(device="cpu")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, prefix in (("one", ""), ("ALL", "one.")):
        (tmp_path / f"{name}.data.xml").write_text(XML.format(prefix))
        (tmp_path / f"{name}.gold.key.txt").write_text(KEYS.format(prefix))
    lines = []
    for text, token, lemma, key in SEMCOR:
        name = {"tok": [0], "lemma": "person", "pos": "NNP", "lexkeys": ["1:03:00::"]}
        use = {"tok": [token], "lemma": lemma, "pos": "NN", "lexkeys": [key.partition("%")[2]]}
        lines.append(json.dumps({"tokens": text.split(), "instances": [name, use]}))
    (tmp_path / "semcor.jsonl").write_text("\n".join(lines))
    (tmp_path / "index.sense").write_text(f"{MONEY} 1 1 20\n{RIVER} 2 2 10\n")
    return tmp_path


def test_files_are_read_with_joined_words_split(data: Path) -> None:
    first, second = read_raganato(data / "one.data.xml")
    assert first.words == ("the", "savings", "bank", "lent", "money")
    assert first.instances == (Instance("savings_bank%n", 1, 3, (f"savings_{MONEY}",), "one"),)
    assert second.instances == (Instance("bank%n", 0, 1, (RIVER, MONEY), "one"),)
    first, *_ = read_semcor(data / "semcor.jsonl")
    assert first.words == ("the", "savings", "bank", "lent", "money")
    assert first.instances == (Instance("savings_bank%n", 1, 3, (f"savings_{MONEY}",)),)
    assert read_first_senses(data) == {"bank%n": MONEY}


@pytest.mark.parametrize("neighbors", [None, 1, 2, 99])
def test_nearest_sense_is_that_of_the_nearest_centroid_or_of_most_of_the_nearest_uses(
    embedder: Embedder, neighbors: int | None
) -> None:
    texts = [(text.split(), at, key) for text, at, lemma, key in SEMCOR if lemma == "bank"]
    train = [
        Sentence(tuple(words), (Instance("bank", at, at + 1, (key,)),)) for words, at, key in texts
    ]

    def rows(words: list[str], at: int) -> np.ndarray:
        """The layers of a word, and the mean of the sentence."""
        layers = embedder.embed([words], "all", "zeros")[0]
        return np.stack([*layers[:, at], layers[-1].mean(axis=0)])

    uses = [(key, rows(words, at)) for words, at, key in texts]
    if neighbors is None:
        uses = [
            (sense, np.mean([vectors for key, vectors in uses if key == sense], axis=0))
            for sense in (RIVER, MONEY)
        ]
    known = lemma_senses(train, embedder, neighbors, "zeros")["bank"]
    assert known.names == [RIVER, MONEY]
    for text in ("some bank went bust", "the bank of the stream"):
        query = rows(text.split(), 1)
        for layer in (1, 2, 3):  # 3: the word at layer 2 and the text together
            parts = (2, 3) if layer == 3 else (layer,)
            nearest = sorted(
                uses, key=lambda use: -sum(cosine(use[1][part], query[part]) for part in parts)
            )
            votes = Counter(sense for sense, _ in nearest[: neighbors or 1])
            expected = RIVER if votes[RIVER] >= votes[MONEY] else MONEY
            assert known.nearest(query)[layer] == expected


@pytest.mark.parametrize(("angle", "expected"), [(0.0, "z"), (5e-4, "z"), (5e-3, "a")])
def test_uses_vote_too_that_are_as_near_as_the_nearest(angle: float, expected: str) -> None:
    """Two uses of sense z are less similar than that of a by 0, 1e-7 (a rounding error), 1e-5."""
    nearest = [1.0, 0.0]
    others = [np.cos(angle), np.sin(angle)]
    has_sense = np.array([[0, 1], [1, 0], [1, 0]], bool)
    uses = LemmaSenses(["z", "a"], np.array([[nearest, others, others]]), has_sense, 1)
    assert uses.nearest(np.array([nearest])) == [expected]


def test_all_words_are_scored_by_set_and_layer(data: Path, embedder: Embedder) -> None:
    report = all_words(data, data / "semcor.jsonl", embedder, data)
    assert report["instances"] == {"ALL": 2, "one": 2}
    assert report["unseen"] == 0
    assert report["f1"]["ALL"] == report["f1"]["one"]
    assert report["f1"]["ALL"]["layer 2"] == report["f1"]["ALL"]["most frequent"] == 100
    assert report["f1"]["ALL"]["first sense"] == pytest.approx(200 / 3)  # one is unanswered
    one = all_words(data / "one.data.xml", data / "semcor.jsonl", embedder, None, 1)
    assert one["f1"]["one"]["layer 2"] == 100


def test_coarse_words_are_scored_and_their_mean(tmp_path: Path, embedder: Embedder) -> None:
    for word, flipped in (("bank", "0\n1\n"), ("mole", "1\n1\n")):
        folder = tmp_path / word
        folder.mkdir()
        (folder / "classes_map.txt").write_text('{"0": "first", "1": "second"}')
        lines = [f"1\tthe {word} lent money", f"3\tthe river  has\u00a0no {word}"]
        (folder / "train.data.txt").write_text("\n".join([*lines, lines[0]]))
        (folder / "train.gold.txt").write_text("0\n1\n0\n")
        (folder / "test.data.txt").write_text("\n".join(lines))
        (folder / "test.gold.txt").write_text(flipped)
    report = coarse_wsd(tmp_path, embedder)
    layers = {"layer 1": 100, "layer 2": 100, "use": 100}
    assert report["f1"]["bank"] == {"layer 0": 50, **layers, "most frequent": 50}
    assert report["f1"]["mean"] == {
        "layer 0": 25,
        "layer 1": 75,
        "layer 2": 75,
        "use": 75,
        "most frequent": 25,
    }
    assert report["instances"] == {"mean": 4, "bank": 2, "mole": 2}
