"""Layers, carried states and mixes equal those of AllenNLP and bilm-tf, to 5e-6 absolute."""

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit.checkpoints.loading import load
from elmokit.nn.bilm import BiLM
from elmokit.nn.scalar_mix import ScalarMix
from elmokit.text.characters import encode_sentences

TOLERANCE = 5e-6  # 1.7e-6 is the largest difference on any backend
BY_ALLENNLP = ["char-2layer", "clips-bind-3layer-tanh", "published-filters"]
BY_BILM_TF = [*BY_ALLENNLP, "no-char-projection", "no-highway", "no-lstm-projection", "no-skip"]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ids(goldens: Callable[[str], Path]) -> Tensor:
    """(8, 19, 50): the golden sentences with boundaries, as bilm-tf encodes them."""
    return torch.from_numpy(np.load(goldens("char_ids.npz"))["ids"].astype(np.int64))


def arrays(goldens: Callable[[str], Path], name: str, system: str) -> dict[str, Tensor]:
    with np.load(goldens(f"{name}/{system}.npz")) as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def assert_close(found: Tensor, expected: Tensor, mask: Tensor) -> None:
    """Compare (B, T, D) where mask (B, T) is True; values at padding mean nothing."""
    assert found.shape == expected.shape
    found, mask = found.cpu(), mask.cpu()
    torch.testing.assert_close(found[mask], expected[mask], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", BY_ALLENNLP)
def test_layers_equal_those_of_allennlp(
    goldens: Callable[[str], Path], ids: Tensor, name: str, device: str
) -> None:
    bilm, golden = load(goldens(name)).bilm.to(device), arrays(goldens, name, "allennlp")
    out = bilm(ids.to(device))
    assert torch.equal(out.mask.cpu(), golden["mask"].bool())
    for number, layer in enumerate(out.layers):
        assert_close(layer, golden[f"zeros/layer{number}"], out.mask)


@pytest.mark.parametrize("name", BY_ALLENNLP)
def test_carried_state_equals_that_of_allennlp(
    goldens: Callable[[str], Path], ids: Tensor, name: str, device: str
) -> None:
    bilm, golden = load(goldens(name)).bilm.to(device), arrays(goldens, name, "allennlp")
    state = None
    for batch in range(3):
        mask = golden[f"carry{batch}/mask"].bool()
        rows = (torch.arange(4) + batch) % len(ids)
        out = bilm(ids[rows, : mask.shape[1]].to(device), state=state)
        state = out.state
        assert torch.equal(out.mask.cpu(), mask)
        for number, layer in enumerate(out.layers):
            assert_close(layer, golden[f"carry{batch}/layer{number}"], mask)


def without_boundaries(
    bilm: BiLM, ids: Tensor, golden: dict[str, Tensor], calls: int
) -> tuple[Tensor, Tensor]:
    """Layers (L+1, B, T, 2D) of the last of several calls that carry the state, and their mask,
    less boundaries.
    """
    state = None
    for _ in range(calls):
        out = bilm(ids, state=state)
        state = out.state
    mask = torch.arange(golden["lm_embeddings"].shape[2]) < golden["lengths"][:, None]
    return out.layers[:, :, 1:-1], mask


@pytest.mark.parametrize("name", BY_BILM_TF)
@pytest.mark.parametrize(("key", "calls"), [("lm_embeddings", 1), ("lm_embeddings_second_call", 2)])
def test_layers_equal_those_of_bilm_tf(
    goldens: Callable[[str], Path], ids: Tensor, name: str, key: str, calls: int
) -> None:
    bilm, golden = load(goldens(name)).bilm, arrays(goldens, name, "bilm_tf")
    layers, mask = without_boundaries(bilm, ids, golden, calls)
    for number, layer in enumerate(layers):
        assert_close(layer, golden[key][:, number], mask)


@pytest.mark.parametrize("name", BY_BILM_TF)
def test_token_layer_equals_that_of_bilm_tf(
    goldens: Callable[[str], Path], ids: Tensor, name: str
) -> None:
    bilm, golden = load(goldens(name)).bilm, arrays(goldens, name, "bilm_tf")
    out = bilm(ids)
    for direction in out.layers[0].chunk(2, dim=-1):
        assert_close(direction, golden["token_embeddings"], out.mask)


@pytest.mark.parametrize("name", BY_BILM_TF)
def test_mixes_equal_those_of_bilm_tf(
    goldens: Callable[[str], Path], ids: Tensor, name: str
) -> None:
    bilm, golden = load(goldens(name)).bilm, arrays(goldens, name, "bilm_tf")
    layers, mask = without_boundaries(bilm, ids, golden, calls=1)
    only_top = [-1e9] * (len(layers) - 1) + [0.0]
    mixes = {
        "mix_equal": ScalarMix(len(layers)),
        "mix_layer_norm": ScalarMix(len(layers), layer_norm=True),
        "top": ScalarMix(len(layers), fixed_weights=only_top),
    }
    for key, mix in mixes.items():
        assert_close(mix(layers, mask), golden[key], mask)


def test_three_streams_of_sentences_with_carried_state(goldens: Callable[[str], Path]) -> None:
    folder = goldens("bilm_tf_fixture")
    bilm, state = load(folder / "lm_weights.hdf5").bilm, None
    streams = json.loads((folder / "lm_embeddings_sentences.json").read_text(encoding="utf-8"))
    for number, sentences in enumerate(zip(*streams, strict=True)):
        words = [["<S>", *sentence.split(), "</S>"] for sentence in sentences]
        out = bilm(torch.from_numpy(encode_sentences(words)).long(), state=state)
        state = out.state
        for row, sentence in enumerate(words):
            with h5py.File(folder / f"lm_embeddings_{row}.hdf5") as file:
                expected = torch.cat(
                    [torch.from_numpy(direction[:]) for direction in file[str(number)]], dim=-1
                )
            inner = slice(1, len(sentence) - 1)
            torch.testing.assert_close(out.layers[-1, row, inner], expected, atol=TOLERANCE, rtol=0)
