"""The configuration of a biLM: frozen dataclasses, saved with its weights."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from elmokit.settings import AtLeast, Between, Positive, check, conform

# Character ids: UTF-8 bytes and five marks, all shifted by one so that 0 can mean "no word".
# (bilm/data.py, and AllenNLP's elmo_indexer.py; before the shift 256 is <S>, 257 </S>, 258
# begin-word, 259 end-word, 260 pad.)
CHARACTER_SHIFT = 1
BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PAD_CHARACTER = (
    256 + i + CHARACTER_SHIFT for i in range(5)
)
NUM_CHARACTERS = 261

# Limits that protect time and memory from the configuration of a damaged or malicious file.
MAX_LAYERS, MAX_WORD_LENGTH, MAX_SIZE = 100, 10_000, 10_000_000
MAX_CONTEXT = 8192  # the attention to longer text allocates a mask (context, 2 * context)
Size: TypeAlias = Annotated[int, Between(1, MAX_SIZE)]
LayerCount: TypeAlias = Annotated[int, Between(1, MAX_LAYERS)]
CharacterCount: TypeAlias = Annotated[int, Between(3, MAX_WORD_LENGTH)]  # with the two marks

# options.json of bilm-tf and AllenNLP: their names of sizes, what is absent, and the bias that
# TensorFlow adds at run time, so that no file has it.
OPTION_SIZES = {"dim": "cell_dim", "projection_dim": "projection_dim", "n_layers": "num_layers"}
OPTION_DEFAULTS: dict[str, Any] = {
    "cell_clip": None, "proj_clip": None, "use_skip_connections": False
}  # fmt: skip
OPTION_FORGET_BIAS = 1.0

PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


# --- Token encoders -------------------------------------------------------------------------------


@dataclass(frozen=True)
class CharCNNConfig:
    """The character encoder: embedding, convolutions of several widths, max pooling, highway
    layers, projection.

    Attributes:
        embedding_dim: Width E of a character's vector.
        filters: (width, number) of the filters; F is the sum of the numbers.
        num_highway: Highway layers.
        activation: Of the convolutions: "relu" or "tanh".
        max_characters: Characters C per word, its two marks included; longer words are truncated.
        num_characters: Rows of the table of character embeddings.
    """

    embedding_dim: Size = 16
    filters: tuple[tuple[Size, Size], ...] = PUBLISHED_FILTERS
    num_highway: Annotated[int, Between(0, MAX_LAYERS)] = 1
    activation: Literal["relu", "tanh"] = "relu"
    max_characters: CharacterCount = 50
    num_characters: Size = NUM_CHARACTERS

    def __post_init__(self) -> None:
        check(self)
        if not 1 <= len(self.filters) <= MAX_LAYERS or self.num_filters > MAX_SIZE:
            raise ValueError(
                f"filters must be 1 to {MAX_LAYERS} pairs, of {MAX_SIZE:,} filters at most"
            )
        if self.widest_filter > self.max_characters:
            raise ValueError(f"filters must be no wider than {self.max_characters} characters")

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
    """ELMoForManyLangs' token encoder: a table of word vectors, a CNN over characters, or both, and
    a projection.

    `words` and `characters` are its dictionaries, in the order of the rows of their tables; an
    empty one means that there is no word table, or no CNN. Words longer than `max_characters`, the
    two marks around a word included, are truncated; None: no limit.
    """

    words: tuple[str, ...] = ()
    word_dim: Annotated[int, Between(0, MAX_SIZE)] = 0
    characters: tuple[str, ...] = ()
    char_cnn: CharCNNConfig | None = None
    max_characters: CharacterCount | None = 50

    def __post_init__(self) -> None:
        check(self)
        if not (self.words or self.characters):
            raise ValueError("efml needs a dictionary of words, of characters, or both")
        sizes = self.char_cnn and (self.char_cnn.num_characters, self.char_cnn.max_characters)
        if sizes != ((len(self.characters), self.max_characters) if self.characters else None):
            raise ValueError("efml: char_cnn does not fit the dictionary of characters")

    @cached_property
    def word_rows(self) -> dict[str, int]:
        """The row of each word in the table."""
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def character_rows(self) -> dict[str, int]:
        """The row of each character, and of each mark, in the table."""
        return {character: row for row, character in enumerate(self.characters)}

    @property
    def num_features(self) -> int:
        """Input width of the projection: the width of a word vector plus the number of filters."""
        return self.word_dim * bool(self.words) + (
            0 if self.char_cnn is None else self.char_cnn.num_filters
        )


# --- Sequence encoders ----------------------------------------------------------------------------


class SequenceEncoderConfig:
    """Properties of a sequence encoder that the rest of the program needs.

    Attributes:
        num_layers: L.
        projection_dim: D, of one direction.
        merges_directions: Whether a position's layers have seen the words on both sides, so that
            only masked words can be predicted.
        carries_state: Whether a text can continue from the state that the text before it left.
    """

    num_layers: int
    projection_dim: int
    merges_directions: ClassVar[bool] = False
    carries_state: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def predicts_words(self) -> bool:
        """Whether it can be a language model."""
        return True

    @property
    def num_representations(self) -> int:
        """Layers to choose from, L + 1: the token layer and every layer above."""
        return self.num_layers + 1

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Layers that have a state (0: none), and the widths of h and c in each."""
        return 0, 0, 0


@dataclass(frozen=True)
class LSTMConfig(SequenceEncoderConfig):
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

    carries_state: ClassVar[bool] = True

    num_layers: LayerCount = 2
    cell_dim: Size = 4096
    projection_dim: Size = 512
    cell_clip: Positive | None = 3.0
    proj_clip: Positive | None = 3.0
    use_skip_connections: bool = True
    forget_bias: float = 1.0

    @property
    def has_projection(self) -> bool:
        """Whether outputs are projected; bilm-tf (training.py) omits it where H equals D."""
        return self.cell_dim != self.projection_dim

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """L layers, each with an output h (D) and a cell c (H)."""
        return self.num_layers, self.projection_dim, self.cell_dim


@dataclass(frozen=True)
class InterleavedConfig(SequenceEncoderConfig):
    """Layers of plain LSTMs in both directions, where each layer reads both directions of the layer
    below.

    Attributes:
        num_layers: L.
        cell_dim: H.
        projection_dim: D, half of the width of a layer.
        forget_bias: Added to the forget gate.
        projects_layers: Whether each layer's outputs, both directions side by side, are projected
            to 2D and added to the layer's input. If not, as in ELMoForManyLangs' encoder `lstm`,
            each layer reads the outputs below as they are, and the only representation is a
            projection of the top layer.
    """

    merges_directions: ClassVar[bool] = True

    num_layers: LayerCount = 2
    cell_dim: Size = 1024
    projection_dim: Size = 512
    forget_bias: float = 1.0
    projects_layers: bool = True

    @property
    def predicts_words(self) -> bool:
        """Whether it has a learned vector in place of a masked word, which it then predicts."""
        return self.projects_layers

    @property
    def num_representations(self) -> int:
        """L + 1: the token layer and every layer; 1, the top layer, without projections."""
        return self.num_layers + 1 if self.projects_layers else 1


@dataclass(frozen=True)
class TransformerConfig(SequenceEncoderConfig):
    """Two stacks of pre-norm Transformer blocks with causal attention, one for each direction.

    Attributes:
        num_layers: L.
        projection_dim: D, of one direction.
        num_heads: Attention heads; D must be a multiple of twice their number.
        feedforward_dim: Width of the hidden layer of each feed-forward network.
        context: Maximum number of positions that a position attends to: itself and those before it.
    """

    num_layers: LayerCount = 6
    projection_dim: Size = 512
    num_heads: Size = 8
    feedforward_dim: Size = 2048
    context: Annotated[int, Between(1, MAX_CONTEXT)] = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.projection_dim % (2 * self.num_heads):
            raise ValueError(
                f"projection_dim must be a multiple of twice the {self.num_heads} heads"
            )


SEQUENCE_ENCODERS: dict[str, type[SequenceEncoderConfig]] = {
    "lstm": LSTMConfig,
    "interleaved": InterleavedConfig,
    "transformer": TransformerConfig,
}


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
    """

    lstm: LSTMConfig | None = field(default_factory=LSTMConfig)
    char_cnn: CharCNNConfig | None = field(default_factory=CharCNNConfig)
    num_words: Annotated[int, Between(0, 10 * MAX_SIZE)] | None = None
    boundary_words: tuple[Annotated[int, AtLeast(0)], Annotated[int, AtLeast(0)]] = (0, 1)
    efml: EfmlEncoderConfig | None = None
    interleaved: InterleavedConfig | None = None
    transformer: TransformerConfig | None = None

    def __post_init__(self) -> None:
        check(self)
        for kind, names in (
            ("sequence", SEQUENCE_ENCODERS),
            ("token", ("char_cnn", "num_words", "efml")),
        ):
            if sum(getattr(self, name) is not None for name in names) != 1:
                raise ValueError(
                    f"a biLM has one {kind} encoder: give exactly one of {', '.join(names)}"
                )
        if self.char_cnn is not None and self.char_cnn.num_characters < NUM_CHARACTERS:
            raise ValueError(
                f"num_characters must be at least {NUM_CHARACTERS}, the bytes and five marks"
            )
        if (
            self.num_words and max(self.boundary_words) >= self.num_words
        ):  # 0: a table that is not there yet
            raise ValueError(
                f"boundary_words, the rows of <S> and </S>, must be below {self.num_words}, the "
                f"num_words"
            )

    @property
    def encoder_name(self) -> str:
        """The field of the sequence encoder: `lstm`, `interleaved` or `transformer`."""
        return next(name for name in SEQUENCE_ENCODERS if getattr(self, name) is not None)

    @property
    def sequence_encoder(self) -> SequenceEncoderConfig:
        """The configuration of the sequence encoder, whichever it is."""
        return getattr(self, self.encoder_name)

    def check_predicts_words(self) -> None:
        """ValueError if it can only embed words, as ELMoForManyLangs with the encoder `lstm`."""
        if not self.sequence_encoder.predicts_words:
            raise ValueError(
                "this model's directions are interleaved, and it has no vector for a masked word: "
                "it cannot predict words, only embed them"
            )

    def lstm_for(self, purpose: str) -> LSTMConfig:
        """The LSTMs; ValueError, which begins with `purpose`, for another sequence encoder."""
        if self.lstm is None:
            raise ValueError(
                f"{purpose} for LSTMs only, and this model's sequence encoder is "
                f"{self.encoder_name}"
            )
        return self.lstm

    @property
    def output_dim(self) -> int:
        """Width of a layer: both directions side by side."""
        return 2 * self.sequence_encoder.projection_dim

    @property
    def num_representations(self) -> int:
        """L + 1 with the token layer; 1, the top layer, for ELMoForManyLangs' encoder `lstm`."""
        return self.sequence_encoder.num_representations

    @staticmethod
    def preset(name: str) -> BiLMConfig:
        """A configuration by its name.

        Args:
            name: `small`, `medium` or `original`, which are published sizes; `small-interleaved`
                or `small-transformer`, with another sequence encoder; `mini`, for little text; or
                `tiny`, for tests.

        Returns:
            The configuration.

        Raises:
            ValueError: There is no preset of that name.
        """
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
        return PRESETS[name]

    def to_dict(self) -> dict[str, Any]:
        """All settings, without encoders that are not set."""
        encoders = ("efml", *SEQUENCE_ENCODERS)
        values = dataclasses.asdict(self)
        return {
            name: value
            for name, value in values.items()
            if value is not None or name not in encoders
        }

    @staticmethod
    def from_dict(values: dict[str, Any]) -> BiLMConfig:
        """The inverse of `to_dict`, also after JSON; ValueError for unknown or invalid settings."""
        return conform(BiLMConfig, {"lstm": None, **values}, "model")

    @staticmethod
    def from_options(options: dict[str, Any], num_words: int | None = None) -> BiLMConfig:
        """The configuration that options.json of bilm-tf and AllenNLP describes.

        Args:
            options: The contents of the file.
            num_words: Rows of the word table, for a model of word ids, which has no `char_cnn`.

        Raises:
            KeyError: An option is missing.
            ValueError: One is invalid.
        """
        lstm, char_cnn = options["lstm"], options.get("char_cnn")
        sizes = {ours: lstm[theirs] for theirs, ours in OPTION_SIZES.items()}
        # As in AllenNLP, a clip of 0 means none; TensorFlow would clip everything to 0.
        clips = {name: lstm.get(name) or default for name, default in OPTION_DEFAULTS.items()}
        config = LSTMConfig(**sizes, **clips, forget_bias=OPTION_FORGET_BIAS)
        if char_cnn is None:
            return BiLMConfig(config, char_cnn=None, num_words=num_words)
        # n_characters is 261 in training and 262 at inference, where a row stands for padding: the
        # same 261 vectors.
        characters = CharCNNConfig(
            embedding_dim=char_cnn["embedding"]["dim"],
            filters=tuple((width, number) for width, number in char_cnn["filters"]),
            num_highway=char_cnn.get("n_highway") or 0,  # absent means none
            activation=char_cnn["activation"],
            max_characters=char_cnn.get("max_characters_per_token", 50),
        )
        return BiLMConfig(config, characters)

    def to_options(self) -> dict[str, Any]:
        """The inverse of `from_options`; ValueError if options.json cannot express the model."""
        lstm, char_cnn = self.lstm_for("AllenNLP's and bilm-tf's files are"), self.char_cnn
        characters = NUM_CHARACTERS if char_cnn is None else char_cnn.num_characters
        is_plain = characters == NUM_CHARACTERS and self.efml is None
        if lstm.forget_bias != OPTION_FORGET_BIAS or not is_plain:
            raise ValueError(
                f"readers of options.json assume the forget bias {OPTION_FORGET_BIAS}, "
                f"{NUM_CHARACTERS} characters and no dictionaries; this model has "
                f"{lstm.forget_bias}, {characters} and perhaps some: save it as native or ONNX"
            )
        sizes = {theirs: getattr(lstm, ours) for theirs, ours in OPTION_SIZES.items()}
        options = {"lstm": {**sizes, **{name: getattr(lstm, name) for name in OPTION_DEFAULTS}}}
        if char_cnn is not None:
            options["char_cnn"] = {
                "activation": char_cnn.activation,
                "embedding": {"dim": char_cnn.embedding_dim},
                "filters": [list(pair) for pair in char_cnn.filters],
                "n_highway": char_cnn.num_highway,
                "max_characters_per_token": char_cnn.max_characters,
                # Both systems expect 262 at inference, though files have 261 rows: padding has an
                # id, too.
                "n_characters": NUM_CHARACTERS + 1,
            }
        return options


def _published(cell_dim: int, projection_dim: int, num_highway: int) -> BiLMConfig:
    return BiLMConfig(
        LSTMConfig(cell_dim=cell_dim, projection_dim=projection_dim),
        CharCNNConfig(num_highway=num_highway),
    )


PRESETS = {
    "tiny": BiLMConfig(
        LSTMConfig(cell_dim=32, projection_dim=16),
        CharCNNConfig(4, ((1, 8), (2, 8), (3, 16)), num_highway=1),
    ),
    "mini": BiLMConfig(
        LSTMConfig(cell_dim=512, projection_dim=128),
        CharCNNConfig(16, ((1, 32), (2, 32), (3, 64), (4, 128)), num_highway=1),
    ),
    "small": _published(1024, 128, 1),
    "medium": _published(2048, 256, 1),
    "original": _published(4096, 512, 2),
    # The token encoder of `small`, and about as many parameters in another sequence encoder.
    "small-interleaved": BiLMConfig(None, interleaved=InterleavedConfig(2, 432, 128)),
    "small-transformer": BiLMConfig(None, transformer=TransformerConfig(12, 128, 4, 512)),
}
