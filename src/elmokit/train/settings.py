"""The knobs of pretraining, typed once; the command line is made from them. (No torch here.)"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class PretrainSettings:
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
    recipe: Literal["modern", "original"] = "modern"
    """modern: AdamW, warm-up, cosine; original: bilm-tf's AdaGrad 0.2 on the loss times unroll_steps, clipped at 10."""
    epochs: float = 1.0
    """Passes over the corpus."""
    max_words: int | None = None
    """Stop after so many words, if the passes are not over before."""
    batch_size: int = 128
    """Rows of the packed stream."""
    unroll_steps: int = 20
    """Steps of a window: the state runs on from window to window, the gradient does not."""
    num_samples: int = 8192
    """Negative words of the sampled softmax in each direction and step; 0 for the full softmax."""
    learning_rate: float | None = None
    """0.2 for the original recipe, 0.002 for the modern one when not given."""
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
        if self.epochs <= 0:
            raise ValueError(f"epochs must be above 0, not {self.epochs}")
