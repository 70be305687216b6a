"""Verbs that make a language model, measure it, and ask it for words."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from elmokit.cli.options import UNSET, Device, Model, State, Tokenize
from elmokit.cli.show import show
from elmokit.train.config import FinetuneConfig, PretrainConfig

PREPARE_INPUTS = (
    "Raw text: text files of a paragraph a line and a blank line between documents (plain, .gz or .zst), JSON lines "
    "(.jsonl, .jsonl.gz, .jsonl.zst) or Parquet files (.parquet) of a document a record."
)
PREPARE_LANGUAGE = (
    "Code of the language, such as de, by whose rules sentences are found; English when neither it nor a tokenizer is "
    "given. There are rules for am, ar, bg, bn, ca, da, de, el, en, es, fi, fr, gu, hi, hy, it, ja, kk, kn, ml, mr, "
    "my, nl, pa, pl, pt, ru, sk, ta, te, th, uk and zh. Others are split by those of a related one, with a warning."
)
PREPARE_TOKENIZER = (
    "What splits sentences into tokens; when not given, the one for the language: english-1 (en), characters-1 (zh and "
    "ja, each ideograph a token), pythainlp (th), words-1 (all others with spaces between words). Further rjieba "
    "(words of zh), unidic-lite (words of ja), spacy:MODEL, spacy:LANGUAGE (its blank pipeline), whitespace-1 (text "
    "that is split already, one sentence a line). Models that are trained on the shards keep the name."
)


@dataclass(frozen=True)
class Prepare:
    """Split raw text into sentences and tokens: shuffled shards without duplicates, with one sentence a line.

    The same command goes on where one was stopped.
    """

    inputs: Annotated[
        Positional[tuple[Path, ...]],
        arg(metavar="INPUT [INPUT ...]", help=PREPARE_INPUTS, help_behavior_hint="(required)"),
    ]
    output: Path
    """Directory for the shards, their summary (corpus.json) and a list of what was left out (dropped.jsonl)."""
    language: Annotated[str | None, arg(help=PREPARE_LANGUAGE), UNSET] = None
    tokenizer: Annotated[str | None, arg(help=PREPARE_TOKENIZER), UNSET] = None
    text_field: str = "text"
    """Field of a JSON object, or column of a Parquet file, that holds the text."""
    drop_duplicates: Literal["near", "exact", "none"] = "near"
    """Leave out documents that equal an earlier one but for white space (exact), or those and near duplicates."""
    similarity: float = 0.8
    """Share of common runs of five words (Jaccard) from which on two documents are near duplicates."""
    drop_paragraphs: bool = True
    """Leave out paragraphs of at least 100 characters that occurred before."""
    exclude: Annotated[tuple[Path, ...], UNSET] = ()
    """Held-out files: what equals or is near a document of theirs is left out, and their long paragraphs are."""
    num_shards: Annotated[int | None, UNSET] = None
    """Number of shards; one for each 16 MB of text, at most 256, when not given. Each must fit in memory."""
    processes: Annotated[int | None, UNSET] = None
    """Worker processes, one per core when not given. The shards do not depend on it."""
    seed: int = 0
    """Seed of the order of documents: of the shard of each, and of its place there."""

    def run(self) -> None:
        from elmokit.data.prepare import prepare

        show(prepare(**vars(self)))


@dataclass(frozen=True)
class Pretrain:
    """Pretrain a bidirectional language model on tokenized text. The same command resumes a run that was stopped."""

    settings: Annotated[PretrainConfig, arg(name="")]

    def run(self) -> None:
        from elmokit.runtime import keep_freed_memory
        from elmokit.train.pretrain import pretrain

        keep_freed_memory()
        show(pretrain(self.settings))


@dataclass(frozen=True)
class Finetune:
    """Go on training a model on text of a domain. The same command resumes a run that was stopped."""

    settings: Annotated[FinetuneConfig, arg(name="")]

    def run(self) -> None:
        from elmokit.runtime import keep_freed_memory
        from elmokit.train.finetune import finetune

        keep_freed_memory()
        show(finetune(self.settings))


@dataclass(frozen=True)
class Evaluate:
    """Exact perplexity of tokenized text under a model: forward, backward and their mean."""

    files: Annotated[Positional[tuple[Path, ...]], arg(metavar="FILE [FILE ...]", help_behavior_hint="(required)")]
    """Tokenized text (plain, .gz or .zst), one sentence a line; or directories as `elmokit prepare` writes them."""
    model: Model = None
    state: State = "carry"
    """LSTM state at the start of a sentence: zeros, the model's warm state, or carried on from the sentence before."""
    batch_size: int = 1
    """Rows read side by side. With carried state, sentence i belongs to row i mod batch size."""
    device: Device = None

    def run(self) -> None:
        from elmokit.lm.evaluate import evaluate

        show(evaluate(**vars(self)))


@dataclass(frozen=True)
class Score:
    """Write the log-probability of every word of a file, given the words before it and given those after it."""

    file: Positional[Path]
    """Text (plain, .gz or .zst), one sentence a line. Blank lines are no sentences."""
    output: Path
    """File for the scores, a JSON line for each sentence (.jsonl, .jsonl.gz or .jsonl.zst)."""
    model: Model = None
    state: State = "zeros"
    """LSTM state at the start of a sentence: zeros, the model's warm state, or carried on from the one before."""
    batch_size: int = 1
    """Rows read side by side. With carried state, sentence i belongs to row i mod batch size."""
    device: Device = None
    tokenize: Tokenize = False

    def run(self) -> None:
        from elmokit.lm.scoring import score_file

        show(score_file(**vars(self)))


@dataclass(frozen=True)
class Substitutes:
    """Print the words that are likeliest in the place of each word of a sentence, with their log-probabilities."""

    sentence: Positional[str]
    """The sentence; it is split as the model's training text was."""
    positions: tuple[int, ...] = ()
    """Words to find substitutes for, from 0; all of them when not given."""
    top: int = 10
    """How many to print."""
    direction: Literal["both", "forward", "backward"] = "both"
    """Given the words on both sides (the sum of two log-probabilities), or those before or after it alone."""
    model: Model = None
    state: Literal["zeros", "warm"] = "zeros"
    """LSTM state at the start of the sentence: zeros, or the model's warm state."""

    def run(self) -> None:
        from elmokit.checkpoints.loading import load
        from elmokit.lm.scoring import substitutes, words_of

        model = load(self.model)
        words = words_of(model, self.sentence)
        positions = self.positions or tuple(range(len(words)))
        found = substitutes(words, model, positions=positions, top=self.top, direction=self.direction, state=self.state)
        places = (f"{position} {words[position]}" for position in positions)
        show({place: ", ".join(map(str, row)) for place, row in zip(places, found, strict=True)})


@dataclass(frozen=True)
class NextWords:
    """Print the likeliest next words after the beginning of a sentence, with their log-probabilities."""

    sentence: Positional[str]
    """The words so far; they are split as the model's training text was."""
    top: int = 10
    """How many to print. </S> says that the sentence ends, <UNK> stands for all words outside the vocabulary."""
    direction: Literal["forward", "backward"] = "forward"
    """backward: the words before the end of a sentence."""
    model: Model = None
    state: Literal["zeros", "warm"] = "zeros"
    """LSTM state at the start of the sentence: zeros, or the model's warm state."""

    def run(self) -> None:
        from elmokit.checkpoints.loading import load
        from elmokit.lm.scoring import next_words

        found = next_words(self.sentence, load(self.model), top=self.top, direction=self.direction, state=self.state)
        show({each.word: each.log_probability for each in found})
