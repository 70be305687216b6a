"""The configuration of a biLM: frozen dataclasses, saved with its weights."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

# The state of the LSTMs at the start of a sentence: zeros, the model's stored warm state, or carried over from the end
# of the previous sentence.
StatePolicy: TypeAlias = Literal["zeros", "warm", "carry"]
STATE_POLICIES: tuple[StatePolicy, ...] = get_args(StatePolicy)


def check_state(state: str) -> None:
    """ValueError if a state policy is none of these."""
    if state not in STATE_POLICIES:
        raise ValueError(f"state must be one of {', '.join(STATE_POLICIES)}, not {state!r}")


# Character ids: UTF-8 bytes and five marks, all shifted by one so that 0 can mean "no word". (bilm/data.py, and
# AllenNLP's elmo_indexer.py; before the shift 256 is <S>, 257 </S>, 258 begin-word, 259 end-word, 260 pad.)
CHARACTER_SHIFT = 1
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PAD_CHARACTER = (256 + i + CHARACTER_SHIFT for i in range(5))
NUM_CHARACTERS = 261

# Limits that protect time and memory from the configuration of a damaged or malicious file.
MAX_LAYERS, MAX_WORD_LENGTH, MAX_SIZE = 100, 10_000, 10_000_000

# Entries of ELMoForManyLangs' dictionaries. Its training swapped the two marks around a word (frontend.py:51), so its
# models know them swapped.
EFML_BEGIN_WORD, EFML_END_WORD = "<eow>", "<bow>"
EFML_BOUNDARIES = "<bos>", "<eos>"
EFML_OOV, EFML_PAD = "<oov>", "<pad>"

PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


def _check_numbers(owner: str, lowest: int, highest: int, **numbers: int) -> None:
    """Check that each is an integer within bounds; else ValueError."""
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"{owner}.{name} must be an integer, not {number!r}")
        if number < lowest:
            raise ValueError(f"{owner}.{name} must be at least {lowest}, not {number}")
        if number > highest:
            raise ValueError(f"{owner}.{name} must be at most {highest}, not {number}")


def _check_clip(name: str, clip: float | None) -> None:
    if clip is not None and (not isinstance(clip, int | float) or isinstance(clip, bool) or not 0 < clip < math.inf):
        raise ValueError(f"{name} must be a number above 0, or none, not {clip!r}")


@dataclass(frozen=True)
class CharCNNConfig:
    """The character encoder: embedding, convolutions of several widths, max pooling, highway layers, projection.

    Attributes:
        embedding_dim: Width E of a character's vector.
        filters: (width, number) of the filters; F is the sum of the numbers.
        num_highway: Highway layers.
        activation: Of the convolutions: "relu" or "tanh".
        max_characters: Characters C of a word with its two marks; longer words are truncated.
        num_characters: Rows of the character table.
    """

    embedding_dim: int = 16
    filters: tuple[tuple[int, int], ...] = PUBLISHED_FILTERS
    num_highway: int = 1
    activation: str = "relu"
    max_characters: int = 50
    num_characters: int = NUM_CHARACTERS

    def __post_init__(self) -> None:
        if self.activation not in ("relu", "tanh"):
            raise ValueError(f"char_cnn.activation must be 'relu' or 'tanh', not {self.activation!r}")
        _check_numbers("char_cnn", 1, MAX_WORD_LENGTH, max_characters=self.max_characters)
        _check_numbers("char_cnn", 0, MAX_LAYERS, num_highway=self.num_highway)
        _check_numbers("char_cnn", 1, MAX_SIZE, embedding_dim=self.embedding_dim, num_characters=self.num_characters)
        if len(self.filters) > MAX_LAYERS:
            raise ValueError(f"char_cnn.filters must have at most {MAX_LAYERS} widths, not {len(self.filters)}")
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
        """F, the filters of all widths."""
        return sum(number for _, number in self.filters)

    @property
    def widest_filter(self) -> int:
        """The largest width of a filter."""
        return max(width for width, _ in self.filters)


@dataclass(frozen=True)
class EfmlEncoderConfig:
    """ELMoForManyLangs' token encoder: a table of word vectors, a CNN over characters, or both, and a projection.

    `words` and `characters` are its dictionaries, in the order of the rows of their tables: no words, no table; no
    characters, no CNN. Words longer than `max_characters`, the two marks around a word included, are truncated (None:
    no word is).
    """

    words: tuple[str, ...] = ()
    word_dim: int = 0
    characters: tuple[str, ...] = ()
    char_cnn: CharCNNConfig | None = None
    max_characters: int | None = 50

    def __post_init__(self) -> None:
        if not all(isinstance(entry, str) for entry in (*self.words, *self.characters)):
            raise ValueError("efml: the entries of a dictionary must be strings")
        if not (self.words or self.characters):
            raise ValueError("efml needs a dictionary of words, of characters, or both")
        _check_numbers("efml", 1 if self.words else 0, MAX_SIZE, word_dim=self.word_dim)
        if self.max_characters is not None:
            _check_numbers("efml", 3, MAX_WORD_LENGTH, max_characters=self.max_characters)
        marks = (EFML_END_WORD, EFML_BEGIN_WORD, *EFML_BOUNDARIES)
        self._check_dictionary("words", self.words, (EFML_OOV, EFML_PAD))
        self._check_dictionary("characters", self.characters, (*marks, EFML_OOV, EFML_PAD))
        sizes = self.char_cnn and (self.char_cnn.num_characters, self.char_cnn.max_characters)
        if sizes != ((len(self.characters), self.max_characters) if self.characters else None):
            raise ValueError("efml: char_cnn does not fit the dictionary of characters")

    @staticmethod
    def _check_dictionary(name: str, entries: tuple[str, ...], needed: tuple[str, ...]) -> None:
        missing = [entry for entry in needed if entries and entry not in entries]
        if missing:
            raise ValueError(f"efml.{name} lacks {' '.join(missing)}")

    @cached_property
    def word_rows(self) -> dict[str, int]:
        """The row of each word in the table."""
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def character_rows(self) -> dict[str, int]:
        """The row of each character, and of each mark, in the table."""
        return {character: row for row, character in enumerate(self.characters)}

    def boundary_ids(self, which: int, width: int) -> list[int]:
        """The ids of <S> (`which` 0) or </S> (1), shifted by one, with padding up to `width`."""
        mark, ids = EFML_BOUNDARIES[which], []
        if self.words:
            ids.append(self.word_rows.get(mark, self.word_rows[EFML_OOV]))
        if self.characters:
            spelled = [EFML_BEGIN_WORD, mark, EFML_END_WORD, *[EFML_PAD] * (width - len(ids) - 3)]
            ids += [self.character_rows[character] for character in spelled]
        return [row + CHARACTER_SHIFT for row in ids]

    @property
    def num_features(self) -> int:
        """Input width of the projection: the word vector and the filters."""
        return self.word_dim * bool(self.words) + (0 if self.char_cnn is None else self.char_cnn.num_filters)


@dataclass(frozen=True)
class LSTMConfig:
    """Two stacks of projected, clipped LSTMs, one for each direction (bilm/training.py).

    Attributes:
        num_layers: L.
        cell_dim: H.
        projection_dim: D, of one direction.
        cell_clip: Bound of the cell's values; None: none.
        proj_clip: Bound of the projection's values; None: none.
        use_skip_connections: Add the input of each layer above the first to its output.
        forget_bias: Added to the forget gate.
        interleaved: ELMoForManyLangs' encoder `lstm`: plain LSTMs, of which each layer above the first reads both
            directions of the layer below. Only a projection of the top layer is a representation, and no state is
            carried.
    """

    num_layers: int = 2
    cell_dim: int = 4096
    projection_dim: int = 512
    cell_clip: float | None = 3.0
    proj_clip: float | None = 3.0
    use_skip_connections: bool = True
    forget_bias: float = 1.0
    interleaved: bool = False

    def __post_init__(self) -> None:
        _check_numbers("lstm", 1, MAX_LAYERS, num_layers=self.num_layers)
        _check_numbers("lstm", 1, MAX_SIZE, cell_dim=self.cell_dim, projection_dim=self.projection_dim)
        if not isinstance(self.forget_bias, int | float) or not math.isfinite(self.forget_bias):
            raise ValueError(f"lstm.forget_bias must be a number, not {self.forget_bias!r}")
        _check_clip("lstm.cell_clip", self.cell_clip)
        _check_clip("lstm.proj_clip", self.proj_clip)
        for name in ("use_skip_connections", "interleaved"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"lstm.{name} must be true or false, not {getattr(self, name)!r}")

    @property
    def has_projection(self) -> bool:
        """bilm-tf leaves the projection out where it would change nothing in size (training.py)."""
        return self.cell_dim != self.projection_dim


# Settings that older files lack, and their names on disk, which stay so that files and fingerprints do.
LATER_SETTINGS = {"efml": "words_and_characters", "interleaved": "joins_directions"}


def _checked(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Check that the values are all the settings of a configuration, and nothing else; else ValueError."""
    values = dict(values)
    for name, on_disk in LATER_SETTINGS.items():
        if on_disk in values:
            values[name] = values.pop(on_disk)
    names = {f.name for f in dataclasses.fields(kind)}
    wrong = sorted((names ^ set(values)) - (names & set(LATER_SETTINGS)))
    if wrong:
        raise ValueError(f"{kind.__name__}: missing or unknown settings {', '.join(wrong)}")
    return values


def _char_cnn_from_dict(values: dict[str, Any] | None) -> CharCNNConfig | None:
    if values is None:
        return None
    values = _checked(CharCNNConfig, values)
    values["filters"] = tuple((width, number) for width, number in values["filters"])
    return CharCNNConfig(**values)


@dataclass(frozen=True)
class BiLMConfig:
    """A bidirectional language model: two stacks of LSTMs over one token encoder, of which exactly one is set.

    Attributes:
        lstm: The stacks.
        char_cnn: The token encoder of a model that reads characters.
        num_words: Rows of the word table of a model that reads word ids.
        boundary_words: Rows of <S> and </S> in the word table.
        efml: The token encoder of ELMoForManyLangs.
    """

    lstm: LSTMConfig = field(default_factory=LSTMConfig)
    char_cnn: CharCNNConfig | None = field(default_factory=CharCNNConfig)
    num_words: int | None = None
    boundary_words: tuple[int, int] = (0, 1)
    efml: EfmlEncoderConfig | None = None

    def __post_init__(self) -> None:
        encoders = (self.char_cnn, self.num_words, self.efml)
        if sum(encoder is not None for encoder in encoders) != 1:
            raise ValueError("a biLM has one token encoder: give exactly one of char_cnn, num_words and efml")
        if self.num_words is not None:
            _check_numbers("model", 0, 10 * MAX_SIZE, num_words=self.num_words)
        self._check_boundary_words()

    def _check_boundary_words(self) -> None:
        rows = self.boundary_words
        pair = isinstance(rows, tuple) and len(rows) == 2 and all(type(row) is int and row >= 0 for row in rows)
        if not pair:
            raise ValueError(f"model.boundary_words must be two row numbers, of <S> and of </S>, not {rows!r}")
        if self.num_words and max(rows) >= self.num_words:  # 0: a table that is not there yet
            raise ValueError(
                f"model.boundary_words are rows {rows[0]} and {rows[1]} of a word table that has {self.num_words}, "
                "from 0: give those of <S> and </S>, or as num_words the size of the whole table"
            )

    @property
    def output_dim(self) -> int:
        """Width of a layer: both directions side by side."""
        return 2 * self.lstm.projection_dim

    @property
    def num_representations(self) -> int:
        """L + 1: the token layer and every LSTM layer; of an interleaved model, the top alone."""
        return 1 if self.lstm.interleaved else self.lstm.num_layers + 1

    @staticmethod
    def preset(name: str) -> BiLMConfig:
        """One of the published sizes `small`, `medium`, `original`, or `tiny` for tests."""
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
        return PRESETS[name]

    def to_dict(self) -> dict[str, Any]:
        """All settings by their names on disk; later ones only where used, so that files stay the same."""
        values = dataclasses.asdict(self)
        for settings in (values, values["lstm"]):
            for name in set(LATER_SETTINGS) & set(settings):
                if value := settings.pop(name):
                    settings[LATER_SETTINGS[name]] = value
        return values

    @staticmethod
    def from_dict(values: dict[str, Any]) -> BiLMConfig:
        """The inverse of `to_dict` (also after a trip through JSON); ValueError for unknown or missing keys."""
        values = _checked(BiLMConfig, values)
        values["lstm"] = LSTMConfig(**_checked(LSTMConfig, values["lstm"]))
        values["char_cnn"] = _char_cnn_from_dict(values["char_cnn"])
        if isinstance(values["boundary_words"], list):
            values["boundary_words"] = tuple(values["boundary_words"])
        if values.get("efml") is not None:
            encoder = _checked(EfmlEncoderConfig, values["efml"])
            encoder["char_cnn"] = _char_cnn_from_dict(encoder["char_cnn"])
            encoder |= {name: tuple(encoder[name]) for name in ("words", "characters")}
            values["efml"] = EfmlEncoderConfig(**encoder)
        return BiLMConfig(**values)


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
