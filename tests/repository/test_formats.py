"""docs/formats.md is enough to read what elmokit writes: readers of JSON and safetensors alone, written from it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import random_weights
from safetensors.numpy import load_file
from sequence_encoders import CONFIGS
from toy_run import settings_for, write_text

from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import MixWeights, Pretrained, fingerprint
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab
from elmokit.train.pretrain import pretrain

DOCUMENT = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
LINES = ["The cat sat .", "", "naïve 词向量 " + "x" * 60, "a b", "c"]


# --- What the document says ------------------------------------------------------------------------------------------


def section(title: str) -> str:
    """The text below a heading, up to the next one."""
    return re.split(r"^#+ ", DOCUMENT.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def documented(title: str) -> set[str]:
    """The names in the first column of the section's tables."""
    cells = re.findall(r"^\| (`[^|]+) \|", section(title), flags=re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def pattern(names: set[str]) -> re.Pattern[str]:
    """Matches what the names stand for: {x} is a number, * anything."""
    escaped = (re.escape(name).replace(r"\*", ".+") for name in names)
    return re.compile("|".join(re.sub(r"\\\{\w+\\\}", r"\\w+", name) for name in escaped))


def flattened(values: dict[str, Any], *outer: str) -> Iterator[str]:
    """The keys of nested objects, those within `model` without its name, as the document writes them."""
    for name, value in values.items():
        path = [*outer, name] if outer != ("model",) else [name]
        if isinstance(value, dict):
            yield from flattened(value, *path)
        yield ".".join(path)


# --- A model ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Pretrained:
    bilm, vocab = BiLM(BiLMConfig.preset("tiny")), Vocab(["<S>", "</S>", "<UNK>", "the", "cat"])
    random_weights(bilm, seed=4, scale=0.6)
    torch.manual_seed(1)
    warm = BiLMState(torch.randn(2, 2, 1, 16), torch.randn(2, 2, 1, 32))
    mix = MixWeights((0.5, -0.2, 0.1), gamma=1.5)
    softmax = FullSoftmax(len(vocab), 16)
    return Pretrained(bilm, softmax=softmax, vocab=vocab, tokenizer="whitespace-1", mix=mix, warm_state=warm)


@pytest.fixture(scope="module")
def directory(model: Pretrained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model"
    save(model, path)
    return path


def ids_of(word: str, width: int) -> list[int]:
    boundaries = {"<S>": [259, 257, 260], "</S>": [259, 258, 260]}
    row = boundaries.get(word) or [259, *(byte + 1 for byte in word.encode()[: width - 2]), 260]
    return row + [261] * (width - len(row))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def token_vector(word: str, char_cnn: dict[str, Any], tensors: dict[str, np.ndarray]) -> np.ndarray:
    rows = np.array(ids_of(word, char_cnn["max_characters"])) - 1
    characters = tensors["char_cnn.char_embedding"][rows]
    pooled = []
    for i, (width, _) in enumerate(char_cnn["filters"]):
        weight, bias = (tensors[f"char_cnn.convolutions.{i}.{name}"] for name in ("weight", "bias"))
        windows = [characters[p : p + width].T for p in range(len(characters) - width + 1)]
        pooled.append(np.max([(weight * window).sum(axis=(1, 2)) + bias for window in windows], axis=0))
    x = {"relu": lambda y: np.maximum(y, 0), "tanh": np.tanh}[char_cnn["activation"]](np.concatenate(pooled))
    for k in range(char_cnn["num_highway"]):
        gates = f"char_cnn.highways.{k}.gates"
        t, g = np.split(tensors[f"{gates}.weight"] @ x + tensors[f"{gates}.bias"], 2)
        x = sigmoid(g) * np.maximum(t, 0) + (1 - sigmoid(g)) * x
    if "char_cnn.projection.weight" in tensors:
        x = tensors["char_cnn.projection.weight"] @ x + tensors["char_cnn.projection.bias"]
    return x


def direction_layers(d: int, words: list[np.ndarray], lstm: dict, tensors: dict[str, np.ndarray]) -> list[list]:
    layers = [words]
    for number in range(lstm["num_layers"]):
        name = f"layers.{number}"
        w, u, b, p = (
            tensors[f"{name}.{part}"][d] for part in ("input_weight", "recurrent_weight", "bias", "projection_weight")
        )
        h, c, outputs = np.zeros(lstm["projection_dim"]), np.zeros(lstm["cell_dim"]), []
        for x in layers[-1]:
            i, g, f, o = np.split(w @ x + u @ h + b, 4)
            c = sigmoid(i) * np.tanh(g) + sigmoid(f + lstm["forget_bias"]) * c
            c = np.clip(c, -lstm["cell_clip"], lstm["cell_clip"])
            h = np.clip(p @ (sigmoid(o) * np.tanh(c)), -lstm["proj_clip"], lstm["proj_clip"])
            outputs.append(h + x if lstm["use_skip_connections"] and number else h)
        layers.append(outputs)
    return layers


def test_vectors_computed_as_the_document_says_equal_those_of_the_embedder(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    tensors = {name: array.astype(np.float64) for name, array in load_file(directory / "model.safetensors").items()}
    words = ["the", "naïve", "词向量", "x" * 60]
    vectors = [token_vector(word, config["model"]["char_cnn"], tensors) for word in ["<S>", *words, "</S>"]]
    forward = direction_layers(0, vectors, config["model"]["lstm"], tensors)
    backward = direction_layers(1, vectors[::-1], config["model"]["lstm"], tensors)
    layers = np.concatenate([np.array(forward), np.array(backward)[:, ::-1]], axis=2)[:, 1:-1]
    embedder = Embedder.load(directory, "cpu")
    with pytest.warns(UserWarning, match="too long|truncated"):
        np.testing.assert_allclose(embedder.embed([words], "all")[0], layers, atol=1e-5)
        weights = np.exp(config["mix"]["weights"]) / np.exp(config["mix"]["weights"]).sum()
        mixed = config["mix"]["gamma"] * np.tensordot(weights, layers, 1)
        np.testing.assert_allclose(embedder.embed([words], "mix")[0], mixed, atol=1e-5)


def test_config_of_a_character_model_has_the_documented_keys(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    absent = documented("`config.json`") - set(flattened(config)) - {"model"}
    others = ("words_and_characters", "interleaved", "transformer", "gated_cnn")
    assert {key for key in absent if not key.startswith(others)} == {"lstm.joins_directions"}
    assert set(flattened(config)) <= documented("`config.json`") | {"model"}


LSTMS = BiLMConfig.preset("tiny").to_dict()["lstm"]
INTERLEAVED = {**LSTMS, "cell_clip": None, "proj_clip": None, "use_skip_connections": False, "joins_directions": True}
EFML = {
    "words": ["<oov>", "<pad>", "a"], "word_dim": 5,
    "characters": ["<oov>", "<pad>", "<bow>", "<eow>", "<bos>", "<eos>"],
    "char_cnn": {**BiLMConfig.preset("tiny").to_dict()["char_cnn"], "num_characters": 6}, "max_characters": 50,
}  # fmt: skip
OTHER_MODELS = {
    "word ids": {"lstm": LSTMS, "char_cnn": None, "num_words": 9, "boundary_words": [0, 1]},
    "efml": {"lstm": LSTMS, "words_and_characters": EFML},
    "ELMoForManyLangs lstm": {"lstm": INTERLEAVED, "words_and_characters": EFML},
    **{name: CONFIGS[name].to_dict() for name in ("interleaved", "transformer", "gated_cnn")},
}


@pytest.mark.parametrize("kind", OTHER_MODELS)
def test_keys_and_tensors_of_other_models_are_the_documented_ones(kind: str, tmp_path: Path) -> None:
    values = {"char_cnn": None, "num_words": None, "boundary_words": [0, 1], **OTHER_MODELS[kind]}
    save(Pretrained(BiLM(BiLMConfig.from_dict(values))), tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    keys = pattern({*documented("`config.json`"), "words_and_characters.char_cnn.*", "model"})
    assert [key for key in flattened(config) if not keys.fullmatch(key)] == []
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    names = pattern(documented("`model.safetensors`"))
    assert [name for name in tensors if not names.fullmatch(name)] == []
    if "words_and_characters" in values:
        dictionaries = json.loads((tmp_path / "model" / "dictionaries.json").read_text(encoding="utf-8"))
        assert dictionaries == {name: EFML[name] for name in ("words", "characters")}
        assert tensors["words_and_characters.projection.weight"].shape == (16, 5 + 32)
    if kind == "ELMoForManyLangs lstm":
        assert tensors["layers.1.input_weight"].shape == (2, 4 * 32, 2 * 32)
        assert tensors["top_projection.weight"].shape == (16, 32)


def test_files_and_tensors_of_a_model_are_the_documented_ones(directory: Path, model: Pretrained) -> None:
    assert {path.name for path in directory.iterdir()} <= documented("A model")
    names = pattern(documented("`model.safetensors`"))
    tensors = load_file(directory / "model.safetensors")
    assert [name for name in tensors if not names.fullmatch(name)] == []
    assert tensors["layers.1.recurrent_weight"].shape == (2, 4 * 32, 16)
    softmax, state = (load_file(directory / f"{name}.safetensors") for name in ("softmax", "state"))
    assert {name: array.shape for name, array in softmax.items()} == {"weight": (5, 16), "bias": (5,)}
    assert {name: array.shape for name, array in state.items()} == {"h": (2, 2, 1, 16), "c": (2, 2, 1, 32)}
    assert (directory / "vocab.txt").read_text(encoding="utf-8") == "<S>\n</S>\n<UNK>\nthe\ncat\n"


def test_fingerprint_is_the_documented_digest(directory: Path, model: Pretrained) -> None:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256(
        json.dumps([config[name] for name in ("model", "mix", "state", "tokenizer")], sort_keys=True).encode()
    )
    for name, array in sorted(load_file(directory / "model.safetensors").items()):
        digest.update(name.encode() + array.astype("<f4").tobytes())
    state = load_file(directory / "state.safetensors")
    for name in ("h", "c"):
        digest.update(f"state.{name}".encode() + state[name].astype("<f4").tobytes())
    assert digest.hexdigest() == fingerprint(model)


# --- Embeddings ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(model: Pretrained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    (folder / "text.txt").write_text("\ufeff" + "\r\n".join(LINES) + "\r\n", encoding="utf-8", newline="")
    with pytest.warns(UserWarning, match="too long"):
        embed_file(folder / "text.txt", folder / "vectors", Embedder(model, "cpu"), layers="all", sentences_per_part=2)
    return folder / "vectors"


def test_embeddings_read_as_documented_are_those_of_every_line(store: Path, model: Pretrained) -> None:
    index = json.loads((store / "index.json").read_text(encoding="utf-8"))
    assert set(index) == documented("`index.json`") and index["complete"]
    shards = [load_file(store / f"part-{number:05d}.safetensors") for number in range(index["num_parts"])]
    with pytest.warns(UserWarning, match="too long|truncated"):
        expected = Embedder(model, "cpu").embed(LINES, "all")
    for line, text in enumerate(LINES):
        shard, s = shards[line // index["sentences_per_part"]], line % index["sentences_per_part"]
        assert set(shard) == documented("`part-NNNNN.safetensors`")
        begin, end = shard["offsets"][s : s + 2]
        bounds = shard["token_offsets"][begin : end + 1]
        assert [shard["token_bytes"][a:b].tobytes().decode() for a, b in pairwise(bounds)] == text.split()
        vectors = shard["vectors"][begin:end]
        assert vectors.shape == (len(text.split()), *index["vector_shape"])
        np.testing.assert_allclose(vectors, expected[line].swapaxes(0, 1), atol=1e-5)
    totals = [sum(len(shard[name]) - 1 for shard in shards) for name in ("offsets", "token_offsets")]
    assert [index["num_sentences"], index["num_words"]] == totals


def test_index_names_the_model_and_the_text_by_the_documented_digests(store: Path, model: Pretrained) -> None:
    index = json.loads((store / "index.json").read_text(encoding="utf-8"))
    assert index["model"] == fingerprint(model)
    digest = hashlib.blake2b("".join(f"{line}\n" for line in LINES).encode(), digest_size=16)
    assert index["arguments"].endswith(digest.hexdigest())
    assert index["source_bytes"] == (store.parent / "text.txt").stat().st_size


# --- A snapshot ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "slots"),
    [
        ("original", {"sum", "step"}),
        ("modern", {"exp_avg", "exp_avg_sq", "step"}),
        ("muon", {"momentum_buffer", "exp_avg", "exp_avg_sq", "step"}),
    ],
)
def test_a_snapshot_has_the_documented_tensors_and_progress(tmp_path: Path, recipe: str, slots: set[str]) -> None:
    settings = settings_for(write_text(tmp_path / "text.txt"), tmp_path / "run")
    values = {**vars(settings), "recipe": recipe, "max_words": 40}
    pretrain(type(settings)(**values))
    snapshot = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    assert re.fullmatch(r"step-\d{8}", snapshot.name)
    assert {path.name for path in snapshot.iterdir()} == {"tensors.safetensors", "progress.json", "checksums.json"}
    tensors = load_file(snapshot / "tensors.safetensors")
    names = pattern(documented("A snapshot of a training run"))
    assert [name for name in tensors if not names.fullmatch(name)] == []
    assert {name.split(".")[2] for name in tensors if name.startswith("optimizer.")} == slots
    assert tensors["state.h"].shape == (2, 2, settings.batch_size, 16)
    weight = tensors["bilm.sequence_encoder.stacks.1.layers.0.input_weight"]
    model = load_file(tmp_path / "run" / "model" / "model.safetensors")
    np.testing.assert_array_equal(model["layers.0.input_weight"][1], weight)
    progress = json.loads((snapshot / "progress.json").read_text(encoding="utf-8"))
    assert set(progress) <= documented("A snapshot of a training run")
    assert set(progress["position"]) == {"epoch", "file", "block", "taken"}
    for key in ("monitor", "early_stopping"):
        assert all(f"`{name}`" in section("A snapshot of a training run") or name == "best" for name in progress[key])
    assert len(progress["rows"]) == settings.batch_size and all(len(row) == 4 for row in progress["rows"])
