"""The settings that all tasks share, without importing torch, so that the command line starts fast."""

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, get_type_hints

from elmokit.choices import check_choices
from elmokit.config import StorageDtype

# The tasks of elmokit: module of elmokit.tasks -> class.
TASKS = {
    "tagging": "TaggingTask",
    "classification": "ClassificationTask",
    "pairs": "PairsTask",
    "roles": "RolesTask",
    "reading": "ReadingTask",
    "coreference": "CoreferenceTask",
    "translation": "TranslationTask",
}


def check_is_number(config: object, name: str) -> None:
    """ValueError if a setting of `config` is no number, or no integer where its type is int.

    A number of another type, such as NumPy's, becomes one of Python's, which PyTorch and JSON need.
    """
    value, is_integer = getattr(config, name), get_type_hints(type(config))[name] is int
    if isinstance(value, bool) or not isinstance(value, Integral if is_integer else Real):
        raise ValueError(f"{name} must be {'an integer' if is_integer else 'a number'}, not {value!r}")
    object.__setattr__(config, name, int(value) if isinstance(value, Integral) else float(value))


def check_at_least(config: object, least: float, names: Iterable[str]) -> None:
    """ValueError if a setting of `config` is below `least`."""
    for name in names:
        check_is_number(config, name)
        if not getattr(config, name) >= least:  # also true of NaN
            raise ValueError(f"{name} must be at least {least}, not {getattr(config, name)}")


def check_positive(config: object, names: Iterable[str]) -> None:
    """ValueError if a setting of `config` is not a finite number above 0."""
    for name in names:
        check_is_number(config, name)
        if not 0 < getattr(config, name) < float("inf"):
            raise ValueError(f"{name} must be a number above 0, not {getattr(config, name)}")


def check_dropout(config: object, names: Iterable[str]) -> None:
    """ValueError if a setting of `config` is not a dropout probability."""
    for name in names:
        check_is_number(config, name)
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, not {getattr(config, name)}")


@dataclass(frozen=True)
class WordsConfig:
    """Which vectors a task's network reads for each word; the chosen ones are concatenated."""

    elmo: Literal["none", "input", "output", "both"] = "input"
    """Where ELMo enters: [x; ELMo] at the input of the network, [h; ELMo] at its output, both, or nowhere."""
    mix: Literal["learned", "uniform", "top"] = "learned"
    """Mix of the biLM's layers: learned for the task, uniform, or the top layer alone."""
    mix_l2: float = 0.0
    """Weight of the L2 penalty on the learned mix weights before their softmax (the paper compares 1 and 0.001)."""
    elmo_dropout: float = 0.5
    """Dropout of ELMo's vectors."""
    finetune: bool = False
    """Fine-tune the biLM, too. Slow: it then runs in every epoch instead of once."""
    word_dim: int = 100
    """Width of word vectors learned from the training set; 0: none."""
    vectors: str | None = None
    """File of pretrained word vectors, which are not trained: GloVe, fastText (.vec) or word2vec (default: none)."""
    vectors_kept: int = 50_000
    """Number of words at the beginning of that file, by convention the most frequent ones, whose vectors the model
    keeps for later texts, besides those of the training set's words."""
    encoder: str | None = None
    """Another pretrained encoder, whose frozen vectors are read: a directory, or a name on the Hugging Face Hub (needs
    transformers; default: none)."""
    encoder_pooling: Literal["first", "mean"] = "first"
    """Vector of a word from the encoder: that of its first subword, or the mean over its subwords."""
    character_dim: int = 0
    """Width of the output of a character CNN learned from the training set; 0: none."""
    word_dropout: float = 0.5
    """Dropout of word vectors, of the character CNN's output and of the encoder's vectors."""
    storage_dtype: StorageDtype = "float16"
    """Number type in which the vectors of frozen encoders are cached; float32 takes twice the space."""
    rare_word_dropout: float = 0.5
    """Probability, in training, that a word that occurs once is replaced by the unknown word."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 0, ("word_dim", "character_dim", "mix_l2", "vectors_kept"))
        check_dropout(self, ("elmo_dropout", "word_dropout"))
        check_is_number(self, "rare_word_dropout")
        if not 0 <= self.rare_word_dropout <= 1:
            raise ValueError(f"rare_word_dropout must be from 0 to 1, not {self.rare_word_dropout}")
        if self.finetune and self.elmo == "none":
            raise ValueError('finetune trains the biLM: it needs elmo "input", "output" or "both"')
        if self.mix_l2 and (self.elmo == "none" or self.mix != "learned"):
            raise ValueError('mix_l2 is a penalty on learned weights of ELMo: it needs mix "learned", and ELMo')
        if not self.has_input:
            raise ValueError("the network has no input: give word_dim, character_dim, vectors, encoder or elmo")

    @property
    def has_input(self) -> bool:
        """Whether anything is read at the input of the network."""
        return self.elmo in ("input", "both") or self.has_input_without_elmo

    @property
    def has_input_without_elmo(self) -> bool:
        """Whether anything but ELMo is read at the input of the network."""
        return bool(self.word_dim or self.character_dim or self.vectors or self.encoder)


@dataclass(frozen=True)
class FitConfig:
    """How a task's network is trained.

    Equal settings and data give equal weights on one machine, with as many threads and the same cache of vectors.
    """

    seed: int = 1
    """Seed of the initial weights, the dropout and the order of batches."""
    max_epochs: int = 30
    """Maximum number of passes over the training set."""
    max_minutes: float | None = None
    """Stop after the epoch in which training has taken this many minutes (default: no limit)."""
    patience: int = 4
    """Stop after this many epochs without a better score on the development set. Epochs before the score first changes
    do not count, since a network may need some to find its first span."""
    batch_size: int = 32
    """Examples per batch."""
    learning_rate: float = 2e-3
    """Learning rate of Adam."""
    halve_after: int = 1
    """Halve the learning rate after this many epochs in a row without a better score."""
    finetune_learning_rate: float = 1e-4
    """Learning rate of Adam for the biLM, with finetune."""
    finetune_after: int = 1
    """Epochs before the biLM is trained, with finetune: the untrained network on top would disturb it."""
    max_grad_norm: float = 5.0
    """Maximum norm of the gradients."""
    device: str | None = None
    """Device: cpu, cuda or cuda:N (default: a GPU if there is one)."""

    def __post_init__(self) -> None:
        check_at_least(self, 0, ("seed", "finetune_after"))
        check_at_least(self, 1, ("max_epochs", "patience", "batch_size", "halve_after"))
        if self.seed >= 2**32:
            raise ValueError(f"seed must be below 2**32, not {self.seed}")
        check_positive(self, ("learning_rate", "finetune_learning_rate", "max_grad_norm"))
        if self.max_minutes is not None:
            check_positive(self, ("max_minutes",))


@dataclass(frozen=True)
class ColumnsConfig:
    """The layout of files of tagged sentences, each of which may have its own format."""

    format: Literal["conllu", "columns"] | None = None
    """Format (default: by the suffix of the file)."""
    word_column: int = 0
    """Column of the words, from 0 (CoNLL-U has its own)."""
    tag_column: str | int | None = None
    """Name or number of the column of tags (default: upos of CoNLL-U, the last of other columns)."""

    def __post_init__(self) -> None:
        check_choices(self)
