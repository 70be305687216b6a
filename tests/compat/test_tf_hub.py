"""The TF-Hub module's signatures and outputs, against the biLM and its mix."""

from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.compat import tf_hub as hub
from elmokit.embed.embedder import Embedder

TEXTS = ["the cat  is on", "dogs"]
TOKENS = [["the", "cat", "is", "on"], ["dogs"]]


@pytest.fixture
def module(language_model: Path) -> hub.Module:
    return hub.Module(language_model)


def test_module_outputs_equal_those_of_the_embedder(
    module: hub.Module, language_model: Path
) -> None:
    result = module(TEXTS, as_dict=True)
    assert result["sequence_len"].tolist() == [4, 1]
    embedder = Embedder(language_model)
    for row, (layers, mixed) in enumerate(
        zip(embedder.embed(TOKENS, layers="all"), embedder.embed(TOKENS), strict=True)
    ):
        length = len(TOKENS[row])
        np.testing.assert_allclose(
            result["word_emb"][row, :length], layers[0, :, :16], rtol=1e-5, atol=2e-6
        )
        np.testing.assert_allclose(
            result["lstm_outputs1"][row, :length], layers[1], rtol=1e-5, atol=2e-6
        )
        np.testing.assert_allclose(
            result["lstm_outputs2"][row, :length], layers[2], rtol=1e-5, atol=2e-6
        )
        np.testing.assert_allclose(result["elmo"][row, :length], mixed, atol=1e-5)
        np.testing.assert_allclose(result["default"][row], mixed.mean(axis=0), atol=1e-5)
        assert not result["elmo"][row, length:].any()
    assert torch.equal(module(TEXTS), result["default"])


@pytest.mark.parametrize(
    "wrap", [list, np.array, lambda x: np.array(x).astype(bytes), lambda x: np.array(x, object)]
)
def test_module_accepts_strings_in_lists_arrays_and_bytes(module: hub.Module, wrap) -> None:
    padded = [["the", "cat", "is", "on", ""], ["dogs", "", "", "", ""]]
    inputs = {"tokens": wrap(padded), "sequence_len": np.array([4, 1])}
    by_tokens = module(inputs, signature="tokens", as_dict=True)
    by_text = module(wrap(TEXTS), signature=None, as_dict=True)
    assert by_tokens["elmo"].shape == (2, 5, 32)
    torch.testing.assert_close(by_tokens["elmo"][:, :4], by_text["elmo"])
    torch.testing.assert_close(by_tokens["default"], by_text["default"])


def test_tokens_that_are_padded_at_the_left_are_read_with_a_warning(module: hub.Module) -> None:
    with pytest.warns(UserWarning, match="pad them at the right"):
        module(
            {"tokens": [["", "", "cat"], ["the", "cat", "is"]], "sequence_len": [1, 3]},
            signature="tokens",
        )


def test_module_trains_the_mix_when_trainable(language_model: Path) -> None:
    for trainable in (False, True):
        module = hub.Module(language_model, trainable=trainable)
        assert module(TEXTS).requires_grad == trainable
        names = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
        assert names == ({"elmo.mixes.0.weights", "elmo.mixes.0.gamma"} if trainable else set())


def test_module_reads_the_mix_of_a_saved_model() -> None:
    module = hub.Module(Path(__file__).parents[1] / "fixtures/tf_hub_like")
    result = module(TEXTS, as_dict=True)
    layers = torch.stack(
        [result["word_emb"].repeat(1, 1, 2), result["lstm_outputs1"], result["lstm_outputs2"]]
    )
    weights = torch.softmax(module.mix.weights, dim=0)
    assert module.mix.gamma != 1
    assert weights.max() - weights.min() > 0.01
    torch.testing.assert_close(
        result["elmo"], module.mix.gamma * torch.tensordot(weights, layers, dims=1)
    )


# --- KerasLayer -----------------------------------------------------------------------------------


def test_keras_layer_returns_the_output_that_it_is_asked_for(
    module: hub.Module, language_model: Path
) -> None:
    expected = module(TEXTS, as_dict=True)
    by_default = [{}, {"signature": None}, {"signature": "default"}]
    for settings, key in [
        *((settings, "default") for settings in by_default),
        ({"output_key": "elmo"}, "elmo"),
    ]:
        layer = hub.KerasLayer(
            str(language_model), input_shape=[], dtype="string", trainable=False, **settings
        )
        torch.testing.assert_close(layer(TEXTS), expected[key])
    everything = hub.KerasLayer(
        hub.load(language_model, tags=["train"], options=None), signature_outputs_as_dict=True
    )
    assert everything(TEXTS).keys() == expected.keys()
