"""docs/formats.md describes what `elmokit fit` writes: its files, its keys, the digests of its cache."""

import json
import re
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from toy_tasks import toy_tasks

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM
from elmokit.tasks.config import WordsConfig
from elmokit.tasks.fit import fit

DOCUMENT = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
SECTION = DOCUMENT.split("\n## A task model\n")[1].split("\n## ")[0]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tagger with ELMo and vectors of a file, and the cache of its layers."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "vectors.txt").write_text("Ann 1 2\nred 3 4\n")
    torch.manual_seed(0)
    toy = toy_tasks()["tagging"]
    words = WordsConfig(word_dim=8, vectors=str(folder / "vectors.txt"))
    options = {"words": words, "config": replace(toy.config, max_epochs=1), "cache": folder / "cache"}
    model = Pretrained(BiLM(BiLMConfig.preset("tiny")))
    fit(toy.task, toy.examples, toy.examples, model=model, output=folder / "tagger", **options)
    return folder


def documented(table: int) -> set[str]:
    """The names in the first column of a table, counted from 1."""
    rows = re.split(r"^\|(?:---\|)+$", SECTION, flags=re.MULTILINE)[table].split("\n\n")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", rows, flags=re.MULTILINE))


def test_files_and_keys_of_a_task_model_are_the_documented_ones(directory: Path) -> None:
    written = {f"{path.name}/" if path.is_dir() else path.name for path in (directory / "tagger").iterdir()}
    assert written == documented(1) - {"encoder/"}
    config = json.loads((directory / "tagger" / "config.json").read_text())
    assert set(config) == documented(2) and config["format_version"] == 3
    words = (directory / "tagger" / "words.txt").read_text().splitlines()
    weights = load_file(directory / "tagger" / "weights.safetensors")
    assert weights["words.words.weight"].shape == (len(words) + 2, 8)
    assert (directory / "tagger" / "vectors.txt").read_text() == "Ann\nred\n"
    vectors = load_file(directory / "tagger" / "vectors.safetensors")["vectors"]
    assert vectors.dtype == np.float32 and vectors.tolist() == [[1, 2], [3, 4]]


def test_cached_vectors_are_found_by_the_documented_digest(directory: Path) -> None:
    (index_file,) = directory.glob("cache/*/segment-*.index.npy")
    index, vectors = np.load(index_file), np.load(str(index_file).replace(".index.", ".vectors."))
    words = [word.encode() for word in toy_tasks()["tagging"].examples[0].words]
    digest = blake2b(np.array(list(map(len, words)), dtype=np.int32).tobytes() + b"".join(words), digest_size=16)
    (row,) = index[index["digest"] == digest.digest()]
    assert row["words"] == len(words) and row["first"] + row["words"] <= len(vectors)
    assert vectors.shape[1:] == (3, 32)
