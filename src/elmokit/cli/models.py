"""Verbs that train, evaluate, query, convert, describe and serve a language model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from tyro.conf import Positional, arg

from elmokit.cli.console import output_file, show
from elmokit.cli.options import (
    UNSET,
    Column,
    ComputeDtype,
    Device,
    Json,
    Language,
    Model,
    Overwrite,
    Tokenize,
    state_defaults_in_text,
)
from elmokit.extras import import_extra
from elmokit.serve import ServeConfig
from elmokit.settings import StatePolicy
from elmokit.train import FinetuneConfig, PretrainConfig

state_defaults_in_text(PretrainConfig)
state_defaults_in_text(FinetuneConfig)
state_defaults_in_text(ServeConfig)

PREPARE_INPUTS = (
    "Raw text: text files with one paragraph per line and blank lines between documents (plain, "
    ".gz or .zst); tables (.csv, .tsv, .jsonl, also .gz or .zst, or .parquet) with one document "
    "per row; or protein sequences (.fasta, .fa or .faa, also .gz or .zst), whose words are their "
    "residues."
)
PREPARE_LANGUAGE = (
    "Language code, such as de, whose rules split the text into sentences (default: en, unless a "
    "tokenizer is given). There are rules for am, ar, bg, bn, ca, da, de, el, en, es, fi, fr, gu, "
    "hi, hy, it, ja, kk, kn, ml, mr, my (which needs a tokenizer as well), nl, pa, pl, pt, ru, sk, "
    "ta, te, th, uk and zh. Other languages use the rules of a related one, with a warning."
)
PREPARE_TOKENIZER = (
    "Tokenizer (default: the one of the language): english-1 (en), characters-1 (zh and ja, one "
    "token per ideograph), pythainlp (th), words-1 (other languages with spaces between words), "
    "rjieba (zh words), unidic-lite (ja words), spacy:MODEL, spacy:LANGUAGE (a blank spaCy "
    "pipeline) or whitespace-1 (text that is already tokenized, one sentence per line). Models "
    "trained on the shards record its name."
)
EVALUATE_STATE = (
    "Initial state of a sentence: zeros, the model's warm state, or carry, the final state of an "
    "earlier sentence (default: carry; zeros for a model that carries no state)."
)
SCORE_OUTPUT = (
    "JSON lines (.jsonl), one object per sentence; or a table (.csv, .tsv or .parquet) with a row "
    "per word: line, position, word, its first character in the line and the one after its last, "
    "the number of the word between white space that it is in, surprisal given the words before it "
    "(forward) and given the words after it (backward), and 1 for a word outside the vocabulary, "
    "which is scored as <UNK>. A model that merges the directions has one surprisal, given all "
    "other words (masked). - is standard output."
)
SCORE_PER = (
    "Rows of the table: words as the model reads them (token); or, with their surprisals added up, "
    "words between white space (word), or regions of the text, which | separates (region)."
)


@dataclass(frozen=True)
class Prepare:
    """Split raw text into sentences and tokens, drop duplicates, and write shuffled shards.

    Examples, in a checkout of elmokit:
        elmokit prepare examples/data/raw/*.txt --exclude examples/data/heldout.txt --output runs/shards
    """  # noqa: E501

    inputs: Annotated[
        Positional[tuple[Path, ...]],
        arg(metavar="INPUT [INPUT ...]", help=PREPARE_INPUTS, help_behavior_hint="(required)"),
    ]
    output: Path
    """Directory for the shards, their summary (corpus.json) and the list of dropped documents
    (dropped.jsonl).
    """
    language: Annotated[str | None, arg(help=PREPARE_LANGUAGE), UNSET] = None
    tokenizer: Annotated[str | None, arg(help=PREPARE_TOKENIZER), UNSET] = None
    column: str = "text"
    """Column of a table (CSV, TSV, JSON lines, Parquet) with the text."""
    lines: Literal["paragraphs", "wrapped"] = "paragraphs"
    """What a line of a text file is: a paragraph, with blank lines between documents; or a part of
    one (wrapped), with blank lines between paragraphs: a document is then a file.
    """
    drop_duplicates: Literal["near", "exact", "none"] = "near"
    """Drop documents that repeat an earlier one, up to white space (exact), or nearly (near)."""
    drop_paragraphs: bool = True
    """Drop paragraphs of at least 100 characters that occurred before."""
    exclude: Annotated[tuple[Path, ...], UNSET] = ()
    """Held-out files, whose documents, near duplicates and paragraphs of at least 100 characters
    are dropped.
    """
    num_shards: Annotated[int | None, UNSET] = None
    """Number of shards, each of which must fit in memory (default: one per 16 MB of input, at most
    256).
    """
    processes: Annotated[int | None, UNSET] = None
    """Worker processes (default: one per core). The output does not depend on it."""
    seed: int = 0
    """Seed of the shuffling."""
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.data import prepare

        show(prepare(**vars(self)))
        show(f"{self.output}: the shards, and corpus.json with these counts and all options")


@dataclass(frozen=True)
class Pretrain:
    """Pretrain a bidirectional language model on text. Rerun to resume an interrupted run.

    Two cores with AVX-512 read 100 million words in about 8 hours with the preset small. The LSTMs
    of medium and original do 4 and 16 times as much work per word.

    Examples, in a checkout of elmokit:
        elmokit pretrain --corpus runs/shards --heldout examples/data/heldout.txt --preset tiny --epochs 10 --output runs/tiny
    """  # noqa: E501

    settings: Annotated[PretrainConfig, arg(name="")]

    def run(self) -> None:
        from elmokit.train import pretrain

        show(pretrain(self.settings))


@dataclass(frozen=True)
class Finetune:
    """Continue training a model on text of a domain. Rerun to resume an interrupted run.

    Examples, in a checkout of elmokit:
        elmokit finetune --corpus runs/shards --heldout examples/data/heldout.txt --max-words 10000 --output runs/speeches
    """  # noqa: E501

    settings: Annotated[FinetuneConfig, arg(name="")]

    def run(self) -> None:
        from elmokit.train import finetune

        show(finetune(self.settings))


@dataclass(frozen=True)
class Evaluate:
    """Compute the exact perplexity of text, forward and backward; or score a task model.

    A model that merges the two directions has a pseudo-perplexity instead (each word given all
    others of its sentence), which is another quantity and cannot be compared with a perplexity. It
    reads sentences of more than 1,024 words in windows of at most that length. A task model, a
    directory that `elmokit fit` wrote, is scored on a file of examples with answers; only --task
    and --device apply to it.

    Examples, in a checkout of elmokit:
        elmokit evaluate examples/data/heldout.txt --model runs/tiny/model
        elmokit evaluate examples/data/test.conllu --model runs/tagger
    """

    files: Annotated[
        Positional[tuple[Path, ...]],
        arg(metavar="FILE [FILE ...]", help_behavior_hint="(required)"),
    ]
    """Text (plain, .gz or .zst), whose lines are split into sentences; or directories written by
    `elmokit prepare`. Of a task model: a file in the task's format.
    """
    model: Model = None
    state: Annotated[StatePolicy | None, arg(help=EVALUATE_STATE), UNSET] = None
    batch_size: int = 32
    """With --state carry, the number of texts read side by side: sentence i starts from the final
    state of sentence i - batch size, as in training; 1 reads the file as one text.
    """
    device: Device = None
    tokenize: Tokenize = True
    language: Language = None
    task: Annotated[str | None, UNSET] = None
    """FILE.py:CLASS of a task of your own, for a task model."""

    def run(self) -> None:
        from elmokit.lm import evaluate
        from elmokit.tasks.fitting.model import WEIGHTS, load_task_model

        options = dict(vars(self))
        task = options.pop("task")
        if self.model is None or not (Path(self.model).expanduser() / WEIGHTS).is_file():
            show(evaluate(**options))
        else:
            task_model = load_task_model(self.model, self.device, task)
            for file in self.files:
                show(task_model.score(file))


@dataclass(frozen=True)
class Score:
    """Write the log-probability of every word of a file, given its left and its right context.

    A model that merges the two directions predicts each word from all others of its sentence.

    Examples, in a checkout of elmokit:
        elmokit score examples/data/sentences.txt --output runs/scores.jsonl
        elmokit score examples/data/sentences.txt --output runs/surprisal.csv --bits
    """

    WRITES_STANDARD_OUTPUT: ClassVar[bool] = True
    file: Positional[Path]
    """Text, one sentence per line, or a table (.csv, .tsv, .jsonl or .parquet); plain, .gz or .zst.
    Blank lines are skipped.
    """
    output: Annotated[Path, arg(help=SCORE_OUTPUT)]
    per: Annotated[Literal["token", "word", "region"], arg(help=SCORE_PER)] = "token"
    group: Annotated[tuple[str, ...], UNSET] = ()
    """Columns of a table with a region in each row: consecutive rows with the same values there are
    one sentence.
    """
    bits: bool = False
    """Use logarithms to base 2 instead of natural ones."""
    overwrite: Overwrite = False
    model: Model = None
    state: StatePolicy = "zeros"
    """Initial state of a sentence: zeros, the model's warm state, or the final state of the
    sentence before.
    """
    batch_size: int = 1
    """With --state carry, the number of texts read side by side: sentence i starts from the final
    state of sentence i - batch size.
    """
    device: Device = None
    tokenize: Tokenize = True
    column: Column = None
    json: Annotated[bool, arg(help="Print the perplexity as JSON.")] = False

    def run(self) -> None:
        from elmokit.lm import score_file

        options: dict[str, Any] = dict(vars(self))
        del options["json"]
        is_nested = self.per == "token" and not self.group
        with output_file(self.output, ".jsonl" if is_nested else ".tsv") as output:
            show(score_file(**{**options, "output": output}), self.json)
            if not self.json:
                show(f"{self.output}: the scores")


@dataclass(frozen=True)
class Substitutes:
    """Print the most likely replacements of each word of a sentence, with log-probabilities.

    Examples, in a checkout of elmokit:
        elmokit substitutes "The house stands near the river." --positions 1 5
    """

    sentence: Positional[str]
    """Sentence whose words to replace."""
    positions: Annotated[tuple[int, ...], UNSET] = ()
    """Positions of the words to replace, from 0 (default: all)."""
    top: int = 10
    """Number of candidates per word."""
    direction: Literal["both", "forward", "backward"] = "both"
    """Context: the words before (forward), the words after (backward), or both."""
    model: Model = None
    state: Literal["zeros", "warm"] = "zeros"
    """Initial state: zeros, or the model's warm state."""
    tokenize: Tokenize = True
    json: Json = False

    def run(self) -> None:
        from elmokit.lm import substitutes

        options: dict[str, Any] = {**vars(self), "positions": self.positions or None}
        del options["json"]
        show(substitutes(**options), self.json)


@dataclass(frozen=True)
class NextWords:
    """Print the most likely next words of an unfinished sentence, with their log-probabilities.

    Examples, in a checkout of elmokit:
        elmokit next-words "Once upon a time there was a"
    """

    sentence: Positional[str]
    """The words so far."""
    top: int = 10
    """Number of candidates. </S> means that the sentence ends."""
    direction: Literal["forward", "backward"] = "forward"
    """Predict the word after the given words (forward), or the word before them (backward)."""
    model: Model = None
    state: Literal["zeros", "warm"] = "zeros"
    """Initial state: zeros, or the model's warm state."""
    tokenize: Tokenize = True
    json: Json = False

    def run(self) -> None:
        from elmokit.lm import next_words

        options = dict(vars(self))
        del options["json"]
        show(next_words(**options), self.json)


@dataclass(frozen=True)
class Convert:
    """Convert a model to another format: elmokit's own, the HDF5 files of AllenNLP and bilm-tf, or
    ONNX.

    The function `elmokit.push_to_hub` publishes a model on the Hugging Face Hub.

    Examples, in a checkout of elmokit:
        elmokit convert --model en-small --to hdf5 --output runs/hdf5
    """

    model: str
    """Model to convert, in any format that `elmokit.load` reads."""
    output: Path
    """Directory for the model, or file for onnx."""
    to: Literal["native", "hdf5", "onnx"] = "native"
    """elmokit's directory, options.json and weights.hdf5, or an ONNX file."""
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.checkpoints import convert

        show(convert(self.model, self.output, self.to, overwrite=self.overwrite))


@dataclass(frozen=True)
class Info:
    """Describe a model (format, sizes, vocabulary, language, tokenizer) and available backends.

    Examples, in a checkout of elmokit:
        elmokit info
    """

    model: Model = None
    full: bool = False
    """Add the files, all settings, and the card, which says what the model was trained on and how
    good it is.
    """

    def run(self) -> None:
        from elmokit.checkpoints import describe
        from elmokit.ops import describe_backends

        facts = describe(self.model)
        card = facts.pop("card", [])
        if not self.full:
            details = {"files", "input", "model", "state", "mix", "fingerprint"}
            facts = {
                name: value
                for name, value in facts.items()
                if name not in details and value is not None
            }
            card = ["elmokit info --full prints all settings, and the card"]
        show({**facts, **describe_backends()})
        if card:
            print("", *card, sep="\n")


@dataclass(frozen=True)
class Serve:
    """Serve a model over HTTP, with a web page to explore it, until the process is stopped.

    It serves vectors in the formats of OpenAI's API and of text-embeddings-inference; neighbors,
    senses, scores and substitutes of words; and predictions of a task model.
    docs/tutorials/serve.md describes the requests.

    Examples, in a checkout of elmokit:
        elmokit serve --corpus examples/data/sentences.txt
        elmokit serve --model en-small --task-model runs/tagger --port 8080
    """

    model: Model = None
    config: Annotated[ServeConfig, arg(name="")] = ServeConfig()  # noqa: RUF009
    dtype: ComputeDtype = "float32"
    device: Device = None

    def run(self) -> None:
        server = import_extra("elmokit.serve.server", "serve")
        server.serve(self.model, self.config, self.device, self.dtype)
