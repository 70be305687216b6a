"""What a biLM is made of: frozen dataclasses that travel with its weights."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

# Character ids as the networks see them: UTF-8 bytes and five marks, all shifted by one so that 0 is free to mean "no
# word here". (bilm/data.py and AllenNLP's elmo_indexer.py; spec: 256 <S>, 257 </S>, 258 begin-word, 259 end-word, 260
# pad, before the shift.)
CHARACTER_SHIFT = 1
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PAD_CHARACTER = (256 + i + CHARACTER_SHIFT for i in range(5))
NUM_CHARACTERS = 261

# A configuration may come from a damaged or hostile file: beyond these it is refused, before time or memory is spent.
MAX_LAYERS, MAX_CHARACTERS, MAX_SIZE = 100, 10_000, 10_000_000

PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


def _check_numbers(owner: str, lowest: int, highest: int, **numbers: int) -> None:
    """ValueError where one is no whole number or out of bounds."""
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"{owner}.{name} must be a whole number, not {number!r}")
        if number < lowest:
            raise ValueError(f"{owner}.{name} must be at least {lowest}, not {number}")
        if number > highest:
            raise ValueError(f"{owner}.{name} must be at most {highest}, not {number}")


@dataclass(frozen=True)
class CharCNNConfig:
    """The character encoder: embedding, convolutions of several widths, highway layers, projection."""

    embedding_dim: int = 16
    filters: tuple[tuple[int, int], ...] = PUBLISHED_FILTERS  # (width, number)
    num_highway: int = 1
    activation: str = "relu"
    max_characters: int = 50
    num_characters: int = NUM_CHARACTERS

    def __post_init__(self) -> None:
        if self.activation not in ("relu", "tanh"):
            raise ValueError(f"char_cnn.activation must be 'relu' or 'tanh', not {self.activation!r}")
        _check_numbers("char_cnn", 1, MAX_CHARACTERS, max_characters=self.max_characters)
        _check_numbers("char_cnn", 0, MAX_LAYERS, num_highway=self.num_highway)
        _check_numbers("char_cnn", 1, MAX_SIZE, embedding_dim=self.embedding_dim, num_characters=self.num_characters)
        for width, number in self.filters:
            _check_numbers("char_cnn", 1, MAX_SIZE, filters=width)
            _check_numbers("char_cnn", 1, MAX_SIZE, filters=number)
        _check_numbers("char_cnn", 0, MAX_SIZE, filters=self.num_filters)
        if not self.filters or self.widest_filter > self.max_characters:
            raise ValueError(
                f"char_cnn.filters must be (width, number) pairs no wider than {self.max_characters} characters"
            )

    @property
    def num_filters(self) -> int:
        return sum(number for _, number in self.filters)

    @property
    def widest_filter(self) -> int:
        return max(width for width, _ in self.filters)


@dataclass(frozen=True)
class LSTMConfig:
    """The two stacks of projected, clipped LSTMs. A clip of None is off."""

    num_layers: int = 2
    cell_dim: int = 4096
    projection_dim: int = 512
    cell_clip: float | None = 3.0
    proj_clip: float | None = 3.0
    use_skip_connections: bool = True
    forget_bias: float = 1.0

    def __post_init__(self) -> None:
        _check_numbers("lstm", 1, MAX_LAYERS, num_layers=self.num_layers)
        _check_numbers("lstm", 1, MAX_SIZE, cell_dim=self.cell_dim, projection_dim=self.projection_dim)
        if not isinstance(self.forget_bias, (int, float)):
            raise ValueError(f"lstm.forget_bias must be a number, not {self.forget_bias!r}")
        for name in ("cell_clip", "proj_clip"):
            clip = getattr(self, name)
            if clip is not None and not clip > 0:
                raise ValueError(f"lstm.{name} must be above 0, or none, not {clip}")

    @property
    def has_projection(self) -> bool:
        """bilm-tf leaves the projection out where it would change nothing in size (training.py)."""
        return self.cell_dim != self.projection_dim


@dataclass(frozen=True)
class BiLMConfig:
    """A bidirectional language model over characters (`char_cnn`) or over word ids (`num_words`): exactly one."""

    lstm: LSTMConfig = field(default_factory=LSTMConfig)
    char_cnn: CharCNNConfig | None = field(default_factory=CharCNNConfig)
    num_words: int | None = None
    boundary_words: tuple[int, int] = (0, 1)  # rows of <S> and </S> in the word table, for word-id input

    def __post_init__(self) -> None:
        if (self.char_cnn is None) == (self.num_words is None):
            raise ValueError("a biLM reads either characters (char_cnn) or word ids (num_words): give exactly one")
        if self.num_words is not None:
            _check_numbers("model", 0, 10 * MAX_SIZE, num_words=self.num_words)

    @property
    def output_dim(self) -> int:
        """Width of a layer: both directions side by side."""
        return 2 * self.lstm.projection_dim

    @property
    def num_representations(self) -> int:
        """L + 1: the token layer and every LSTM layer."""
        return self.lstm.num_layers + 1

    @staticmethod
    def preset(name: str) -> BiLMConfig:
        """One of the published sizes `small`, `medium`, `original`, or `tiny` for tests."""
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
        return PRESETS[name]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> BiLMConfig:
        """The inverse of `to_dict` (also after a trip through JSON); unknown or missing keys are errors."""
        values = dict(_checked(BiLMConfig, values))
        values["lstm"] = LSTMConfig(**_checked(LSTMConfig, values["lstm"]))
        if values["char_cnn"] is not None:
            char_cnn = dict(_checked(CharCNNConfig, values["char_cnn"]))
            char_cnn["filters"] = tuple((width, number) for width, number in char_cnn["filters"])
            values["char_cnn"] = CharCNNConfig(**char_cnn)
        values["boundary_words"] = tuple(values["boundary_words"])
        return BiLMConfig(**values)


def _checked(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in dataclasses.fields(kind)}
    wrong = sorted(names ^ set(values))
    if wrong:
        raise ValueError(f"{kind.__name__}: missing or unknown settings {', '.join(wrong)}")
    return values


def _published(cell_dim: int, projection_dim: int, num_highway: int) -> BiLMConfig:
    return BiLMConfig(
        LSTMConfig(cell_dim=cell_dim, projection_dim=projection_dim), CharCNNConfig(num_highway=num_highway)
    )


PRESETS = {
    "tiny": BiLMConfig(
        LSTMConfig(cell_dim=32, projection_dim=16), CharCNNConfig(4, ((1, 8), (2, 8), (3, 16)), num_highway=1)
    ),
    "small": _published(1024, 128, 1),
    "medium": _published(2048, 256, 1),
    "original": _published(4096, 512, 2),
}
