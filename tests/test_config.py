"""Configurations: the published sizes, the way through JSON, and what is refused."""

import json
from dataclasses import replace
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
    assert characters is not None
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
    assert (config.efml is None) == ("efml" not in values) and (config.lstm is None) == (
        "lstm" not in values
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lstm": 3}, "model.lstm must be an object"),
        ({"lstm": {"dropout": 0.1}}, "model.lstm: .*unknown settings dropout"),
        ({"transformer": {}}, "exactly one of lstm"),
        ({"lstm": None}, "exactly one of lstm"),
        ({"lstm": None, "transformer": {"num_heads": 5}}, "multiple of twice the 5 heads"),
        ({"char_cnn": None}, "exactly one of char_cnn"),
        ({"num_words": 10}, "exactly one of char_cnn"),
        ({"char_cnn": {"filters": 5}}, "filters must be a list"),
        ({"char_cnn": {"filters": [[1]]}}, "filters.* must be a list"),
        ({"char_cnn": {"filters": []}}, "filters must be"),
        ({"char_cnn": {"filters": [[1, 1]] * 101}}, "filters must be"),
        ({"char_cnn": {"filters": [[6, 1]], "max_characters": 5}}, "no wider than 5"),
        ({"char_cnn": {"max_characters": 2}}, "max_characters must be from 3"),
        ({"char_cnn": {"activation": "gelu"}}, "one of relu, tanh"),
        ({"char_cnn": {"num_characters": 256}}, "num_characters must be at least 261"),
        ({"char_cnn": None, "efml": {}}, "efml needs a dictionary"),
        ({"char_cnn": None, "efml": {"characters": ["a"]}}, "does not fit the dictionary"),
        ({"boundary_words": [0]}, "boundary_words must be a list"),
        ({"boundary_words": [0, -1]}, "must be at least 0"),
        ({"boundary_words": [0, True]}, "must be an integer"),
        ({"char_cnn": None, "num_words": 7, "boundary_words": [0, 7]}, "must be below 7"),
        *(
            ({"lstm": {"forget_bias": each}}, "must be a finite number")
            for each in (10**400, float("nan"), True, "1")
        ),
        ({"lstm": {"cell_clip": 0}}, "must be above 0"),
        ({"lstm": {"num_layers": 101}}, "must be from 1 to 100"),
    ],
)
def test_from_dict_refuses_invalid_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BiLMConfig.from_dict(BiLMConfig.preset("tiny").to_dict() | changes)


def test_preset_is_named() -> None:
    with pytest.raises(ValueError, match="small, medium, original"):
        BiLMConfig.preset("large")


def test_sequence_encoders_say_what_they_can_do() -> None:
    interleaved = PRESETS["small-interleaved"].sequence_encoder
    assert interleaved.merges_directions and interleaved.predicts_words
    plain = replace(interleaved, projects_layers=False)  # pyright: ignore[reportCallIssue]
    assert (plain.num_representations, plain.predicts_words) == (1, False)
    carrying = {name: config.sequence_encoder.carries_state for name, config in PRESETS.items()}
    assert carrying == {
        name: name not in ("small-interleaved", "small-transformer") for name in PRESETS
    }
    assert carrying == {
        name: any(config.sequence_encoder.state_shape) for name, config in PRESETS.items()
    }
    assert LSTMConfig(cell_dim=8, projection_dim=4).has_projection
    assert not LSTMConfig(cell_dim=8, projection_dim=8).has_projection
