"""The settings of a tagger, its training and its files, free of torch so that the command line shows them at once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


def _check_at_least(settings: object, least: int, names: Iterable[str]) -> None:
    for name in names:
        if getattr(settings, name) < least:
            raise ValueError(f"{name} must be at least {least}, not {getattr(settings, name)}")


def _check_above_zero(settings: object, names: Iterable[str]) -> None:
    for name in names:
        if not 0 < getattr(settings, name) < float("inf"):  # which a NaN is not either
            raise ValueError(f"{name} must be a number above 0, not {getattr(settings, name)}")


@dataclass(frozen=True)
class Columns:
    """What is said of the layout of task files, each of which may have a format of its own."""

    format: Literal["conllu", "columns"] | None = None
    """Inferred from the file suffix when not given."""
    word_column: int = 0
    """Column of the words, from 0 (CoNLL-U has its own)."""
    tag_column: str | int | None = None
    """Name (CoNLL-U, default upos) or number (columns, default last)."""


@dataclass(frozen=True)
class TaggerConfig:
    """What a tagger sees of a word, and the network on top of it."""

    word_dim: int = 100
    """Width of word vectors learned from the training set; 0: none."""
    character_dim: int = 0
    """Width of the output of a character CNN learned from the training set; 0: none."""
    elmo: bool = True
    """Give the LSTM ELMo's vectors: a learned mix of the layers of a pretrained biLM."""
    elmo_at_output: bool = False
    """Put ELMo once more, with a mix of its own, beside the LSTM's output."""
    elmo_dropout: float = 0.5
    """Dropout of ELMo's vectors."""
    mix_l2: float = 0.0
    """Weight of the L2 penalty on the mix weights before the softmax (the paper tried 0 to 0.01)."""
    finetune: bool = False
    """Train the biLM too. Slow: it then runs in every epoch instead of once."""
    hidden_dim: int = 150
    """Width of the LSTM in each direction."""
    num_layers: int = 1
    """LSTM layers."""
    dropout: float = 0.5
    """Dropout of word vectors, character CNN and LSTM output."""
    rare_word_dropout: float = 0.5
    """How often, in training, a word that occurs once there becomes the unknown word."""
    crf: bool = False
    """Score whole tag sequences with a conditional random field instead of each tag by itself."""

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
            raise ValueError("a tagger needs to see something: give word_dim, character_dim or elmo")
        if (self.finetune or self.elmo_at_output) and not self.elmo:
            raise ValueError("finetune and elmo_at_output need elmo")


@dataclass(frozen=True)
class FitConfig:
    """How a tagger is trained. Equal settings and data give equal taggers."""

    seed: int = 1
    """Of the initial weights, dropout and the order of batches."""
    max_epochs: int = 30
    """Most passes over the training set."""
    patience: int = 4
    """Stop after so many epochs without a better score on the development set."""
    batch_size: int = 32
    """Sentences in a batch."""
    learning_rate: float = 2e-3
    """Adam's; halved after each epoch without a better score."""
    finetune_learning_rate: float = 1e-4
    """Adam's for the biLM, where it is trained too."""
    max_grad_norm: float = 5.0
    """Gradients are scaled down to this norm."""
    device: str | None = None
    """cpu, cuda or cuda:N; cuda where there is one when not given."""

    def __post_init__(self) -> None:
        _check_at_least(self, 0, ("seed",))
        _check_at_least(self, 1, ("max_epochs", "patience", "batch_size"))
        _check_above_zero(self, ("learning_rate", "finetune_learning_rate", "max_grad_norm"))
