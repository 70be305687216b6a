"""The measures of benchmarks/quality, on a tiny model, against plain computations of the same."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import random_weights

from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM

ROOT = Path(__file__).parents[2]
QUALITY = ROOT / "benchmarks" / "quality"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """The scripts' directories on the path, as where one of them is run."""
    monkeypatch.setattr(sys, "path", [str(QUALITY), str(ROOT / "benchmarks"), *sys.path])


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    torch.manual_seed(11)
    bilm = BiLM(BiLMConfig.preset("tiny"))
    random_weights(bilm, seed=3, scale=0.5)
    return Embedder(Pretrained(bilm, tokenizer="english-1"), "cpu")


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


@pytest.mark.slow
def test_sentiment_reads_labels_and_pools_as_encode_does(embedder: Embedder, tmp_path: Path) -> None:
    import sentiment
    from sklearn.preprocessing import StandardScaler

    for part in sentiment.PARTS:
        (tmp_path / f"stsa.binary.{part}").write_text("1 a fine film\n0 no film\n1 fine fine\n0 no no no\n")
    sentences, labels = sentiment.read_sst2(tmp_path)
    assert sentences["dev"][1] == ["no", "film"] and labels["dev"].tolist() == [1, 0, 1, 0]
    vectors = {part: embedder.encode(sentences[part], layers="mix") for part in sentiment.PARTS}
    scaler = StandardScaler().fit(vectors["train"])
    expected = sentiment.accuracies({part: scaler.transform(each) for part, each in vectors.items()}, labels)
    assert sentiment.mean_vectors(embedder, "zeros", sentences, labels)["mix"] == expected
    assert sentiment.tf_idf(sentences, labels)["test"] == 100


@pytest.mark.slow
def test_a_part_is_written_under_its_model_and_the_others_stay(embedder: Embedder, tmp_path: Path) -> None:
    import intrinsic

    save(embedder.model, tmp_path / "tiny")
    command = ["--eval", tmp_path, "--model", tmp_path / "tiny", "--output", tmp_path / "results.json", "--only"]
    intrinsic.main([*map(str, command), "uses", "pairs"])
    intrinsic.main([*map(str, command), "apples", "--label", "other"])
    report = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert {label: list(parts) for label, parts in report.items()} == {"tiny": ["uses", "pairs"], "other": ["apples"]}
    assert report["tiny"]["pairs"]["by state"]["zeros"]["right"]["0"] == 0
    assert {"command", "commit", "date", "machine", "fingerprint", "dtype"} <= set(report["tiny"]["uses"])
