"""Downstream models on contextual word vectors.

Here are the settings that all tasks share, without PyTorch, so that the command line starts fast.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from elmokit.settings import (
    Between,
    Count,
    CountOrZero,
    DropoutRate,
    Fraction,
    NonNegative,
    Positive,
    check,
)

# The tasks of elmokit: module of elmokit.tasks -> class.
TASKS = {
    "tagging": "TaggingTask",
    "classification": "ClassificationTask",
    "pairs": "PairsTask",
    "roles": "RolesTask",
    "reading": "ReadingTask",
    "coreference": "CoreferenceTask",
}


TASK_DEFAULT: Any = None  # a setting of `FitConfig` that defaults to the task's


@dataclass(frozen=True)
class WordsConfig:
    """Which vectors a task's network reads for each word; the chosen ones are concatenated."""

    elmo: Literal["none", "input", "output", "both"] = "input"
    """Where ELMo enters: at the input of the network, [x; ELMo], its output, [h; ELMo], or both."""
    mix_l2: NonNegative = 0.0
    """Weight of the L2 penalty on the learned mix weights (the paper compares 1 and 0.001)."""
    elmo_dropout: DropoutRate = 0.5
    """Dropout of ELMo's vectors."""
    word_dim: CountOrZero = 100
    """Width of word vectors learned from the training set; 0: none."""
    character_dim: CountOrZero = 0
    """Width of the output of a character CNN learned from the training set; 0: none."""
    word_dropout: DropoutRate = 0.5
    """Dropout of word vectors and of the character CNN's output."""
    rare_word_dropout: Fraction = 0.5
    """Probability, in training, that a word that occurs once is replaced by the unknown word."""

    def __post_init__(self) -> None:
        check(self)
        if not (self.word_dim or self.character_dim) and self.elmo not in ("input", "both"):
            raise ValueError("the network has no input: give word_dim, character_dim or elmo")


@dataclass(frozen=True)
class FitConfig:
    """How a task's network is trained; what is not given is the task's own default.

    Equal settings and data give equal weights on one machine, with as many threads and the same
    cache of vectors.
    """

    seed: Annotated[int, Between(0, 2**32 - 1)] = TASK_DEFAULT
    """Seed of the initial weights, the dropout and the order of batches."""
    max_epochs: Count = TASK_DEFAULT
    """Maximum number of passes over the training set."""
    max_minutes: Positive | None = None
    """Stop after the epoch in which training has taken this many minutes (default: no limit)."""
    patience: Count = TASK_DEFAULT
    """Stop after this many epochs without a better score on the development set. Epochs before the
    score first changes do not count, since a network may need some to find its first span.
    """
    batch_size: Count = TASK_DEFAULT
    """Examples per batch."""
    learning_rate: Positive = TASK_DEFAULT
    """Learning rate of Adam."""
    halve_after: Count = TASK_DEFAULT
    """Halve the learning rate after this many epochs in a row without a better score."""
    max_grad_norm: Positive = TASK_DEFAULT
    """Maximum norm of the gradients."""
    device: str | None = None
    """Device: cpu, cuda or cuda:N (default: a GPU if there is one)."""

    def __post_init__(self) -> None:
        check(self)

    def over(self, defaults: "FitConfig") -> "FitConfig":
        """These settings, and the defaults where they are not given."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return replace(defaults, **given)


DEFAULT_FIT = FitConfig(
    seed=1,
    max_epochs=30,
    patience=4,
    batch_size=32,
    learning_rate=2e-3,
    halve_after=1,
    max_grad_norm=5.0,
)


@dataclass(frozen=True)
class ColumnsConfig:
    """The layout of files of tagged sentences, each of which may have its own format."""

    format: Literal["conllu", "columns"] | None = None
    """Format (default: by the suffix of the file)."""
    word_column: int = 0
    """Column of the words, from 0 (CoNLL-U has its own)."""
    tag_column: str | int | None = None
    """Column of tags (default: upos of CoNLL-U, which has names; the last of other columns)."""

    def __post_init__(self) -> None:
        check(self)
