"""The knobs of pretraining and fine-tuning, typed once; the command line is made from them. (No torch here.)"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class PretrainConfig:
    """Where the text is, what to train, and how."""

    corpus: tuple[Path, ...]
    """Tokenized text, one sentence a line: files (.txt, .gz, .zst), or directories as `elmokit prepare` writes them."""
    output: Path
    """Directory of the run: log.jsonl, checkpoints/, and at the end model/. The same command resumes a stopped run."""
    heldout: tuple[Path, ...] = ()
    """Tokenized text that is never trained on, for the perplexity while training."""
    preset: Literal["tiny", "small", "medium", "original"] = "small"
    """Size of the model."""
    config: Path | None = None
    """A model configuration instead of a preset: the config.json of a model, or what stands there under "model"."""
    vocab: Path | None = None
    """Vocabulary of the softmax, one word a line, by falling count; made from the corpus when not given."""
    vocab_size: int = 50_000
    """Size of the vocabulary that is made."""
    min_count: int = 2
    """Minimum count of a word of the vocabulary that is made."""
    recipe: Literal["muon", "modern", "original"] = "modern"
    """muon: Muon for the matrices between input and output, AdamW for the rest; modern: AdamW for all; original:
    bilm-tf's AdaGrad 0.2 on the loss times unroll_steps, clipped at 10, with the same rate in all steps."""
    schedule: Literal["cosine", "constant", "none"] | None = None
    """Learning rate: cosine (warm-up, then down over all passes), constant (warm-up, then the same rate for as long as
    the run goes on: see cool_down), none (the same rate in every step). The recipe's own when not given."""
    epochs: float = 1.0
    """Passes over the corpus; with a constant schedule the run has no planned end, and this says nothing."""
    max_words: int | None = None
    """Stop after so many words, if the passes are not over before."""
    max_hours: float | None = None
    """Stop this call after so many hours, with a checkpoint; the same command goes on from there."""
    patience: int | None = None
    """Stop when the held-out perplexity has not improved in so many evaluations; the model is that of the best one."""
    cool_down: float | None = None
    """End a run of constant schedule: from its checkpoint, let the learning rate fall to zero over so many words, or
    (below 1) over this share of the words that were read. The run itself can go on afterwards, and be ended again."""
    cool_down_from: int | None = None
    """Step of the checkpoint to cool down from; the newest when not given."""
    batch_size: int = 128
    """Rows of the packed stream."""
    unroll_steps: int = 20
    """Steps of a window: the state runs on from window to window, the gradient does not."""
    num_samples: int = 8192
    """Negative words of the sampled softmax in each direction and step; 0 for the full softmax."""
    learning_rate: float | None = None
    """0.2 for the original recipe, 0.002 for the modern one, 0.004 for muon when not given."""
    fresh_starts: float | None = None
    """Part of the sentences that start from zeros, as when text is embedded, and not from the state that the sentence
    before them left: 0 for the original recipe, 0.1 for the others when not given."""
    dropout: float = 0.1
    """On the input of every layer and on the last output."""
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    """Precision of matrix products; auto is bfloat16 where the hardware multiplies it. Weights stay in float32."""
    device: str | None = None
    """cpu, cuda or cuda:N; the best there is when not given."""
    threads: int | None = None
    """CPU threads; torch's default when not given."""
    seed: int = 0
    """Seed of the weights, the order of sentences, the dropout and the samples."""
    log_every: int = 20
    """Steps between lines of the log."""
    evaluate_every: int = 500
    """Steps between held-out perplexities."""
    evaluate_words: int = 20_000
    """Words of the held-out text used while training; all of them at the end."""
    checkpoint_every: int = 200
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Checkpoints kept."""
    tokenizer: str | None = None
    """Name kept with the model; taken from the corpus.json of `elmokit prepare` where there is one."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the extra "train")."""

    def __post_init__(self) -> None:
        for name in (
            "batch_size",
            "unroll_steps",
            "log_every",
            "evaluate_every",
            "checkpoint_every",
            "keep_checkpoints",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {self.dropout}")
        if self.max_words is not None and self.max_words < 1:
            raise ValueError(f"max_words must be at least 1, not {self.max_words}")
        if self.num_samples < 0:
            raise ValueError(f"num_samples must be 0 (the full softmax) or more, not {self.num_samples}")
        if self.learning_rate is not None and self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be above 0, not {self.learning_rate}")
        if self.fresh_starts is not None and not 0 <= self.fresh_starts <= 1:
            raise ValueError(f"fresh_starts is a part of the sentences, from 0 to 1, not {self.fresh_starts}")
        for name in ("epochs", "max_hours", "patience", "cool_down"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        if self.patience is not None and not self.heldout:
            raise ValueError("patience needs held-out text: give heldout")
        if self.cool_down is not None and self.schedule != "constant":
            raise ValueError('cool_down ends a run of constant schedule: give schedule "constant" as the run had it')
        if self.cool_down_from is not None and self.cool_down is None:
            raise ValueError("cool_down_from says where cool_down begins: give both")


@dataclass(frozen=True)
class FinetuneConfig:
    """Which model to go on with, on what text, and how."""

    corpus: tuple[Path, ...]
    """Text of the domain, tokenized as the model's training text was, one sentence a line: files, or directories as
    `elmokit prepare` writes them."""
    output: Path
    """Directory of the run: log.jsonl, checkpoints/, and at the end model/ and report.json. The same command resumes
    a stopped run. Where the model has no softmax, the fitting of a new one is a run in softmax/."""
    model: str | None = None
    """Directory or name of the model to begin with; the bundled English model when not given."""
    heldout: tuple[Path, ...] = ()
    """Text of the domain that is never trained on, for the perplexity before, while and after training."""
    others: tuple[Path, ...] = ()
    """Text of other domains, for the perplexity before and after."""
    epochs: float = 2.0
    """Passes over the corpus."""
    softmax_epochs: float = 1.0
    """Passes in which a new softmax is fitted first, all else frozen."""
    max_words: int | None = None
    """Stop after so many words, if the passes are not over before."""
    vocab_size: int = 50_000
    """Size of the vocabulary of a new softmax, which is made from the corpus."""
    min_count: int = 2
    """Minimum count of a word of that vocabulary."""
    batch_size: int = 32
    """Rows of the packed stream."""
    unroll_steps: int = 20
    """Steps of a window: the state runs on from window to window, the gradient does not."""
    num_samples: int = 8192
    """Negative words of the sampled softmax in each direction and step; 0 for the full softmax."""
    learning_rate: float = 0.0005
    """Highest rate of the fine-tuning; a new softmax is fitted at 0.002."""
    fresh_starts: float = 0.1
    """Part of the sentences that start from zeros, as when text is embedded, and not from the state that the sentence
    before them left."""
    dropout: float = 0.1
    """On the input of every layer and on the last output."""
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    """Precision of matrix products; auto is bfloat16 where the hardware multiplies it. Weights stay in float32."""
    device: str | None = None
    """cpu, cuda or cuda:N; the best there is when not given."""
    threads: int | None = None
    """CPU threads; torch's default when not given."""
    seed: int = 0
    """Seed of the order of sentences, the dropout, the samples and a new softmax."""
    log_every: int = 20
    """Steps between lines of the log."""
    evaluate_every: int = 500
    """Steps between held-out perplexities."""
    evaluate_words: int = 20_000
    """Words of the held-out text used while training; all of them before and after."""
    checkpoint_every: int = 200
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Checkpoints kept."""

    def __post_init__(self) -> None:
        if self.softmax_epochs <= 0:
            raise ValueError(f"softmax_epochs must be above 0, not {self.softmax_epochs}")
        self.training()  # refuses what makes no sense there

    def training(self, **changes: Any) -> PretrainConfig:
        """The run as one of pretraining, whose loop it is."""
        shared = {field.name for field in fields(self)} & {field.name for field in fields(PretrainConfig)}
        return PretrainConfig(**{name: getattr(self, name) for name in shared} | changes)
