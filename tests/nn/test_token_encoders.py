"""The character encoder: exact trimming, bilm-tf's initialisation."""

import pytest
import torch
from oracle import random_weights

from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.nn.bilm import BiLM
from elmokit.nn.token_encoders import CharCNN
from elmokit.text.characters import encode_words


def test_trimmed_characters_give_the_very_same_vectors() -> None:
    config = CharCNNConfig(4, ((1, 3), (2, 4), (7, 5)), num_highway=2)
    encoder = CharCNN(config, 6).double()
    random_weights(encoder, seed=5)
    words = [
        "<S>",
        "</S>",
        *(("né" * 30).encode()[:length].decode("utf-8", "ignore") for length in range(61)),
    ]
    whole = encoder(torch.from_numpy(encode_words(words)))
    for word, expected in zip(words, whole, strict=True):
        trimmed = torch.from_numpy(encode_words([word], widest_filter=config.widest_filter))
        assert trimmed.shape[1] <= min(50, len(word.encode()) + 2 + 7)
        torch.testing.assert_close(encoder(trimmed)[0], expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize("length", [1, 7, 8, 20, 60])
def test_ids_are_padded_to_few_shapes_and_keep_their_vectors(length: int) -> None:
    """What runs in oneDNN keeps a program for each shape."""
    config = CharCNNConfig(4, ((1, 3), (2, 4)))
    bilm = BiLM(BiLMConfig(LSTMConfig(1, 5, 6), config))
    random_weights(bilm, seed=5)
    for count in (1, 127, 128, 130):
        words = [f"{number:x}"[-length:].rjust(length, "a") for number in range(count)]
        ids = bilm.token_encoder.ids(words)
        padded = bilm.token_encoder.pad_to_bucket(ids)
        assert len(padded) == -(-count // 128) * 128
        assert padded.shape[1] % 8 == 0 or padded.shape[1] == config.max_characters
        vectors = bilm.word_vectors(words)
        assert len(vectors) == len(padded)
        torch.testing.assert_close(vectors[:count], bilm.token_encoder(ids))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_initialisation_is_that_of_bilm_tf(activation: str) -> None:
    torch.manual_seed(0)
    encoder = CharCNN(
        CharCNNConfig(16, ((2, 300), (5, 400)), num_highway=1, activation=activation), 100
    )
    assert 0.97 < encoder.char_embedding.abs().max() <= 1
    for conv in encoder.convolutions:
        if activation == "relu":
            assert 0.049 < conv.weight.abs().max() <= 0.05
        else:
            assert conv.weight.std().item() == pytest.approx(
                (conv.weight.shape[2] * 16) ** -0.5, rel=0.03
            )
        assert not conv.bias.any()
    gates = encoder.highways[0].gates
    projection = encoder.projection
    assert gates.weight.std().item() == pytest.approx(700**-0.5, rel=0.03)
    assert not gates.bias[:700].any()
    assert (gates.bias[700:] == -2).all()
    assert not projection.bias.any()
    assert projection.weight.std().item() == pytest.approx(700**-0.5, rel=0.03)
