"""Configurations: the published sizes, the way through JSON, and what is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest

from elmokit.config import PRESETS, BiLMConfig, CharCNNConfig, EfmlEncoderConfig, InterleavedConfig, LSTMConfig


@pytest.mark.parametrize(
    ("name", "cell", "dim", "highways"), [("small", 1024, 128, 1), ("medium", 2048, 256, 1), ("original", 4096, 512, 2)]
)
def test_presets_are_the_published_sizes(name: str, cell: int, dim: int, highways: int) -> None:
    config = BiLMConfig.preset(name)
    assert (config.lstm.num_layers, config.lstm.cell_dim, config.lstm.projection_dim) == (2, cell, dim)
    assert (config.lstm.cell_clip, config.lstm.proj_clip, config.lstm.use_skip_connections) == (3, 3, True)
    characters = config.char_cnn
    assert characters is not None
    assert (characters.num_highway, characters.activation, characters.num_filters) == (highways, "relu", 2048)
    assert (config.output_dim, config.num_representations) == (2 * dim, 3)


@pytest.mark.parametrize(
    "config",
    [
        *PRESETS.values(),
        BiLMConfig(LSTMConfig(3, 8, 8, cell_clip=None, proj_clip=None), None, num_words=7, boundary_words=(5, 6)),
        BiLMConfig(LSTMConfig(1, 8, 4), CharCNNConfig(4, ((1, 2), (5, 3)), num_highway=0, activation="tanh")),
    ],
)
def test_config_survives_json(config: BiLMConfig) -> None:
    assert BiLMConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_from_dict_reads_later_settings_by_either_name() -> None:
    plain, words = InterleavedConfig(projects_layers=False), EfmlEncoderConfig(("<oov>", "<pad>"), word_dim=3)
    config = BiLMConfig(None, None, efml=words, interleaved=plain)
    values = config.to_dict()
    assert values["lstm"]["joins_directions"] and values["words_and_characters"]["word_dim"] == 3
    values["lstm"]["interleaved"] = values["lstm"].pop("joins_directions")
    assert BiLMConfig.from_dict(values) == config
    values["efml"] = values.pop("words_and_characters")
    assert BiLMConfig.from_dict(values) == config


def test_from_dict_names_unknown_and_missing_settings() -> None:
    values = BiLMConfig.preset("tiny").to_dict()
    values["lstm"]["dropout"] = values["lstm"].pop("cell_clip")
    with pytest.raises(ValueError, match=r"LSTMConfig.*cell_clip, dropout"):
        BiLMConfig.from_dict(values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lstm": 3}, "lstm must be an object with settings, not 3"),
        ({"lstm": None, "transformer": [6]}, r"TransformerConfig must be an object with settings, not \[6\]"),
        ({"char_cnn": 5}, "CharCNNConfig must be an object with settings, not 5"),
        ({"char_cnn": {"filters": 5}}, "char_cnn.filters must be a list, not 5"),
        ({"char_cnn": {"filters": [5]}}, "each of char_cnn.filters must be a list, not 5"),
        ({"char_cnn": None, "efml": {"words": 5}}, "efml.words must be a list, not 5"),
    ],
)
def test_from_dict_refuses_values_of_another_kind(changes: dict[str, Any], message: str) -> None:
    values = BiLMConfig.preset("tiny").to_dict()
    efml = {"word_dim": 3, "characters": [], "char_cnn": None, "max_characters": 50}
    defaults = {"char_cnn": values["char_cnn"], "efml": efml}
    changes = {name: defaults[name] | value if isinstance(value, dict) else value for name, value in changes.items()}
    with pytest.raises(ValueError, match=message):
        BiLMConfig.from_dict(values | changes)


@pytest.mark.parametrize("name", ["forget_bias", "cell_clip", "proj_clip"])
def test_numbers_that_no_float_holds_are_refused(name: str) -> None:
    """Python reads an integer of any size from JSON."""
    values = BiLMConfig.preset("tiny").to_dict()
    for number in (10**400, -(10**400), float("inf"), float("nan"), True, "1"):
        values["lstm"][name] = number
        with pytest.raises(ValueError, match=rf"lstm.{name} must be a number"):
            BiLMConfig.from_dict(values)


def test_config_has_exactly_one_token_encoder() -> None:
    tiny = BiLMConfig.preset("tiny")
    with pytest.raises(ValueError, match="exactly one"):
        replace(tiny, num_words=10)
    with pytest.raises(ValueError, match="exactly one"):
        replace(tiny, char_cnn=None)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="'relu' or 'tanh'"):
        CharCNNConfig(activation="gelu")
    with pytest.raises(ValueError, match="no wider than 5"):
        CharCNNConfig(filters=((6, 1),), max_characters=5)
    with pytest.raises(ValueError, match="max_characters must be at least 3, not 2"):
        CharCNNConfig(filters=((1, 1),), max_characters=2)
    with pytest.raises(ValueError, match=r"char_cnn.filters must be \(width, number\) pairs, not \[\[1\]\]"):
        CharCNNConfig(filters=[[1]])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"char_cnn.filters must be \(width, number\) pairs, not 7"):
        CharCNNConfig(filters=7)  # pyright: ignore[reportArgumentType]
    assert CharCNNConfig(filters=[[1, 8]]) == CharCNNConfig(filters=((1, 8),))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="num_characters must be at least 261, the bytes and five marks, not 256"):
        BiLMConfig(char_cnn=CharCNNConfig(num_characters=256))
    with pytest.raises(ValueError, match=r"model.char_cnn must be a CharCNNConfig, not \{\}"):
        BiLMConfig(char_cnn={})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"model\.efml must be a EfmlEncoderConfig, not 3"):
        BiLMConfig(char_cnn=None, efml=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="small, medium, original"):
        BiLMConfig.preset("large")


@pytest.mark.parametrize(
    "rows", [None, 3, "01", [], [0], [0, 1, 2], [0, -1], [0, 1.0], [True, 0], ["0", "1"], {"a": 0}]
)
def test_boundary_words_are_two_row_numbers(rows: Any) -> None:
    for config in (BiLMConfig.preset("tiny"), BiLMConfig(char_cnn=None, num_words=7)):
        with pytest.raises(ValueError, match=r"boundary_words must be two row numbers.*<S>"):
            BiLMConfig.from_dict(config.to_dict() | {"boundary_words": rows})


def test_boundary_words_are_rows_of_the_word_table() -> None:
    values = BiLMConfig(char_cnn=None, num_words=7, boundary_words=(6, 0)).to_dict()
    for rows in ([7, 0], [0, 7]):
        with pytest.raises(ValueError, match=r"table has 7, counted from 0: give the rows of <S> and </S>"):
            BiLMConfig.from_dict(values | {"boundary_words": rows})
    assert BiLMConfig.from_dict(values | {"boundary_words": [6, 5]}).boundary_words == (6, 5)


def test_lstm_projects_only_if_the_width_changes() -> None:
    assert LSTMConfig(cell_dim=8, projection_dim=4).has_projection
    assert not LSTMConfig(cell_dim=8, projection_dim=8).has_projection
