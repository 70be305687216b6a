"""Layers, carried states and mixes equal those of AllenNLP and bilm-tf, to 5e-6 absolute.

Both of the core, and of the interfaces of these libraries in `elmokit.compat`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit.checkpoints.loading import load
from elmokit.compat.allennlp import Elmo, ElmoEmbedder, _ElmoBiLm, batch_to_ids
from elmokit.compat.bilm_tf import Batcher, BidirectionalLanguageModel, weight_layers
from elmokit.nn.elmo import ScalarMix
from elmokit.text.characters import encode_sentences

TOLERANCE = 5e-6  # 1.7e-6 is the largest difference on any backend
BY_ALLENNLP = ["char-2layer", "clips-bind-3layer-tanh", "published-filters"]
BY_BILM_TF = [*BY_ALLENNLP, "no-char-projection", "no-highway", "no-lstm-projection", "no-skip"]

pytestmark = pytest.mark.filterwarnings("ignore:some words have more than")

Sentences = list[list[str]]
Goldens = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def sentences(goldens: Goldens) -> Sentences:
    return json.loads(goldens("sentences.json").read_text())


def files(folder: Path) -> tuple[Path, Path]:
    return folder / "options.json", folder / "weights.hdf5"


def arrays(goldens: Goldens, name: str, system: str) -> dict[str, Tensor]:
    with np.load(goldens(f"{name}/{system}.npz")) as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def assert_close(found: Tensor, expected: Tensor, mask: Tensor) -> None:
    """Compare (B, T, D) where mask (B, T) is True; values at padding mean nothing."""
    assert found.shape == expected.shape
    found = found.cpu()
    mask = mask.cpu()
    torch.testing.assert_close(found[mask], expected[mask], atol=TOLERANCE, rtol=0)


class Core:
    """The core, with a state that is carried from call to call."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.bilm = load(folder).bilm.to(device)
        self.state = None

    def __call__(self, sentences: Sentences) -> tuple[Tensor, Tensor]:
        """The layers of the sentences between their boundaries (L+1, B, T+2, 2D), and the mask."""
        ids = encode_sentences([["<S>", *words, "</S>"] for words in sentences])
        out = self.bilm(torch.from_numpy(ids).to(self.bilm.device), state=self.state)
        self.state = out.state
        return out.layers, out.mask


class AllenNLP:
    """The same by AllenNLP's interface."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.bilm = _ElmoBiLm(*files(folder)).to(device)
        self.device = device

    def __call__(self, sentences: Sentences) -> tuple[Tensor, Tensor]:
        out = self.bilm(batch_to_ids(sentences).to(self.device))
        return torch.stack(out["activations"]), out["mask"]


class BilmTF:
    """The same by bilm-tf's interface, which leaves the boundaries out of all but the words."""

    def __init__(self, folder: Path) -> None:
        self.bilm = BidirectionalLanguageModel(*files(folder))

    def __call__(self, sentences: Sentences) -> tuple[Tensor, Tensor]:
        out = self.bilm(Batcher(None, 50).batch_sentences(sentences))
        layers = torch.nn.functional.pad(out["lm_embeddings"], (0, 0, 1, 1)).transpose(0, 1)
        layers[0] = out["token_embeddings"].repeat(1, 1, 2)
        return layers, torch.arange(layers.shape[2]) < out["lengths"][:, None] + 2


# --- AllenNLP -------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", [Core, AllenNLP])
@pytest.mark.parametrize("name", BY_ALLENNLP)
def test_layers_and_carried_state_equal_those_of_allennlp(
    goldens: Goldens, sentences: Sentences, name: str, system: Any, device: str
) -> None:
    golden = arrays(goldens, name, "allennlp")
    carrying = system(goldens(name), device)
    calls = {"": (system(goldens(name), device), "zeros/", sentences)}
    for batch in range(3):
        rows = [sentences[(batch + row) % 8] for row in range(4)]
        calls[f"carry{batch}/"] = (carrying, f"carry{batch}/", rows)
    for key, (run, prefix, rows) in calls.items():
        layers, mask = run(rows)
        assert torch.equal(mask.cpu(), golden[f"{key}mask"].bool())
        for number, layer in enumerate(layers):
            assert_close(layer, golden[f"{prefix}layer{number}"], mask)


@pytest.mark.parametrize("name", BY_ALLENNLP)
def test_elmo_embedder_equals_allennlp(goldens: Goldens, sentences: Sentences, name: str) -> None:
    expected = arrays(goldens, name, "allennlp")
    for row, found in enumerate(ElmoEmbedder(*files(goldens(name))).embed_batch(sentences)):
        for number, layer in enumerate(found):
            golden = expected[f"zeros/layer{number}"][row, 1 : len(sentences[row]) + 1]
            np.testing.assert_allclose(layer, golden, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", BY_ALLENNLP)
def test_layer_norm_of_elmo_includes_the_boundaries(
    goldens: Goldens, sentences: Sentences, name: str
) -> None:
    golden = arrays(goldens, name, "allennlp")
    settings = {"do_layer_norm": True, "keep_sentence_boundaries": True, "dropout": 0.0}
    elmo = Elmo(*files(goldens(name)), 1, **settings)
    numbers = range(elmo._elmo_lstm.num_layers)
    mask = golden["mask"].bool()
    mixed = 0.0
    for layer in (golden[f"zeros/layer{number}"] for number in numbers):
        words = layer[mask].double()
        mixed += (layer - words.mean()) / words.std(correction=0) / len(numbers)
    (found,) = elmo(batch_to_ids(sentences))["elmo_representations"]
    assert_close(found, mixed.float(), mask)


# --- bilm-tf --------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", [Core, BilmTF])
@pytest.mark.parametrize("name", BY_BILM_TF)
def test_layers_of_two_calls_and_words_equal_those_of_bilm_tf(
    goldens: Goldens, sentences: Sentences, name: str, system: Any
) -> None:
    golden = arrays(goldens, name, "bilm_tf")
    run = system(goldens(name))
    for key in ("lm_embeddings", "lm_embeddings_second_call"):
        layers, mask = run(sentences)
        assert torch.equal(mask.sum(dim=1) - 2, golden["lengths"])
        for direction in layers[0].chunk(2, dim=-1):
            assert_close(direction, golden["token_embeddings"], mask)
        for number, layer in enumerate(layers):
            assert_close(layer[:, 1:-1], golden[key][:, number], mask[:, 2:])


@pytest.mark.parametrize("name", BY_BILM_TF)
def test_mixes_equal_those_of_bilm_tf(goldens: Goldens, sentences: Sentences, name: str) -> None:
    golden = arrays(goldens, name, "bilm_tf")
    batch = Batcher(None, 50).batch_sentences(sentences)
    with np.load(goldens("char_ids.npz")) as file:
        np.testing.assert_array_equal(batch, file["ids"])
    ops = BidirectionalLanguageModel(*files(goldens(name)))(batch)
    layers = ops["lm_embeddings"].transpose(0, 1)
    mask = ops["mask"]
    only_top = torch.eye(len(layers))[-1]
    for key, ours, theirs in (
        ("mix_equal", ScalarMix(len(layers))(layers), {}),
        (
            "mix_layer_norm",
            ScalarMix(len(layers), layer_norm=True)(layers, mask),
            {"do_layer_norm": True},
        ),
        ("top", ScalarMix.mix(layers, only_top), {"use_top_only": True}),
    ):
        assert_close(ours, golden[key], mask)
        assert_close(weight_layers(key, ops, **theirs)["weighted_op"], golden[key], mask)


def test_three_streams_of_sentences_with_carried_state(goldens: Goldens) -> None:
    folder = goldens("bilm_tf_fixture")
    run = Core(folder / "lm_weights.hdf5")
    streams = json.loads((folder / "lm_embeddings_sentences.json").read_text())
    for number, texts in enumerate(zip(*streams, strict=True)):
        layers, mask = run([text.split() for text in texts])
        for row, length in enumerate(mask.sum(dim=1)):
            with h5py.File(folder / f"lm_embeddings_{row}.hdf5") as file:
                halves = [torch.from_numpy(direction[:]) for direction in file[str(number)]]
            found = layers[-1, row, 1 : length - 1]
            torch.testing.assert_close(found, torch.cat(halves, dim=-1), atol=TOLERANCE, rtol=0)
