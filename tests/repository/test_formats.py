"""docs/formats.md is enough to read what elmokit writes: readers of JSON and safetensors alone,
written from it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from oracle import Oracle, random_weights
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch_file
from tiny_model import tiny_model

from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file
from elmokit.nn.bilm import BiLMState

LINES = ["The cat sat .", "", "naïve 词向量 " + "x" * 60, "a b", "c"]


# --- A model --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Pretrained:
    mix = MixWeights((0.5, -0.2, 0.1), gamma=1.5)
    model = tiny_model(["the", "cat"], tokenizer="whitespace-1", mix=mix)
    random_weights(model.bilm, seed=4, scale=0.6)
    warm = BiLMState(torch.randn(2, 2, 1, 16), torch.randn(2, 2, 1, 32))
    return replace(model, warm_state=warm)


@pytest.fixture(scope="module")
def directory(model: Pretrained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model"
    save(model, path)
    return path


def ids_of(word: str, width: int) -> list[int]:
    boundaries = {"<S>": [259, 257, 260], "</S>": [259, 258, 260]}
    row = boundaries.get(word) or [259, *(byte + 1 for byte in word.encode()[: width - 2]), 260]
    return row + [261] * (width - len(row))


def test_vectors_computed_as_the_document_says_equal_those_of_the_embedder(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    tensors = load_torch_file(directory / "model.safetensors")
    oracle = Oracle(
        SimpleNamespace(config=BiLMConfig.from_dict(config["model"]), state_dict=lambda: tensors)
    )
    words = ["the", "naïve", "词向量", "x" * 60]
    ids = [ids_of(word, oracle.config.char_cnn.max_characters) for word in ["<S>", *words, "</S>"]]
    vectors = [oracle.word(np.array(characters)) for characters in ids]
    layers = oracle.row(vectors, (oracle.zeros(), oracle.zeros()))[0][:, 1:-1]
    weights = np.exp(config["mix"]["weights"]) / np.exp(config["mix"]["weights"]).sum()
    mixed = config["mix"]["gamma"] * np.tensordot(weights, layers, 1)
    embedder = Embedder(directory, "cpu")
    with pytest.warns(UserWarning, match="too long|truncated"):
        np.testing.assert_allclose(embedder.embed([words], "all")[0], layers, atol=1e-5)
        np.testing.assert_allclose(embedder.embed([words], "mix")[0], mixed, atol=1e-5)


def test_fingerprint_is_the_documented_digest(directory: Path, model: Pretrained) -> None:
    config = json.loads((directory / "config.json").read_text())
    digest = hashlib.sha256(
        json.dumps(
            [config[name] for name in ("model", "mix", "state", "tokenizer")], sort_keys=True
        ).encode()
    )
    tensors = load_file(directory / "model.safetensors")
    for name, array in load_file(directory / "state.safetensors").items():
        tensors[f"state.{name}"] = array
    for name, array in sorted(tensors.items()):
        digest.update(name.encode() + array.astype("<f4").tobytes())
    assert digest.hexdigest() == model.fingerprint()


# --- Embeddings -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(model: Pretrained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    (folder / "text.txt").write_text(
        "\ufeff" + "\r\n".join(LINES) + "\r\n", encoding="utf-8", newline=""
    )
    with pytest.warns(UserWarning, match="too long"):
        embed_file(
            folder / "text.txt",
            folder / "vectors",
            Embedder(model, "cpu"),
            layers="all",
            sentences_per_part=2,
        )
    return folder / "vectors"


def test_embeddings_read_as_documented_are_those_of_every_line(
    store: Path, model: Pretrained
) -> None:
    index = json.loads((store / "index.json").read_text())
    assert index["complete"]
    shards = [
        load_file(store / f"part-{number:05d}.safetensors") for number in range(index["num_parts"])
    ]
    with pytest.warns(UserWarning, match="too long|truncated"):
        expected = Embedder(model, "cpu").embed(LINES, "all")
    for line, text in enumerate(LINES):
        shard = shards[line // index["sentences_per_part"]]
        s = line % index["sentences_per_part"]
        begin, end = shard["offsets"][s : s + 2]
        bounds = shard["token_offsets"][begin : end + 1]
        assert [
            shard["token_bytes"][a:b].tobytes().decode() for a, b in pairwise(bounds)
        ] == text.split()
        vectors = shard["vectors"][begin:end]
        assert vectors.shape == (len(text.split()), *index["vector_shape"])
        np.testing.assert_allclose(vectors, expected[line].swapaxes(0, 1), atol=1e-5)
    totals = [
        sum(len(shard[name]) - 1 for shard in shards) for name in ("offsets", "token_offsets")
    ]
    assert [index["num_sentences"], index["num_words"]] == totals


def test_index_names_the_model_and_the_text_by_the_documented_digests(
    store: Path, model: Pretrained
) -> None:
    index = json.loads((store / "index.json").read_text())
    assert index["settings"]["model"] == model.fingerprint()
    digest = hashlib.blake2b("".join(f"{line}\n" for line in LINES).encode(), digest_size=16)
    assert index["settings"]["text"] == digest.hexdigest()
