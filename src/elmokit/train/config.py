"""The settings of pretraining and fine-tuning, from which the command line is generated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from elmokit.settings import AtLeast, Count, CountOrZero, DropoutRate, Fraction, Positive, check


@dataclass(frozen=True)
class TrainingConfig:
    """The settings that pretraining and fine-tuning share."""

    corpus: tuple[Path, ...]
    """Text, whose lines are split into sentences: files (plain, .gz or .zst), or directories from
    `elmokit prepare`.
    """
    output: Path
    """Directory of the run: log.jsonl, checkpoints/, model/, vocab.txt (if it was built), text/
    (tokenized copies of raw text). Rerun the command to resume an interrupted run.
    """
    heldout: tuple[Path, ...] = ()
    """Held-out text for the perplexity, or pseudo-perplexity where directions are merged, during
    and after training.
    """
    tokenize: bool = True
    """Raw text: split it into sentences and words; else lines are sentences, and spaces separate
    their words.
    """
    language: str | None = None
    """Language code, such as de, whose rules split raw text, and which the model records (default:
    that of the shards of `elmokit prepare`, or of the initial model, or en).
    """
    vocab_size: Annotated[int, AtLeast(4)] = 50_000
    """Maximum size of a vocabulary built from the corpus, with three special words."""
    min_count: Count = 2
    """Minimum frequency of a word in a vocabulary built from the corpus."""
    epochs: Positive = 1.0
    """Passes over the corpus. Ignored with a constant schedule, which has no planned end."""
    max_words: Count | None = None
    """Stop after about this many words, at the end of a step, which reads a whole batch (default:
    no limit).
    """
    batch_size: Count = 128
    """Rows of the token stream (parallel streams of sentences)."""
    unroll_steps: Count = 20
    """Time steps per window: the state is carried from one window to the next, gradients are not.
    An encoder that carries no state reads whole sentences, with batch size times this many
    positions in a step.
    """
    num_samples: CountOrZero = 8192
    """Negative samples of the sampled softmax, per direction and step; 0 for the full softmax."""
    learning_rate: Positive | None = None
    """Peak learning rate (default: 0.2 for the recipe original, 0.002 for modern, 0.004 for
    muon).
    """
    fresh_starts: Fraction | None = None
    """Fraction of sentences that start from zeros although state is carried (default: 0 for
    original, else 0.1).
    """
    dropout: DropoutRate = 0.1
    """Dropout on the input of every layer and on the last output; in other encoders than LSTMs, on
    the token vectors and on what each layer adds to them.
    """
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    """Number type of matrix products; auto: bfloat16 where the hardware supports it. Weights are
    float32.
    """
    device: str | None = None
    """Device: cpu, cuda or cuda:N (default: a GPU if there is one)."""
    threads: Count | None = None
    """CPU threads (default: PyTorch's choice)."""
    seed: CountOrZero = 0
    """Seed of new weights, the order of sentences, dropout and negative samples."""
    log_every: Count = 20
    """Steps between entries of the log."""
    evaluate_every: Count = 500
    """Steps between evaluations of the held-out text."""
    evaluate_words: Count = 20_000
    """Maximum number of words of the held-out text to evaluate during training; at the end, all are
    evaluated.
    """
    checkpoint_every: Count = 200
    """Steps between checkpoints, of which the last two are kept."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class PretrainConfig(TrainingConfig):
    """Settings of a pretraining run: the text, the model, the optimization."""

    preset: Literal[
        "tiny",
        "mini",
        "small",
        "medium",
        "original",
        "small-interleaved",
        "small-transformer",
    ] = "small"
    """tiny (32 dimensions; 0.02 million parameters), mini (256; 2.5), small (256; 13.6), medium
    (512; 28) or original (1024; 94); or another sequence encoder than LSTMs: small-interleaved
    (256; 13.6) or small-transformer (256; 13.6).
    """
    config: Path | None = None
    """Model configuration in place of a preset: a model's config.json, or a file with its "model"
    section.
    """
    initial_model: str | None = None
    """Model whose weights the run starts from, in place of random ones: a directory, a bundled name
    or a Hub id. The run has its configuration and its vocabulary; a model without a softmax can be
    given to `elmokit finetune`.
    """
    vocab: Path | None = None
    """Vocabulary of the softmax, one word per line, sorted by frequency (default: built from the
    corpus).
    """
    tokenizer: str | None = None
    """Tokenizer of the text, which the model records (default: that of `elmokit prepare`, or of the
    language).
    """
    recipe: Literal["muon", "modern", "original"] = "modern"
    """muon (Muon for hidden matrices, AdamW for the rest), modern (AdamW) or original (AdaGrad as
    in bilm-tf).
    """
    schedule: Literal["cosine", "constant", "none"] | None = None
    """cosine (warm-up, decay), constant (warm-up, no planned end) or none, a constant rate
    (default: the recipe's).
    """
    warm_up_steps: Count = 1000
    """Steps over which the learning rate rises from 0, at most 5 % of a run with a planned end."""
    cool_down: Positive | None = None
    """Finish a constant schedule: decay to zero over this many words, or if below 1, this fraction
    of those read. The latest checkpoint is trained further in the subdirectory
    cool-down-STEP-STEPS, which gets a model/ of its own.
    """
    max_hours: Positive | None = None
    """Hours after which this command writes a checkpoint and the model so far, and stops; rerun it
    to resume (default: no limit).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial_model is not None and (self.config is not None or self.vocab is not None):
            raise ValueError(
                "the initial model has a configuration and a vocabulary: omit config and vocab"
            )
        if self.cool_down is not None and self.schedule != "constant":
            raise ValueError(
                'cool_down finishes a run with a constant schedule: set schedule to "constant"'
            )


@dataclass(frozen=True)
class FinetuneConfig(TrainingConfig):
    """Settings of a fine-tuning run: the model, the text of the domain, the optimization."""

    model: str | None = None
    """Model to fine-tune: a directory, a bundled name, or a Hub id OWNER/NAME (default: the bundled
    English model).
    """
    others: tuple[Path, ...] = ()
    """Text of other domains for the perplexity before and after training."""
    vectors: Path | None = None
    """NumPy file (.npy) with a vector for each line of the corpus, which another model computed:
    the model learns to give texts such vectors, beside predicting words. A line is then a text,
    and not split into sentences.
    """
    new_vocab: bool = False
    """Train a new softmax over the words of the corpus, for text with many words that the model's
    lacks.
    """
    epochs: Positive = 2.0
    """Passes over the corpus."""
    softmax_epochs: Positive = 1.0
    """Passes over the corpus to train a new softmax, with the biLM frozen."""
    batch_size: Count = 32
    """Rows of the token stream (parallel streams of sentences)."""
    learning_rate: Positive = 0.0005
    """Peak learning rate of fine-tuning; a new softmax is trained with 0.002."""

    recipe: ClassVar = "modern"
    schedule: ClassVar = None
    warm_up_steps: ClassVar = 1000
    max_hours: ClassVar = None
