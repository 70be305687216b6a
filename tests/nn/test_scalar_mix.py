"""The learned mixture of layers, against NumPy."""

import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit.nn.elmo import ScalarMix


def batch() -> tuple[Tensor, Tensor]:
    """Layers (3, 2, 4, 5), large at padding, where they mean nothing, and their mask (2, 4)."""
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]], dtype=torch.bool)
    layers = 3 * torch.randn(3, 2, 4, 5) + 1
    layers[:, ~mask] = 1e4
    return layers, mask


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum()


def mixed(
    layers: Tensor, weights: np.ndarray, gamma: float, mask: Tensor | None = None
) -> np.ndarray:
    """gamma * sum_j softmax(weights)_j h_j; with a mask, of layers with mean 0 and variance 1 over
    its words.
    """
    x = layers.double().numpy()
    if mask is not None:
        real = [layer[mask.numpy()] for layer in x]
        x = np.stack(
            [
                (layer - r.mean()) / np.sqrt(r.var() + 1e-12)
                for layer, r in zip(x, real, strict=True)
            ]
        )
    return gamma * np.einsum("l,lbtd->btd", softmax(weights), x)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_mix_equals_numpy(layer_norm: bool) -> None:
    layers, mask = batch()
    mix = ScalarMix(3, layer_norm=layer_norm)
    weights = np.array([0.5, -1.0, 2.0])
    with torch.no_grad():
        mix.weights.copy_(torch.from_numpy(weights))
        mix.gamma.fill_(1.7)
    expected = mixed(layers, weights, 1.7, mask if layer_norm else None)
    np.testing.assert_allclose(
        mix(layers, mask)[mask].detach().numpy(), expected[mask.numpy()], rtol=2e-5, atol=2e-5
    )


def test_layer_norm_in_float64_keeps_its_digits() -> None:
    layers, mask = batch()
    mix = ScalarMix(3, layer_norm=True).double()
    expected = mixed(layers, np.zeros(3), 1.0, mask)
    np.testing.assert_allclose(
        mix(layers.double(), mask)[mask].detach().numpy(), expected[mask.numpy()], rtol=1e-12
    )
