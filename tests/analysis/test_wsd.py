"""Word-sense disambiguation, against sentences embedded one by one and NumPy."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from oracle import cosine

from elmokit.analysis.sense_corpora import SenseInstance, SenseSentence
from elmokit.analysis.wsd import LemmaSenses, f1_scores, instance_vectors, lemma_senses, wsd
from elmokit.embed.embedder import Embedder


def sentence(text: str, *instances: tuple[str, int, int, str]) -> SenseSentence:
    named = [
        SenseInstance(f"i{n}", lemma, start, end, (sense,))
        for n, (lemma, start, end, sense) in enumerate(instances)
    ]
    return SenseSentence(tuple(text.split()), tuple(named))


TRAIN = [
    sentence("the bank lent money to her", ("bank", 1, 2, "money")),
    sentence("a bank that lent him money", ("bank", 1, 2, "money"), ("lend", 3, 4, "give")),
    sentence("no sense here"),
    sentence("the bank of a river is the bank", ("bank", 1, 2, "river"), ("bank", 7, 8, "river")),
    sentence("a river bank", ("bank", 1, 3, "river")),
]


def alone(embedder: Embedder, words: tuple[str, ...]) -> np.ndarray:
    """Layers of a single sentence from zero state, (L+1, T, 2D)."""
    return embedder.embed([list(words)], "all", "zeros")[0]


# --- Sense centroids ------------------------------------------------------------------------------


def test_nearest_breaks_ties_by_frequency_in_the_token_layer(embedder: Embedder) -> None:
    texts = [
        sentence(f"the bank {word}", ("bank", 1, 2, sense))
        for word, sense in [("a", "z"), ("b", "a"), ("c", "z")]
    ]
    result = lemma_senses(texts, embedder, None, "zeros")["bank"]
    assert result.nearest(alone(embedder, ("another", "bank"))[:, 1])[0] == "z"


@pytest.mark.parametrize("neighbors", [None, 1, 2, 3, 99])
def test_nearest_sense_is_that_of_the_nearest_centroid_or_of_most_of_the_nearest_uses(
    embedder: Embedder, neighbors: int | None
) -> None:
    uses = [
        (
            instance.senses[0],
            alone(embedder, text.words)[:, instance.start : instance.end].mean(axis=1),
        )
        for text in TRAIN
        for instance in text.instances
        if instance.lemma == "bank"
    ]
    if neighbors is None:
        means = {
            name: np.mean([vectors for sense, vectors in uses if sense == name], axis=0)
            for name, _ in uses
        }
        uses = list(means.items())
    result = lemma_senses(TRAIN, embedder, neighbors, "zeros")
    assert set(result) == {"bank", "lend"} and result["bank"].names == ["river", "money"]
    for words in (
        ("some", "bank", "went", "bust"),
        ("bank", "of", "money"),
        ("the", "bank", "lent", "money"),
    ):
        query = alone(embedder, words)[:, words.index("bank")]
        for layer in (1, 2):
            nearest = sorted(uses, key=lambda use: -cosine(use[1][layer], query[layer]))[
                : neighbors or 1
            ]
            votes = Counter(sense for sense, _ in nearest)
            expected = "river" if votes["river"] >= votes["money"] else "money"
            assert result["bank"].nearest(query)[layer] == expected


@pytest.mark.parametrize(("angle", "expected"), [(0.0, "z"), (5e-4, "z"), (5e-3, "a")])
def test_uses_vote_too_that_are_as_near_as_the_nearest(angle: float, expected: str) -> None:
    """One use is of sense a; two of sense z are less similar by 0, 1e-7 (a rounding error) and
    1e-5.
    """
    nearest, others = [1.0, 0.0], [np.cos(angle), np.sin(angle)]
    uses = LemmaSenses(
        ["z", "a"],
        np.array([[nearest, others, others]]),
        np.array([[0, 1], [1, 0], [1, 0]], bool),
        1,
    )
    assert uses.nearest(np.array([nearest])) == [expected]


def test_a_use_votes_for_each_of_its_senses(embedder: Embedder) -> None:
    both = SenseSentence(("the", "bank"), (SenseInstance("i", "bank", 1, 2, ("money", "river")),))
    others = [sentence("a bank", ("bank", 1, 2, sense)) for sense in ("park", "river")]
    result = lemma_senses([both, *others], embedder, 3, "zeros")["bank"]
    assert result.names == ["river", "money", "park"]
    assert result.nearest(alone(embedder, ("the", "bank"))[:, 1]) == ["river"] * 3
    alone_first = lemma_senses([both, others[0]], embedder, 2, "zeros")["bank"]
    assert alone_first.names == ["money", "park", "river"]
    assert alone_first.nearest(alone(embedder, ("the", "bank"))[:, 1]) == ["money"] * 3


def test_instance_vectors_carry_state_across_batches(embedder: Embedder) -> None:
    result = [vectors for _, vectors in instance_vectors(TRAIN, embedder, "carry")]
    whole = embedder.embed([list(text.words) for text in TRAIN], "all", "carry", batch_size=1)
    expected = [
        layers[:, instance.start : instance.end].mean(axis=1)
        for text, layers in zip(TRAIN, whole, strict=True)
        for instance in text.instances
    ]
    np.testing.assert_allclose(np.stack(result), np.stack(expected), rtol=0, atol=1e-5)
    from_zeros = [vectors for _, vectors in instance_vectors(TRAIN, embedder, "zeros")]
    assert np.abs(np.stack(result)[-1] - np.stack(from_zeros)[-1]).max() > 1e-3


# --- Scores ---------------------------------------------------------------------------------------


def test_f1_combines_precision_and_recall() -> None:
    answers = ["a", "b", None, "a", None]
    senses = [("a",), ("a",), ("a",), ("c", "a"), ("b",)]
    f1, instances = f1_scores(
        (["ALL"], {"method": answer}, right) for answer, right in zip(answers, senses, strict=True)
    )
    precision, recall = 2 / 3, 2 / 5
    assert f1 == {
        "ALL": {"method": pytest.approx(100 * 2 * precision * recall / (precision + recall))}
    }
    assert instances == {"ALL": 5}


# --- Files ----------------------------------------------------------------------------------------


Tokens = list[tuple[str, str | None, str | None]]  # (word, lemma or None, sense key) each


def write_xml(directory: Path, name: str, sentences: list[Tokens], prefix: str = "") -> Path:
    """Tokens are (word, lemma or None, sense key); the word is a noun."""
    lines, keys = ["<corpus>"], []
    for s, tokens in enumerate(sentences):
        lines.append(f'<sentence id="d000.s{s:03}">')
        for t, (word, lemma, key) in enumerate(tokens):
            instance = f"{prefix}d000.s{s:03}.t{t:03}"
            tag = (
                f'instance id="{instance}" lemma="{lemma}" pos="NOUN"'
                if lemma
                else 'wf lemma="x" pos="X"'
            )
            lines.append(f"<{tag}>{word}</{tag.split()[0]}>")
            if lemma:
                keys.append(f"{instance} {key}")
        lines.append("</sentence>")
    (directory / f"{name}.data.xml").write_text("\n".join([*lines, "</corpus>"]))
    (directory / f"{name}.gold.key.txt").write_text("\n".join(keys))
    return directory / f"{name}.data.xml"


def plain(text: str) -> Tokens:
    return [(word, None, None) for word in text.split()]


MONEY, RIVER = "bank%1:14:00::", "bank%1:17:01::"
LENT = [*plain("the"), ("bank", "bank", MONEY), *plain("lent money")]
SHORE = [*plain("they walked along a"), ("bank", "bank", RIVER)]
PEAR, PEAR_TREE = "pear%1:13:00::", "pear%1:20:00::"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    # the training text is the test text and another use of the river bank, which is therefore most
    # frequent
    write_xml(tmp_path, "train", [LENT, SHORE, SHORE])
    write_xml(tmp_path, "one", [LENT, SHORE])
    write_xml(
        tmp_path,
        "two",
        [[*plain("a"), ("pear", "pear", PEAR)], [("pear", "pear", PEAR_TREE)], SHORE],
    )
    (tmp_path / "index.sense").write_text(
        f"{PEAR} 1 1 4\n{PEAR_TREE} 2 2 0\n{MONEY} 3 1 20\n{RIVER} 4 2 10\n"
    )
    return tmp_path


def test_all_words_wsd_scores_each_set_and_layer(data: Path, embedder: Embedder) -> None:
    tests = [data / "one.data.xml", data / "two.data.xml"]
    report = wsd(tests, data / "train.data.xml", data, embedder, "zeros")
    assert report.instances == {"ALL": 5, "one": 2, "two": 3}
    assert report.unseen == 2 and report.senses == 2
    for layer in ("layer 1", "layer 2"):  # each test sentence of "bank" was seen with its sense
        assert (report.f1["one"][layer], report.f1["two"][layer]) == (100, pytest.approx(200 / 3))
    assert report.f1["one"]["layer 0"] == report.f1["one"]["most frequent"] == 50
    assert report.f1["one"]["first sense"] == 50
    assert report.f1["two"]["first sense"] == pytest.approx(100 / 3)
    assert report.f1["ALL"]["layer 2"] == 80
    without = wsd(tests[1:], data / "train.data.xml", None, embedder, "zeros").f1["two"]
    assert "first sense" not in without and without["layer 1"] == pytest.approx(
        200 * 1 / (1 + 3)
    )  # two are unanswered
    printed = str(report).splitlines()
    assert printed[0].split() == "uses layer 0 layer 1 layer 2 most frequent first sense".split()  # noqa: SIM905
    assert printed[1].split() == ["ALL", "5", "60.00", "80.00", "80.00", "60.00", "40.00"]


def test_wsd_by_nearest_uses_scores_seen_sentences_and_names_the_number_of_uses(
    data: Path, embedder: Embedder
) -> None:
    tests, training = [data / "one.data.xml"], data / "train.data.xml"
    report = wsd(tests, training, data, embedder, "zeros", neighbors=1)
    assert report.f1["one"]["layer 2"] == 100 and report.f1["one"]["layer 0"] == 50
    assert "nearest uses: 1; state zeros" in str(report)
    all_uses = wsd(tests, training, data, embedder, "zeros", neighbors=100).f1["one"]
    assert {all_uses[f"layer {number}"] for number in range(3)} == {all_uses["most frequent"]}


def test_wsd_reads_all_data_xml_of_a_directory_if_present(data: Path, embedder: Embedder) -> None:
    (data / "sets").mkdir()
    write_xml(data / "sets", "senseval2", [LENT])
    training = data / "train.data.xml"
    assert list(wsd([data / "sets"], training, model=embedder, state="zeros").f1) == ["senseval2"]
    all_sets = write_xml(data / "sets", "ALL", [LENT], prefix="senseval2.")
    other = write_xml(data / "sets", "other", [SHORE], prefix="semeval2007.")
    all_sets.write_text(
        all_sets.read_text().replace("</corpus>", "") + other.read_text().replace("<corpus>", "")
    )
    keys = data / "sets" / "ALL.gold.key.txt"
    keys.write_text(keys.read_text() + "\n" + (data / "sets" / "other.gold.key.txt").read_text())
    report = wsd([data / "sets"], training, model=embedder, state="zeros")
    assert report.instances == {"ALL": 2, "senseval2": 1, "semeval2007": 1}


def test_all_words_wsd_trains_on_json_lines(data: Path, embedder: Embedder) -> None:
    lines = [
        {
            "tokens": text.split(),
            "instances": [{"tok": [place], "lemma": "bank", "pos": "NN", "lexkeys": [lexkey]}],
        }
        for text, place, lexkey in [
            ("the bank lent money", 1, "1:14:00::"),
            ("they walked along a bank", 4, "1:17:01::"),
        ]
    ]
    (data / "semcor.jsonl").write_text("\n".join(map(json.dumps, lines)))
    from_json = wsd([data / "one.data.xml"], data / "semcor.jsonl", None, embedder, "zeros")
    assert from_json.f1["one"]["layer 1"] == from_json.f1["one"]["layer 2"] == 100


def test_wsd_scores_coarse_words_and_their_mean(tmp_path: Path, embedder: Embedder) -> None:
    for word, flipped in (("bank", "0\n1\n"), ("mole", "1\n1\n")):
        folder = tmp_path / word
        folder.mkdir()
        (folder / "classes_map.txt").write_text('{"0": "first", "1": "second"}')
        lines = [f"1\tthe {word} lent money", f"3\tthe river has {word}"]
        (folder / "train.data.txt").write_text("\n".join([*lines, lines[0]]))
        (folder / "train.gold.txt").write_text("0\n1\n0\n")
        (folder / "test.data.txt").write_text("\n".join(lines))
        (folder / "test.gold.txt").write_text(flipped)
    report = wsd([tmp_path], model=embedder, state="zeros")
    assert report.f1["bank"] == {"layer 0": 50, "layer 1": 100, "layer 2": 100, "most frequent": 50}
    assert report.f1["mole"] == {"layer 0": 0, "layer 1": 50, "layer 2": 50, "most frequent": 0}
    assert report.f1["mean"] == {"layer 0": 25, "layer 1": 75, "layer 2": 75, "most frequent": 25}
    assert report.instances == {"mean": 4, "bank": 2, "mole": 2}
    assert list(wsd([tmp_path / "bank"], model=embedder).f1) == ["bank"]
