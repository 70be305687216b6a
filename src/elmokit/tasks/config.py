"""The settings of a tagger, its training and its files. The command line is generated from them: no torch here."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


def _check_at_least(settings: object, minimum: int, names: Iterable[str]) -> None:
    for name in names:
        if getattr(settings, name) < minimum:
            raise ValueError(f"{name} must be at least {minimum}, not {getattr(settings, name)}")


def _check_above_zero(settings: object, names: Iterable[str]) -> None:
    for name in names:
        if not 0 < getattr(settings, name) < float("inf"):  # false for NaN as well
            raise ValueError(f"{name} must be a number above 0, not {getattr(settings, name)}")


@dataclass(frozen=True)
class ColumnsConfig:
    """The format and columns of task files."""

    format: Literal["conllu", "columns"] | None = None
    """Format of the files; None: by the suffix of each file."""
    word_column: int = 0
    """Column of the words, from 0. Ignored for CoNLL-U."""
    tag_column: str | int | None = None
    """Column of the tags: a name for CoNLL-U (None: upos), a number for columns (None: the last)."""


@dataclass(frozen=True)
class TaggerConfig:
    """The input features and the network of a tagger (Peters et al., 2018, section 3.3)."""

    word_dim: int = 100
    """Dimension of word vectors learned from the training set; 0 for none."""
    character_dim: int = 0
    """Output dimension of a character CNN learned from the training set; 0 for none."""
    elmo: bool = True
    """Use ELMo vectors, a learned mix of the layers of a pretrained biLM, as input of the LSTM."""
    elmo_at_output: bool = False
    """Concatenate a second ELMo mix with the output of the LSTM."""
    elmo_dropout: float = 0.5
    """Dropout of the ELMo vectors."""
    mix_l2: float = 0.0
    """Weight of the L2 penalty on the mix weights before the softmax (the paper tried 0 to 0.01)."""
    finetune: bool = False
    """Train the biLM as well. Slow, as the biLM then runs in every epoch instead of once."""
    hidden_dim: int = 150
    """Hidden dimension of the LSTM in each direction."""
    num_layers: int = 1
    """Number of LSTM layers."""
    dropout: float = 0.5
    """Dropout of the word vectors, the character CNN and the LSTM output."""
    rare_word_dropout: float = 0.5
    """Probability in training of replacing a word that occurs once in the training set by the unknown word."""
    crf: bool = False
    """Score tag sequences with a conditional random field instead of scoring each tag independently."""

    def __post_init__(self) -> None:
        _check_at_least(self, 0, ("word_dim", "character_dim"))
        _check_at_least(self, 1, ("hidden_dim", "num_layers"))
        for name in ("elmo_dropout", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
        if not 0 <= self.rare_word_dropout <= 1:
            raise ValueError(f"rare_word_dropout must be from 0 to 1, not {self.rare_word_dropout}")
        if not 0 <= self.mix_l2 < float("inf"):
            raise ValueError(f"mix_l2 must be a number of at least 0, not {self.mix_l2}")
        if not (self.word_dim or self.character_dim or self.elmo):
            raise ValueError("a tagger needs input features: set word_dim, character_dim or elmo")
        if (self.finetune or self.elmo_at_output) and not self.elmo:
            raise ValueError("finetune and elmo_at_output need elmo")


@dataclass(frozen=True)
class FitConfig:
    """The training of a tagger. Equal settings and data give equal taggers."""

    seed: int = 1
    """Seed of the initial weights, dropout and the order of batches."""
    max_epochs: int = 30
    """Maximum number of passes over the training set."""
    patience: int = 4
    """Stop after this many epochs without improvement on the development set."""
    batch_size: int = 32
    """Sentences per batch."""
    learning_rate: float = 2e-3
    """Learning rate of Adam, halved after each epoch without improvement."""
    finetune_learning_rate: float = 1e-4
    """Learning rate of Adam for the biLM, with finetune."""
    max_grad_norm: float = 5.0
    """Maximum norm of the gradients."""
    device: str | None = None
    """Device: cpu, cuda or cuda:N; None: a GPU if there is one."""

    def __post_init__(self) -> None:
        _check_at_least(self, 0, ("seed",))
        _check_at_least(self, 1, ("max_epochs", "patience", "batch_size"))
        _check_above_zero(self, ("learning_rate", "finetune_learning_rate", "max_grad_norm"))
