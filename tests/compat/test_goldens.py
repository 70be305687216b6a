"""The compatible interfaces equal the original libraries to 5e-6: zero and carried state, mixes,
layer norm.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit.compat.allennlp import Elmo, ElmoEmbedder, batch_to_ids
from elmokit.compat.bilm_tf import Batcher, BidirectionalLanguageModel, weight_layers

TOLERANCE = 5e-6
BY_ALLENNLP = ["char-2layer", "clips-bind-3layer-tanh", "published-filters"]
BY_BILM_TF = [*BY_ALLENNLP, "no-char-projection", "no-highway", "no-lstm-projection", "no-skip"]

pytestmark = pytest.mark.filterwarnings("ignore:some words have more than")


def files(goldens: Callable[[str], Path], name: str) -> tuple[Path, Path]:
    return goldens(f"{name}/options.json"), goldens(f"{name}/weights.hdf5")


def arrays(goldens: Callable[[str], Path], name: str, system: str) -> dict[str, np.ndarray]:
    with np.load(goldens(f"{name}/{system}.npz")) as file:
        return {key: file[key] for key in file.files}


def sentences_of(goldens: Callable[[str], Path]) -> list[list[str]]:
    return json.loads(goldens("sentences.json").read_text(encoding="utf-8"))


def assert_close(result: Tensor | np.ndarray, expected: np.ndarray, mask: np.ndarray) -> None:
    """Compare (B, T, D) where mask (B, T) is True; values at padding are undefined."""
    result = result.detach().numpy() if isinstance(result, Tensor) else result
    assert result.shape == expected.shape
    np.testing.assert_allclose(result[mask], expected[mask], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", BY_ALLENNLP)
def test_elmo_embedder_equals_goldens_from_zero_state(
    goldens: Callable[[str], Path], name: str
) -> None:
    expected, sentences = arrays(goldens, name, "allennlp"), sentences_of(goldens)
    for sentence, result in enumerate(ElmoEmbedder(*files(goldens, name)).embed_batch(sentences)):
        for number, layer in enumerate(result):
            golden_layer = expected[f"zeros/layer{number}"][
                sentence, 1 : len(sentences[sentence]) + 1
            ]
            np.testing.assert_allclose(layer, golden_layer, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", BY_ALLENNLP)
def test_elmo_equals_goldens_with_carried_and_zero_state(
    goldens: Callable[[str], Path], name: str
) -> None:
    expected, sentences = arrays(goldens, name, "allennlp"), sentences_of(goldens)
    elmo = Elmo(*files(goldens, name), num_output_representations=1).eval()
    for _ in range(2):
        for batch in range(3):
            rows = [(batch + row) % 8 for row in range(4)]
            out = elmo._elmo_lstm(batch_to_ids([sentences[row] for row in rows]))
            mask = expected[f"carry{batch}/mask"].astype(bool)
            assert np.array_equal(out["mask"], mask)
            for number, layer in enumerate(out["activations"]):
                assert_close(layer, expected[f"carry{batch}/layer{number}"], mask)
        elmo._elmo_lstm._elmo_lstm.reset_states()
    elmo._elmo_lstm._elmo_lstm.stateful = False
    ids = batch_to_ids(sentences)
    first, second = (elmo(ids)["elmo_representations"][0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", BY_ALLENNLP)
def test_elmo_layer_norm_includes_boundaries(goldens: Callable[[str], Path], name: str) -> None:
    expected, sentences = arrays(goldens, name, "allennlp"), sentences_of(goldens)
    elmo = Elmo(*files(goldens, name), 1, do_layer_norm=True, keep_sentence_boundaries=True).eval()
    mask = expected["mask"].astype(bool)
    layers = np.stack(
        [expected[f"zeros/layer{number}"] for number in range(elmo._elmo_lstm.num_layers)]
    )
    real = layers[:, mask].astype(np.float64)  # boundaries included
    mean, variance = real.mean(axis=(1, 2)), real.var(axis=(1, 2))
    mixed = ((layers - mean[:, None, None, None]) / np.sqrt(variance)[:, None, None, None]).mean(
        axis=0
    )
    out = elmo(batch_to_ids(sentences))
    assert np.array_equal(out["mask"], mask)
    assert_close(out["elmo_representations"][0], mixed, mask)


def called(goldens: Callable[[str], Path], name: str, calls: int) -> dict:
    """The output of the last of several calls with the golden sentences."""
    model = BidirectionalLanguageModel(*files(goldens, name))
    ids = Batcher(None, 50).batch_sentences(sentences_of(goldens))
    assert np.array_equal(ids, np.load(goldens("char_ids.npz"))["ids"])
    return [model(ids) for _ in range(calls)][-1]


@pytest.mark.parametrize("name", BY_BILM_TF)
@pytest.mark.parametrize(("key", "calls"), [("lm_embeddings", 1), ("lm_embeddings_second_call", 2)])
def test_bidirectional_language_model_equals_goldens(
    goldens: Callable[[str], Path], name: str, key: str, calls: int
) -> None:
    expected, ops = arrays(goldens, name, "bilm_tf"), called(goldens, name, calls)
    assert np.array_equal(ops["lengths"], expected["lengths"])
    mask = np.arange(expected[key].shape[2]) < expected["lengths"][:, None]
    assert np.array_equal(ops["mask"], mask)
    assert_close(ops["lm_embeddings"].transpose(1, 2), expected[key].swapaxes(1, 2), mask)
    bounded = np.arange(mask.shape[1] + 2) < expected["lengths"][:, None] + 2
    assert_close(ops["token_embeddings"], expected["token_embeddings"], bounded)


@pytest.mark.parametrize("name", BY_BILM_TF)
def test_weight_layers_equals_goldens(goldens: Callable[[str], Path], name: str) -> None:
    expected, ops = arrays(goldens, name, "bilm_tf"), called(goldens, name, 1)
    mask = ops["mask"].numpy()
    assert_close(weight_layers("a", ops)["weighted_op"], expected["mix_equal"], mask)
    assert_close(
        weight_layers("b", ops, do_layer_norm=True)["weighted_op"], expected["mix_layer_norm"], mask
    )
    assert_close(weight_layers("c", ops, use_top_only=True)["weighted_op"], expected["top"], mask)
