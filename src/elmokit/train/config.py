"""The settings of pretraining and fine-tuning. The command line is generated from them, so torch is not imported."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from elmokit.settings import check


def _as_paths(config: Any, one: Iterable[str], several: Iterable[str]) -> None:
    """Convert strings in these settings to paths, and a single path in `several` to a tuple."""
    for name in one:
        value = getattr(config, name)
        object.__setattr__(config, name, value if value is None else Path(value))
    for name in several:
        value = getattr(config, name)
        object.__setattr__(config, name, tuple(map(Path, [value] if isinstance(value, str | Path) else value)))


@dataclass(frozen=True)
class PretrainConfig:
    """Settings of a pretraining run: the text, the model, the optimization."""

    corpus: tuple[Path, ...]
    """Text, whose lines are split into sentences: files (plain, .gz or .zst), or directories from `elmokit prepare`."""
    output: Path
    """Directory of the run: log.jsonl, checkpoints/, model/, the vocabulary that was built, text/ (tokenized copies of
    raw text) and best/ (with patience); each cool-down writes its own subdirectory, cool-down-STEP-STEPS, with its
    model/. Rerun the command to resume an interrupted run."""
    heldout: tuple[Path, ...] = ()
    """Held-out text for the perplexity during training (or pseudo-perplexity, where directions are merged)."""
    preset: Literal[
        "tiny", "small", "medium", "original", "small-interleaved", "small-transformer", "small-gated-cnn"
    ] = "small"
    """tiny (32 dimensions; 0.02 million parameters), small (256; 13.6), medium (512; 28) or original (1024; 94);
    or another sequence encoder than LSTMs: small-interleaved (256; 13.6), small-transformer (256; 13.6) or
    small-gated-cnn (256; 13.6)."""
    config: Path | None = None
    """Model configuration in place of a preset: a model's config.json, or a file with its "model" section."""
    initial_model: str | None = None
    """Model whose weights the run starts from, in place of random ones: a directory, a bundled name or a Hub id. The
    run has its configuration and its vocabulary; a model without a softmax can be given to `elmokit finetune`."""
    vocab: Path | None = None
    """Vocabulary of the softmax, one word per line, sorted by frequency (default: built from the corpus)."""
    vocab_size: int = 50_000
    """Maximum size of a vocabulary built from the corpus."""
    min_count: int = 2
    """Minimum frequency of a word in a vocabulary built from the corpus."""
    recipe: Literal["muon", "modern", "original"] = "modern"
    """muon (Muon for hidden matrices, AdamW for the rest), modern (AdamW) or original (AdaGrad as in bilm-tf)."""
    schedule: Literal["cosine", "constant", "none"] | None = None
    """cosine (warm-up, decay), constant (warm-up, no planned end) or none, a constant rate (default: the recipe's)."""
    warm_up_steps: int = 1000
    """Steps over which the learning rate rises from 0, at most 5 % of a run with a planned end."""
    epochs: float = 1.0
    """Passes over the corpus. A higher number extends a finished run, whose schedule begins anew at its former end.
    Ignored with a constant schedule, which has no planned end."""
    max_words: int | None = None
    """Stop after about this many words, at the end of a step, which reads a whole batch (default: no limit)."""
    max_hours: float | None = None
    """Hours after which this command writes a checkpoint and stops; rerun it to resume (default: no limit)."""
    patience: int | None = None
    """Stop after this many held-out evaluations without improvement, and keep the best model (default: never). A
    cool-down has a planned end, and is not stopped."""
    cool_down: float | None = None
    """Finish a constant schedule: decay to zero over this many words, or if below 1, this fraction of those read."""
    cool_down_from: int | None = None
    """Step of the checkpoint to cool down from (default: the latest)."""
    batch_size: int = 128
    """Rows of the token stream (parallel streams of sentences)."""
    accumulation: int = 1
    """Number of parts of a batch that are computed one after the other, adding up their gradients, to save memory."""
    unroll_steps: int = 20
    """Time steps per window: the state is carried from one window to the next, gradients are not. An encoder that
    carries no state reads whole sentences, with batch size times this many positions in a step."""
    num_samples: int = 8192
    """Negative samples of the sampled softmax, per direction and step; 0 for the full softmax."""
    learning_rate: float | None = None
    """Peak learning rate (default: 0.2 for the recipe original, 0.002 for modern, 0.004 for muon)."""
    fresh_starts: float | None = None
    """Fraction of sentences that start from a zero state, although state is carried (default: 0 for original, else
    0.1)."""
    dropout: float = 0.1
    """Dropout on the input of every layer and on the output of the last; with another encoder than LSTMs, on the token
    vectors and on what each layer adds to them."""
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    """Number type of matrix products; auto: bfloat16 where the hardware supports it. Weights are float32."""
    device: str | None = None
    """Device: cpu, cuda or cuda:N (default: a GPU if there is one)."""
    threads: int | None = None
    """CPU threads (default: PyTorch's choice)."""
    seed: int = 0
    """Seed of the initial weights, the order of sentences, dropout and negative samples."""
    log_every: int = 20
    """Steps between entries of the log."""
    evaluate_every: int = 500
    """Steps between evaluations of the held-out text."""
    evaluate_words: int = 20_000
    """Maximum number of words of the held-out text to evaluate during training; at the end, all are evaluated."""
    checkpoint_every: int = 200
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Number of checkpoints to keep."""
    tokenize: bool = True
    """Raw text: split it into sentences and words. With --no-tokenize, lines are sentences, and spaces separate their
    words."""
    tokenizer: str | None = None
    """Tokenizer of the text, which the model records (default: that of `elmokit prepare`, or of the language)."""
    language: str | None = None
    """Language code, such as de, whose rules split raw text (default: en, unless a tokenizer is given)."""
    tensorboard: bool = False
    """Write TensorBoard events as well (needs tensorboard)."""

    def __post_init__(self) -> None:
        _as_paths(self, ("output", "config", "vocab"), ("corpus", "heldout"))
        check(self)
        for name in (
            "warm_up_steps",
            "min_count",
            "batch_size",
            "accumulation",
            "unroll_steps",
            "log_every",
            "evaluate_every",
            "evaluate_words",
            "checkpoint_every",
            "keep_checkpoints",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, not {self.threads}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {self.dropout}")
        if self.max_words is not None and self.max_words < 1:
            raise ValueError(f"max_words must be at least 1, not {self.max_words}")
        if self.num_samples < 0:
            raise ValueError(f"num_samples must be 0 (the full softmax) or more, not {self.num_samples}")
        if self.vocab_size < 4:
            raise ValueError(f"vocab_size must be at least 4, as three words are special, not {self.vocab_size}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be from 0 to 2**63 - 1, not {self.seed}")
        if self.fresh_starts is not None and not 0 <= self.fresh_starts <= 1:
            raise ValueError(f"fresh_starts must be from 0 to 1, not {self.fresh_starts}")
        for name in ("learning_rate", "epochs", "max_hours", "patience", "cool_down"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, not {value}")
        if self.initial_model is not None and (self.config is not None or self.vocab is not None):
            raise ValueError("the initial model has a configuration and a vocabulary: omit config and vocab")
        if self.patience is not None and not self.heldout:
            raise ValueError("patience needs held-out text: set heldout")
        if self.cool_down is not None and self.schedule != "constant":
            raise ValueError('cool_down finishes a run with a constant schedule: set schedule to "constant"')
        if self.cool_down_from is not None and self.cool_down is None:
            raise ValueError("cool_down_from needs cool_down: set both")


@dataclass(frozen=True)
class FinetuneConfig:
    """Settings of a fine-tuning run: the model, the text of the domain, the optimization."""

    corpus: tuple[Path, ...]
    """Text of the domain, whose lines are split into sentences: files, or directories from `elmokit prepare`."""
    output: Path
    """Directory of the run: log.jsonl, checkpoints/, model/, report.json; and softmax/ if a softmax is trained."""
    model: str | None = None
    """Model to fine-tune: a directory, a bundled name, or a Hub id OWNER/NAME (default: the bundled English model)."""
    heldout: tuple[Path, ...] = ()
    """Held-out text of the domain for the perplexity before, during and after training."""
    others: tuple[Path, ...] = ()
    """Text of other domains for the perplexity before and after training."""
    tokenize: bool = True
    """Raw text: split it with the model's tokenizer. With --no-tokenize, lines are sentences, and spaces separate their
    words."""
    language: str | None = None
    """Language code, such as de, whose rules split raw lines into sentences (default: the tokenizer's rules)."""
    new_vocab: bool = False
    """Train a new softmax over the words of the corpus, for text with many words that the model's lacks."""
    epochs: float = 2.0
    """Passes over the corpus."""
    softmax_epochs: float = 1.0
    """Passes over the corpus to train a new softmax, with the biLM frozen."""
    max_words: int | None = None
    """Stop after about this many words, at the end of a step, which reads a whole batch (default: no limit). The limit
    holds for the training of a new softmax, too."""
    vocab_size: int = 50_000
    """Maximum size of the vocabulary of a new softmax."""
    min_count: int = 2
    """Minimum frequency of a word in that vocabulary."""
    batch_size: int = 32
    """Rows of the token stream (parallel streams of sentences)."""
    unroll_steps: int = 20
    """Time steps per window: the state is carried from one window to the next, gradients are not. An encoder that
    carries no state reads whole sentences, with batch size times this many positions in a step."""
    num_samples: int = 8192
    """Negative samples of the sampled softmax, per direction and step; 0 for the full softmax."""
    learning_rate: float = 0.0005
    """Peak learning rate of fine-tuning; a new softmax is trained with 0.002."""
    fresh_starts: float = 0.1
    """Fraction of sentences that start from a zero state, although state is carried."""
    dropout: float = 0.1
    """Dropout on the input of every layer and on the output of the last; with another encoder than LSTMs, on the token
    vectors and on what each layer adds to them."""
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    """Number type of matrix products; auto: bfloat16 where the hardware supports it. Weights are float32."""
    device: str | None = None
    """Device: cpu, cuda or cuda:N (default: a GPU if there is one)."""
    threads: int | None = None
    """CPU threads (default: PyTorch's choice)."""
    seed: int = 0
    """Seed of the order of sentences, dropout, negative samples and a new softmax."""
    log_every: int = 20
    """Steps between entries of the log."""
    evaluate_every: int = 500
    """Steps between evaluations of the held-out text."""
    evaluate_words: int = 20_000
    """Maximum number of words of the held-out text to evaluate during training; before and after, all are evaluated."""
    checkpoint_every: int = 200
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Number of checkpoints to keep."""

    def __post_init__(self) -> None:
        _as_paths(self, ("output",), ("corpus", "heldout", "others"))
        if not 0 < self.softmax_epochs < math.inf:
            raise ValueError(f"softmax_epochs must be above 0 and finite, not {self.softmax_epochs}")
        self.training()  # checks the settings that both share

    def training(self, **changes: Any) -> PretrainConfig:
        """The settings of the training loop, which fine-tuning shares with pretraining; `changes` replace some."""
        shared = {field.name for field in fields(self)} & {field.name for field in fields(PretrainConfig)}
        return PretrainConfig(**{name: getattr(self, name) for name in shared} | changes)
