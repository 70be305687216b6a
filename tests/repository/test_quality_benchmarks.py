"""The measures of benchmarks/quality, on a tiny model, against plain computations of the same."""

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import random_weights

from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.lm.evaluate import evaluate
from elmokit.lm.scoring import score
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

# The vocabulary of the tiny model has a handful of words.
pytestmark = pytest.mark.filterwarnings("ignore:.* of the words are not in the model's vocabulary")

ROOT = Path(__file__).parents[2]
QUALITY = ROOT / "benchmarks" / "quality"
TEXT = "the cat sat\nthe dog saw the cat .\nyes\nthe mat\n"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """The scripts' directories on the path, as where one of them is run."""
    monkeypatch.setattr(sys, "path", [str(QUALITY), str(ROOT / "benchmarks"), *sys.path])


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    torch.manual_seed(11)
    bilm = BiLM(BiLMConfig.preset("tiny"))
    random_weights(bilm, seed=3, scale=0.5)
    vocab = Vocab(["<S>", "</S>", "<UNK>", "the", "cat", "sat", "."])
    return Embedder(Pretrained(bilm, softmax=FullSoftmax(len(vocab), 16), vocab=vocab, tokenizer="english-1"), "cpu")


def test_the_uses_are_those_that_were_written_before_training() -> None:
    content = (QUALITY / "sense_uses.json").read_bytes()
    assert hashlib.sha256(content).hexdigest() == "d62ecb0761cce263d085f6a6aba71109af73f562444cb202caf892c0787e45fd"
    counts = Counter((use["word"], use["sense"]) for use in json.loads(content)["uses"])
    assert len(counts) == 20 and set(counts.values()) == {3}


def test_nearest_uses_are_counted_as_one_would_by_hand(embedder: Embedder) -> None:
    from sense_uses import nearest_uses

    items = json.loads((QUALITY / "sense_uses.json").read_text())["uses"]
    vectors = []
    for item in items:
        words = item["sentence"].split()
        vector = embedder.embed([words], 2, "zeros")[0][words.index(item["word"])]
        vectors.append(vector / np.linalg.norm(vector))
    right = 0
    for i, item in enumerate(items):
        others = [j for j, other in enumerate(items) if other["word"] == item["word"] and j != i]
        nearest = max(others, key=lambda j: float(vectors[i] @ vectors[j]))
        right += items[nearest]["sense"] == item["sense"]
    found = nearest_uses(embedder, "zeros")
    assert found["right"]["layer 2"] == right and found["of"] == 60
    assert found["right"]["layer 0"] == 0  # which knows no context
    assert sum(found["by word"].values()) == found["right"]["contextual"]


def test_apples_hold_where_every_fruit_is_nearer_than_each_firm(embedder: Embedder) -> None:
    from sense_uses import EATEN, FIRMS, FRUITS, compare_apples

    found = compare_apples(embedder, "zeros")["layer 2"]
    vectors = [
        layers[embedder.tokenize(text).index("apple")]
        for text, layers in zip([EATEN, *FRUITS, *FIRMS], embedder.embed([EATEN, *FRUITS, *FIRMS], 2), strict=True)
    ]
    eaten, *others = (apple / np.linalg.norm(apple) for apple in vectors)
    cosines = [float(eaten @ other) for other in others]
    assert [*found["fruits"], *found["firms"]] == pytest.approx(cosines, abs=1e-4)
    assert found["holds"] == (min(cosines[: len(FRUITS)]) > max(cosines[len(FRUITS) :]))


def test_perplexity_by_place_adds_up_to_that_of_the_text(embedder: Embedder, tmp_path: Path) -> None:
    from sentence_starts import perplexity_by_place

    (tmp_path / "heldout.txt").write_text(TEXT)
    for state in ("zeros", "carry"):
        found = perplexity_by_place(embedder.model, [tmp_path / "heldout.txt"], state)
        whole = evaluate([tmp_path / "heldout.txt"], embedder.model, state=state, device="cpu").total
        for direction in ("forward", "backward", "mean"):
            assert found[direction]["all"] == pytest.approx(getattr(whole, direction), abs=1e-3)
    scored = score([line.split() for line in TEXT.splitlines()], embedder.model)
    first = {"forward": [each.forward[0] for each in scored], "backward": [each.backward[-1] for each in scored]}
    found = perplexity_by_place(embedder.model, [tmp_path / "heldout.txt"], "zeros")
    for direction, logs in first.items():
        assert found[direction]["1"] == pytest.approx(np.exp(-np.mean(logs)), abs=1e-3)
    assert found["mean"]["1"] == pytest.approx(np.exp(-np.mean([*first["forward"], *first["backward"]])), abs=1e-3)


def test_perplexity_of_words_that_two_models_know_counts_these_words_alone(embedder: Embedder, tmp_path: Path) -> None:
    from heldout_perplexity import of_known_words

    (tmp_path / "heldout.txt").write_text(TEXT)
    torch.manual_seed(12)
    vocab = Vocab(["<S>", "</S>", "<UNK>", "the", "dog", "sat", "mat"])
    other = Pretrained(embedder.model.bilm, softmax=FullSoftmax(len(vocab), 16), vocab=vocab, tokenizer="english-1")
    found = of_known_words([tmp_path / "heldout.txt"], embedder.model, other)
    sentences = [line.split() for line in TEXT.splitlines()]
    known = [
        (row, place)
        for row, words in enumerate(sentences)
        for place, word in enumerate(words)
        if word in ("the", "sat")
    ]
    assert found["words"] == len(known) == 5
    for model, name in ((embedder.model, "mean"), (other, "other")):
        scored = score(sentences, model, state="carry", batch_size=32)
        logs = [(scored[row].forward[place] + scored[row].backward[place + 1]) / 2 for row, place in known]
        assert found[name] == pytest.approx(np.exp(-np.mean(logs)), rel=1e-5)


def test_hours_are_those_of_the_steps_up_to_a_checkpoint_and_of_the_cool_down(tmp_path: Path) -> None:
    from time_to_quality import training

    def train(step: int, words: int) -> dict[str, object]:
        return {"event": "train", "step": step, "words": words, "words_per_second": 100, "processor_seconds": 3}

    events = [
        {"event": "start", "step": 0},
        train(2, 1000),
        train(4, 2000),
        {"event": "resume", "step": 2},
        train(4, 2000),
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in [*events, train(6, 3000)]))
    assert training(tmp_path, until=4) == pytest.approx(
        {"words": 2000, "hours": 20 / 3600, "processor_hours": 6 / 3600}
    )
    cool_down = [{"event": "start", "step": 4}, train(6, 3000), train(8, 4000)]
    (tmp_path / "cool-down").mkdir()
    (tmp_path / "cool-down" / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in cool_down))
    assert training(tmp_path / "cool-down", words_before=2000) == pytest.approx(
        {"words": 2000, "hours": 20 / 3600, "processor_hours": 6 / 3600}
    )


@pytest.mark.slow
def test_sentiment_reads_labels_and_pools_as_encode_does(embedder: Embedder, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("sklearn")
    import sentiment

    for part in sentiment.PARTS:
        (tmp_path / f"stsa.binary.{part}").write_text("1 a fine film\n0 no film\n1 fine fine\n0 no no no\n")
    sentences, labels = sentiment.read_sst2(tmp_path)
    assert sentences["dev"][1] == ["no", "film"] and labels["dev"].tolist() == [1, 0, 1, 0]
    fitted = []
    monkeypatch.setattr(sentiment, "accuracies", lambda features, _: fitted.append(features) or {})
    monkeypatch.setattr(
        sentiment,
        "StandardScaler",
        lambda: type("Same", (), {"fit": lambda self, _: self, "transform": lambda _, x: x})(),
    )
    assert list(sentiment.mean_vectors(embedder, "zeros", sentences, labels)) == [
        "layer 0",
        "layer 1",
        "layer 2",
        "mix",
    ]
    for features, layers in zip(fitted, (0, 1, 2, "mix"), strict=True):
        np.testing.assert_allclose(features["test"], embedder.encode(sentences["test"], layers=layers), atol=1e-5)
    monkeypatch.undo()
    assert sentiment.tf_idf(sentences, labels)["test"] == 100


@pytest.mark.slow
def test_a_part_is_written_under_its_model_and_the_others_stay(embedder: Embedder, tmp_path: Path, capsys) -> None:
    import intrinsic

    save(embedder.model, tmp_path / "tiny")
    (tmp_path / "heldout.txt").write_text(TEXT)
    output = tmp_path / "results.json"
    options = ["--eval", tmp_path, "--corpus", tmp_path / "heldout.txt", "--heldout", tmp_path / "heldout.txt"]
    command = [*options, "--model", tmp_path / "tiny", "--output", output]
    intrinsic.main([*map(str, command), "--only", "uses", "apples", "pairs"])
    intrinsic.main([*map(str, command), "--only", "state", "--label", "other"])
    report = json.loads(output.read_text(encoding="utf-8"))
    assert {label: list(parts) for label, parts in report.items()} == {
        "tiny": ["uses", "apples", "pairs"],
        "other": ["state"],
    }
    assert list(report["tiny"]["uses"]["by state"]) == ["zeros", "warm"]  # single sentences carry nothing
    assert list(report["other"]["state"]["by state"]) == ["zeros", "warm", "carry"]
    assert {"command", "commit", "date", "machine", "fingerprint", "dtype"} <= set(report["tiny"]["uses"])
    last = capsys.readouterr().out.split("\n\n")[-1]
    assert last.startswith("| | tiny, zeros | tiny, warm | other, zeros | other, warm | other, carry |")


def test_the_table_has_the_layers_of_every_measure() -> None:
    from intrinsic_table import summary

    layers = {"layer 0": 1.0, "layer 1": 2.0, "most frequent": 9.0}
    parts = {
        "coarsewsd": {"by state": {"zeros": {"f1": {"mean": layers, "apple": layers}}}},
        "probe": {"by state": {"zeros": {"scores": {name: {"test": value} for name, value in layers.items()}}}},
        "pairs": {"by state": {"zeros": {"right": {"contextual": 17, "0": 0, "1": 16, "mix": 15}}}},
        "sst2": {"by state": {"zeros": {"layer 0": {"test": 60.0}, "mix": {"test": 67.8}}, "tf-idf": {"test": 81.9}}},
        "state": {"by state": {"zeros": {"forward": {"1": 200.0, "11-": 60.0, "all": 90.0}, "mean": {"all": 85.0}}}},
    }
    rows = summary(parts, "zeros")
    assert list(rows.values()) == [
        "1.0 / 2.0",
        "1.0 / 2.0",
        "1.0 / 2.0",
        "17; 0 / 16",
        "67.8; 60.0",
        "200.0 / 60.0; 85.0",
    ]
    assert summary(parts, "carry") == {}
