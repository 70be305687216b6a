"""Configurations: the published sizes, the way through JSON, and what is refused."""

import json
from typing import Any

import pytest

from elmokit.config import (
    PRESETS,
    BiLMConfig,
    CharCNNConfig,
    EfmlEncoderConfig,
    InterleavedConfig,
    LSTMConfig,
)

WORDS = EfmlEncoderConfig(("<oov>", "<pad>"), word_dim=3)


@pytest.mark.parametrize(
    ("name", "cell", "dim", "highways"),
    [("small", 1024, 128, 1), ("medium", 2048, 256, 1), ("original", 4096, 512, 2)],
)
def test_presets_are_the_published_sizes(name: str, cell: int, dim: int, highways: int) -> None:
    config = BiLMConfig.preset(name)
    assert (config.lstm.num_layers, config.lstm.cell_dim, config.lstm.projection_dim) == (
        2,
        cell,
        dim,
    )
    assert (config.lstm.cell_clip, config.lstm.proj_clip, config.lstm.use_skip_connections) == (
        3,
        3,
        True,
    )
    characters = config.char_cnn
    assert (characters.num_highway, characters.activation, characters.num_filters) == (
        highways,
        "relu",
        2048,
    )
    assert (config.output_dim, config.num_representations) == (2 * dim, 3)


@pytest.mark.parametrize(
    "config",
    [
        *PRESETS.values(),
        BiLMConfig(
            LSTMConfig(3, 8, 8, cell_clip=None, proj_clip=None),
            None,
            num_words=7,
            boundary_words=(5, 6),
        ),
        BiLMConfig(
            LSTMConfig(1, 8, 4),
            CharCNNConfig(4, ((1, 2), (5, 3)), num_highway=0, activation="tanh"),
        ),
        BiLMConfig(None, None, efml=WORDS, interleaved=InterleavedConfig(projects_layers=False)),
    ],
)
def test_config_survives_json(config: BiLMConfig) -> None:
    values = json.loads(json.dumps(config.to_dict()))
    assert BiLMConfig.from_dict(values) == config
    assert (config.efml is None) == ("efml" not in values)
    assert (config.lstm is None) == ("lstm" not in values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lstm": {"dropout": 0.1}}, "model.lstm: .*unknown settings dropout"),
        ({"transformer": {}}, "exactly one of lstm"),
        ({"lstm": None}, "exactly one of lstm"),
        ({"lstm": None, "transformer": {"num_heads": 5}}, "multiple of twice the 5 heads"),
        ({"char_cnn": None}, "exactly one of char_cnn"),
        ({"num_words": 10}, "exactly one of char_cnn"),
        ({"char_cnn": {"filters": [[1]]}}, "filters.* must be a list"),
        ({"char_cnn": {"filters": []}}, "filters must be"),
        ({"char_cnn": {"filters": [[1, 1]] * 101}}, "filters must be"),
        ({"char_cnn": {"filters": [[6, 1]], "max_characters": 5}}, "no wider than 5"),
        ({"char_cnn": {"max_characters": 2}}, "max_characters must be from 3"),
        ({"char_cnn": {"num_characters": 256}}, "num_characters must be at least 261"),
        ({"char_cnn": None, "efml": {}}, "efml needs a dictionary"),
        ({"char_cnn": None, "efml": {"characters": ["a"]}}, "does not fit the dictionary"),
        ({"char_cnn": None, "num_words": 7, "boundary_words": [0, 7]}, "must be below 7"),
        ({"lstm": {"num_layers": 101}}, "must be from 1 to 100"),
    ],
)
def test_from_dict_refuses_invalid_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BiLMConfig.from_dict(BiLMConfig.preset("tiny").to_dict() | changes)
