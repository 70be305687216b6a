"""The configuration of a biLM: frozen dataclasses, saved with its weights."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import Any, ClassVar, Literal, TypeAlias, get_args

# The state of the LSTMs at the start of a sentence: zeros, the model's stored warm state, or carried over from the end
# of the previous sentence.
StatePolicy: TypeAlias = Literal["zeros", "warm", "carry"]
STATE_POLICIES: tuple[StatePolicy, ...] = get_args(StatePolicy)


def check_state_policy(state: str) -> None:
    """Raise ValueError unless `state` is one of `STATE_POLICIES`."""
    if state not in STATE_POLICIES:
        raise ValueError(f"state must be one of {', '.join(STATE_POLICIES)}, not {state!r}")


# The number type of vectors and weights on disk.
StorageDtype: TypeAlias = Literal["float32", "float16"]
STORAGE_DTYPES: tuple[StorageDtype, ...] = get_args(StorageDtype)


def check_count(name: str, value: Any) -> None:
    """ValueError if an argument is not an integer, at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be an integer, at least 1, not {value!r}")


def check_storage_dtype(dtype: str) -> None:
    """Raise ValueError unless `dtype` is one of `STORAGE_DTYPES`."""
    if dtype not in STORAGE_DTYPES:
        raise ValueError(f"storage_dtype must be {' or '.join(STORAGE_DTYPES)}, not {dtype!r}")


# Character ids: UTF-8 bytes and five marks, all shifted by one so that 0 can mean "no word". (bilm/data.py, and
# AllenNLP's elmo_indexer.py; before the shift 256 is <S>, 257 </S>, 258 begin-word, 259 end-word, 260 pad.)
CHARACTER_SHIFT = 1
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PAD_CHARACTER = (256 + i + CHARACTER_SHIFT for i in range(5))
NUM_CHARACTERS = 261

# Limits that protect time and memory from the configuration of a damaged or malicious file.
MAX_LAYERS, MAX_WORD_LENGTH, MAX_SIZE = 100, 10_000, 10_000_000
MAX_CONTEXT = 8192  # the attention to longer text allocates a mask (context, 2 * context)

NO_STATE = (0, 0, 0)  # the `state_shape` of a sequence encoder that carries no state

# Entries of ELMoForManyLangs' dictionaries. Its training swapped the two marks around a word (frontend.py:51), so its
# models know them swapped.
EFML_BEGIN_WORD, EFML_END_WORD = "<eow>", "<bow>"
EFML_BOUNDARIES = "<bos>", "<eos>"
EFML_OOV, EFML_PAD = "<oov>", "<pad>"

PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


def _check_numbers(owner: str, lowest: int, highest: int, **numbers: int) -> None:
    """Raise ValueError unless each of `numbers` is an integer from `lowest` to `highest`."""
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"{owner}.{name} must be an integer, not {number!r}")
        if number < lowest:
            raise ValueError(f"{owner}.{name} must be at least {lowest}, not {number}")
        if number > highest:
            raise ValueError(f"{owner}.{name} must be at most {highest}, not {number}")


def _is_finite(value: object) -> bool:
    """Whether it is a number that a float holds; JSON may have an integer that is larger."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _check_clip(name: str, clip: float | None) -> None:
    if clip is not None and not (_is_finite(clip) and clip > 0):
        raise ValueError(f"{name} must be a number above 0, or none, not {clip!r}")


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")


def _check_forget_bias(owner: str, forget_bias: float) -> None:
    if not _is_finite(forget_bias):
        raise ValueError(f"{owner}.forget_bias must be a number, not {forget_bias!r}")


# --- Token encoders --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CharCNNConfig:
    """The character encoder: embedding, convolutions of several widths, max pooling, highway layers, projection.

    Attributes:
        embedding_dim: Width E of a character's vector.
        filters: (width, number) of the filters; F is the sum of the numbers.
        num_highway: Highway layers.
        activation: Of the convolutions: "relu" or "tanh".
        max_characters: Characters C per word, its two marks included; longer words are truncated.
        num_characters: Rows of the table of character embeddings.
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
        _check_numbers("char_cnn", 3, MAX_WORD_LENGTH, max_characters=self.max_characters)  # with its two marks
        _check_numbers("char_cnn", 0, MAX_LAYERS, num_highway=self.num_highway)
        _check_numbers("char_cnn", 1, MAX_SIZE, embedding_dim=self.embedding_dim, num_characters=self.num_characters)
        pairs = self.filters if isinstance(self.filters, Sequence) else [self.filters]
        if len(pairs) > MAX_LAYERS:
            raise ValueError(f"char_cnn.filters must have at most {MAX_LAYERS} widths, not {len(pairs)}")
        if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
            raise ValueError(f"char_cnn.filters must be (width, number) pairs, not {self.filters!r}")
        object.__setattr__(self, "filters", tuple(map(tuple, self.filters)))
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

    `words` and `characters` are its dictionaries, in the order of the rows of their tables; an empty one means that
    there is no word table, or no CNN. Words longer than `max_characters`, the two marks around a word included, are
    truncated; None: no limit.
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
        """The ids of <S> (`which` = 0) or </S> (1), shifted by one and padded to `width`."""
        mark, ids = EFML_BOUNDARIES[which], []
        if self.words:
            ids.append(self.word_rows.get(mark, self.word_rows[EFML_OOV]))
        if self.characters:
            spelled = [EFML_BEGIN_WORD, mark, EFML_END_WORD, *[EFML_PAD] * (width - len(ids) - 3)]
            ids += [self.character_rows[character] for character in spelled]
        return [row + CHARACTER_SHIFT for row in ids]

    @property
    def num_features(self) -> int:
        """Input width of the projection: the width of a word vector plus the number of filters."""
        return self.word_dim * bool(self.words) + (0 if self.char_cnn is None else self.char_cnn.num_filters)


# --- Sequence encoders -----------------------------------------------------------------------------------------------
#
# Each configuration answers what the rest of the program needs to know about its encoder:
#   predicts_words       whether it can be a language model
#   merges_directions    whether a position's layers have seen the words on both sides, so that only hidden words can be
#                        predicted
#   carries_state        whether a text can continue from the state that the text before it left
#   state_shape          of one row and direction: the number of layers, and the widths of h and c in each
#   num_layers           L
#   projection_dim       D, of one direction
#   num_representations  layers to choose from, the token layer among them
#
# `str(config)` gives the sizes in one line.


@dataclass(frozen=True)
class LSTMConfig:
    """Two stacks of projected, clipped LSTMs, one for each direction (bilm/training.py).

    Attributes:
        num_layers: L.
        cell_dim: H.
        projection_dim: D, of one direction.
        cell_clip: Cell values are clipped to [-cell_clip, cell_clip]; None: not clipped.
        proj_clip: Projected outputs are clipped to [-proj_clip, proj_clip]; None: not clipped.
        use_skip_connections: Add the input of each layer above the first to its output.
        forget_bias: Added to the forget gate.
    """

    predicts_words: ClassVar[bool] = True
    merges_directions: ClassVar[bool] = False
    carries_state: ClassVar[bool] = True

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
        _check_forget_bias("lstm", self.forget_bias)
        _check_clip("lstm.cell_clip", self.cell_clip)
        _check_clip("lstm.proj_clip", self.proj_clip)
        _check_bool("lstm.use_skip_connections", self.use_skip_connections)

    def __str__(self) -> str:
        return f"{self.num_layers} layers of 2 x {self.cell_dim} cells, projected to {self.projection_dim}"

    @property
    def has_projection(self) -> bool:
        """Whether outputs are projected: bilm-tf (training.py) omits the projection where H equals D."""
        return self.cell_dim != self.projection_dim

    @property
    def num_representations(self) -> int:
        """L + 1: the token layer and every LSTM layer."""
        return self.num_layers + 1

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """L layers, each with an output h (D) and a cell c (H)."""
        return self.num_layers, self.projection_dim, self.cell_dim


@dataclass(frozen=True)
class InterleavedConfig:
    """Layers of plain LSTMs in both directions, where each layer reads both directions of the layer below.

    Attributes:
        num_layers: L.
        cell_dim: H.
        projection_dim: D, half of the width of a layer.
        forget_bias: Added to the forget gate.
        projects_layers: Whether each layer's outputs, both directions side by side, are projected to 2D and added to
            the layer's input. If not, as in ELMoForManyLangs' encoder `lstm`, each layer reads the outputs below as
            they are, and the only representation is a projection of the top layer.
    """

    merges_directions: ClassVar[bool] = True
    carries_state: ClassVar[bool] = False
    state_shape: ClassVar[tuple[int, int, int]] = NO_STATE

    num_layers: int = 2
    cell_dim: int = 1024
    projection_dim: int = 512
    forget_bias: float = 1.0
    projects_layers: bool = True

    def __post_init__(self) -> None:
        _check_numbers("interleaved", 1, MAX_LAYERS, num_layers=self.num_layers)
        _check_numbers("interleaved", 1, MAX_SIZE, cell_dim=self.cell_dim, projection_dim=self.projection_dim)
        _check_forget_bias("interleaved", self.forget_bias)
        _check_bool("interleaved.projects_layers", self.projects_layers)

    def __str__(self) -> str:
        return f"{self.num_layers} interleaved layers of 2 x {self.cell_dim} cells, projected to {self.projection_dim}"

    @property
    def predicts_words(self) -> bool:
        """Whether it has a learned vector that replaces a hidden word, which the model then predicts."""
        return self.projects_layers

    @property
    def num_representations(self) -> int:
        """L + 1: the token layer and every layer; 1, the top layer, without projections."""
        return self.num_layers + 1 if self.projects_layers else 1


@dataclass(frozen=True)
class TransformerConfig:
    """Two stacks of pre-norm Transformer blocks with causal attention, one for each direction.

    Attributes:
        num_layers: L.
        projection_dim: D, of one direction.
        num_heads: Attention heads; D must be a multiple of twice their number.
        feedforward_dim: Width of the hidden layer of each feed-forward network.
        context: Maximum number of positions that a position attends to: itself and those before it.
    """

    predicts_words: ClassVar[bool] = True
    merges_directions: ClassVar[bool] = False
    carries_state: ClassVar[bool] = False
    state_shape: ClassVar[tuple[int, int, int]] = NO_STATE

    num_layers: int = 6
    projection_dim: int = 512
    num_heads: int = 8
    feedforward_dim: int = 2048
    context: int = 512

    def __post_init__(self) -> None:
        _check_numbers("transformer", 1, MAX_LAYERS, num_layers=self.num_layers)
        sizes = {"num_heads": self.num_heads, "feedforward_dim": self.feedforward_dim}
        _check_numbers("transformer", 1, MAX_SIZE, projection_dim=self.projection_dim, **sizes)
        _check_numbers("transformer", 1, MAX_CONTEXT, context=self.context)
        if self.projection_dim % (2 * self.num_heads):
            raise ValueError(
                f"transformer.projection_dim must be a multiple of twice its {self.num_heads} heads, "
                f"not {self.projection_dim}"
            )

    def __str__(self) -> str:
        return (
            f"{self.num_layers} layers of 2 x {self.num_heads} heads and {self.feedforward_dim} hidden units "
            f"in {self.projection_dim} dimensions"
        )

    @property
    def num_representations(self) -> int:
        """L + 1: the token layer and every block."""
        return self.num_layers + 1


@dataclass(frozen=True)
class GatedCNNConfig:
    """Two stacks of causal convolutions with gated linear units, one for each direction (Dauphin et al. 2017).

    Attributes:
        num_layers: L.
        projection_dim: D, of one direction.
        hidden_dim: Gated units of a layer, whose outputs are projected to D.
        width: Positions that a convolution reads: its own and the `width` - 1 before it.
    """

    predicts_words: ClassVar[bool] = True
    merges_directions: ClassVar[bool] = False
    carries_state: ClassVar[bool] = True

    num_layers: int = 4
    projection_dim: int = 512
    hidden_dim: int = 2048
    width: int = 4

    def __post_init__(self) -> None:
        _check_numbers("gated_cnn", 1, MAX_LAYERS, num_layers=self.num_layers, width=self.width)
        _check_numbers("gated_cnn", 1, MAX_SIZE, projection_dim=self.projection_dim, hidden_dim=self.hidden_dim)

    def __str__(self) -> str:
        return (
            f"{self.num_layers} layers of 2 x {self.hidden_dim} gated convolutions {self.width} wide, "
            f"projected to {self.projection_dim}"
        )

    @property
    def num_representations(self) -> int:
        """L + 1: the token layer and every convolution."""
        return self.num_layers + 1

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """L layers, each with its last `width` - 1 inputs as h, and no c."""
        return self.num_layers, (self.width - 1) * self.projection_dim, 0


SequenceEncoderConfig: TypeAlias = LSTMConfig | InterleavedConfig | TransformerConfig | GatedCNNConfig
SEQUENCE_ENCODERS: dict[str, type[SequenceEncoderConfig]] = {
    "lstm": LSTMConfig,
    "interleaved": InterleavedConfig,
    "transformer": TransformerConfig,
    "gated_cnn": GatedCNNConfig,
}


# --- As JSON values --------------------------------------------------------------------------------------------------

# Keys in files that differ from the names here. They never change, so that files and fingerprints stay valid.
EFML_ON_DISK, INTERLEAVED_ON_DISK = "words_and_characters", "joins_directions"


def _as_dict(name: str, values: object) -> dict[str, Any]:
    """A copy of a JSON object. ValueError if it is something else."""
    if not isinstance(values, dict):
        raise ValueError(f"{name} must be an object with settings, not {values!r}")
    return dict(values)


def _checked(kind: type, values: object) -> dict[str, Any]:
    """A copy of the values. ValueError unless they are all the settings of a configuration, and nothing else."""
    values = _as_dict(kind.__name__, values)
    wrong = sorted({f.name for f in dataclasses.fields(kind)} ^ set(values))
    if wrong:
        raise ValueError(f"{kind.__name__}: missing or unknown settings {', '.join(wrong)}")
    return values


def _as_tuple(name: str, values: object) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple):
        raise ValueError(f"{name} must be a list, not {values!r}")
    return tuple(values)


def _char_cnn_from_dict(values: object) -> CharCNNConfig | None:
    if values is None:
        return None
    settings = _checked(CharCNNConfig, values)
    pairs = (_as_tuple("each of char_cnn.filters", pair) for pair in _as_tuple("char_cnn.filters", settings["filters"]))
    settings["filters"] = tuple(pairs)
    return CharCNNConfig(**settings)


def _efml_from_dict(values: object) -> EfmlEncoderConfig:
    settings = _checked(EfmlEncoderConfig, values)
    settings["char_cnn"] = _char_cnn_from_dict(settings["char_cnn"])
    settings |= {name: _as_tuple(f"efml.{name}", settings[name]) for name in ("words", "characters")}
    return EfmlEncoderConfig(**settings)


def _efml_lstm_to_dict(config: InterleavedConfig) -> dict[str, Any]:
    """ELMoForManyLangs' encoder `lstm` as it is stored: the settings of an `LSTMConfig`, and a flag."""
    sizes = config.num_layers, config.cell_dim, config.projection_dim
    plain = LSTMConfig(*sizes, None, None, use_skip_connections=False, forget_bias=config.forget_bias)
    return dataclasses.asdict(plain) | {INTERLEAVED_ON_DISK: True}


def _efml_lstm_from_dict(values: dict[str, Any]) -> InterleavedConfig:
    lstm = LSTMConfig(**_checked(LSTMConfig, values))
    sizes = lstm.num_layers, lstm.cell_dim, lstm.projection_dim
    return InterleavedConfig(*sizes, forget_bias=lstm.forget_bias, projects_layers=False)


@dataclass(frozen=True)
class BiLMConfig:
    """A bidirectional language model: a sequence encoder over a token encoder, exactly one of each.

    Attributes:
        lstm: The sequence encoder of ELMo, and the default; None with another one.
        char_cnn: The token encoder of a model that reads characters.
        num_words: Rows of the word table of a model that reads word ids.
        boundary_words: Rows of <S> and </S> in the word table.
        efml: The token encoder of ELMoForManyLangs.
        interleaved: A sequence encoder that merges the two directions after each layer.
        transformer: A sequence encoder with attention in place of recurrence.
        gated_cnn: A sequence encoder with convolutions in place of recurrence.
    """

    lstm: LSTMConfig | None = field(default_factory=LSTMConfig)
    char_cnn: CharCNNConfig | None = field(default_factory=CharCNNConfig)
    num_words: int | None = None
    boundary_words: tuple[int, int] = (0, 1)
    efml: EfmlEncoderConfig | None = None
    interleaved: InterleavedConfig | None = None
    transformer: TransformerConfig | None = None
    gated_cnn: GatedCNNConfig | None = None

    def __post_init__(self) -> None:
        if sum(getattr(self, name) is not None for name in SEQUENCE_ENCODERS) != 1:
            raise ValueError(
                f"a biLM has one sequence encoder: give exactly one of {', '.join(SEQUENCE_ENCODERS)} "
                "(lstm=None with another)"
            )
        for name, kind in {**SEQUENCE_ENCODERS, "char_cnn": CharCNNConfig, "efml": EfmlEncoderConfig}.items():
            if not isinstance(encoder := getattr(self, name), kind | None):
                raise ValueError(f"model.{name} must be a {kind.__name__}, not {encoder!r}")
        encoders = (self.char_cnn, self.num_words, self.efml)
        if sum(encoder is not None for encoder in encoders) != 1:
            raise ValueError("a biLM has one token encoder: give exactly one of char_cnn, num_words and efml")
        if self.char_cnn is not None and self.char_cnn.num_characters < NUM_CHARACTERS:
            raise ValueError(
                f"char_cnn.num_characters must be at least {NUM_CHARACTERS}, the bytes and five marks, not "
                f"{self.char_cnn.num_characters}"
            )
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
                f"model.boundary_words are rows {rows[0]} and {rows[1]}, but the word table has {self.num_words}, "
                "counted from 0: give the rows of <S> and </S>, or set num_words to the size of the whole table"
            )

    @property
    def encoder_name(self) -> str:
        """The field of the sequence encoder: `lstm`, `interleaved`, `transformer` or `gated_cnn`."""
        return next(name for name in SEQUENCE_ENCODERS if getattr(self, name) is not None)

    @property
    def sequence_encoder(self) -> SequenceEncoderConfig:
        """The configuration of the sequence encoder, whichever it is."""
        return getattr(self, self.encoder_name)

    def lstm_for(self, purpose: str) -> LSTMConfig:
        """The LSTMs, where no other sequence encoder will do. ValueError, which begins with `purpose`, for another."""
        if self.lstm is None:
            raise ValueError(f"{purpose} for LSTMs only, and this model's sequence encoder is {self.encoder_name}")
        return self.lstm

    @property
    def output_dim(self) -> int:
        """Width of a layer: both directions side by side."""
        return 2 * self.sequence_encoder.projection_dim

    @property
    def num_representations(self) -> int:
        """L + 1: the token layer and every layer above; 1, the top layer, with ELMoForManyLangs' encoder `lstm`."""
        return self.sequence_encoder.num_representations

    @staticmethod
    def preset(name: str) -> BiLMConfig:
        """A configuration by its name.

        Args:
            name: `small`, `medium` or `original`, which are published sizes; `small-interleaved`,
                `small-transformer` or `small-gated-cnn`, with another sequence encoder; or `tiny`, for tests.

        Returns:
            The configuration.

        Raises:
            ValueError: There is no preset of that name.
        """
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
        return PRESETS[name]

    def to_dict(self) -> dict[str, Any]:
        """All settings by their keys in files; unset encoders are omitted, so that older files do not change."""
        values = dataclasses.asdict(self)
        if self.interleaved is not None and not self.interleaved.projects_layers:
            values |= {"lstm": _efml_lstm_to_dict(self.interleaved), "interleaved": None}
        values[EFML_ON_DISK] = values.pop("efml")
        later = (EFML_ON_DISK, *SEQUENCE_ENCODERS)
        return {name: value for name, value in values.items() if value is not None or name not in later}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> BiLMConfig:
        """The inverse of `to_dict` (also after a trip through JSON); ValueError for unknown or missing keys."""
        values = {**dict.fromkeys(("efml", *SEQUENCE_ENCODERS)), **values}
        if EFML_ON_DISK in values:
            values["efml"] = values.pop(EFML_ON_DISK)
        values = _checked(BiLMConfig, values)
        if values["efml"] is not None:
            values["efml"] = _efml_from_dict(values["efml"])
        values["char_cnn"] = _char_cnn_from_dict(values["char_cnn"])
        if isinstance(values["boundary_words"], list):
            values["boundary_words"] = tuple(values["boundary_words"])
        if values["lstm"] is not None:
            lstm = _as_dict("lstm", values["lstm"])
            joins_directions = lstm.pop(INTERLEAVED_ON_DISK, lstm.pop("interleaved", False))
            _check_bool(f"lstm.{INTERLEAVED_ON_DISK}", joins_directions)
            if joins_directions:
                return BiLMConfig(**values | {"lstm": None, "interleaved": _efml_lstm_from_dict(lstm)})
            values["lstm"] = lstm
        for name, kind in SEQUENCE_ENCODERS.items():
            if values[name] is not None:
                values[name] = kind(**_checked(kind, values[name]))
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
    # The token encoder of `small`, and about as many parameters in another sequence encoder.
    "small-interleaved": BiLMConfig(None, interleaved=InterleavedConfig(2, 432, 128)),
    "small-transformer": BiLMConfig(None, transformer=TransformerConfig(12, 128, 4, 512)),
    "small-gated-cnn": BiLMConfig(None, gated_cnn=GatedCNNConfig(4, 128, 512)),
}
