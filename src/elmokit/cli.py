"""The command line: one frozen dataclass per verb, whose fields are its options and whose docstrings are its help.

Nothing is computed here: a verb imports the function that does the job when it runs, so that `--help` loads no PyTorch.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, arg

import elmokit
from elmokit.tasks.settings import FitConfig, TaggerConfig
from elmokit.train.settings import PretrainSettings

Model = Annotated[str | None, arg(help="Directory or name of the model; the bundled English model when not given.")]
Device = Annotated[str | None, arg(help="cpu, cuda or cuda:N; the best there is when not given.")]
State = Literal["zeros", "warm", "carry"]
OneLayer = Literal["mix", "average", "top"] | int
TaskFormat = Annotated[Literal["conllu", "columns"] | None, arg(help="Told by the suffix .conllu when not given.")]
WordColumn = Annotated[int, arg(help="Column of the words, from 0 (CoNLL-U has its own).")]
TagColumn = Annotated[
    str | None, arg(help="Its name in CoNLL-U (upos), its number elsewhere (the last), when not given.")
]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            yield f"{indent}{name}:"
            yield from (f"{indent}  {_text(item)}" for item in value)
        else:
            yield f"{indent}{name}: {_text(value)}"


def _show(result: Any) -> None:
    """Print what a verb found: a dataclass or dict as `name: value`, a line each, anything else as it is."""
    if is_dataclass(result) and not isinstance(result, type):
        result = asdict(result)
    print("\n".join(_lines(result)) if isinstance(result, Mapping) else result)


@dataclass(frozen=True)
class Prepare:
    """Split raw text into sentences and tokens: shards with one sentence a line."""

    inputs: Positional[tuple[Path, ...]]
    """Text files (plain, .gz or .zst), a paragraph a line, a blank line between documents."""
    output: Path
    """Directory for the shards and their summary, corpus.json."""
    tokenizer: str = "english-1"
    """whitespace-1, english-1, characters-1 or spacy:MODEL. Models that are trained on the shards keep the name."""
    num_shards: int | None = None
    """Number of shards; chosen from the size of the inputs when not given."""
    processes: int | None = None
    """Worker processes, one per core when not given. The shards do not depend on it."""
    seed: int = 0
    """Seed of the assignment of documents to shards."""

    def run(self) -> None:
        from elmokit.data.prepare import prepare

        _show(prepare(**vars(self)))


@dataclass(frozen=True)
class Pretrain:
    """Pretrain a bidirectional language model on tokenized text. The same command resumes a run that was stopped."""

    settings: Annotated[PretrainSettings, arg(name="")]

    def run(self) -> None:
        from elmokit.train.pretrain import pretrain

        print(f"model: {pretrain(self.settings)}")


@dataclass(frozen=True)
class Evaluate:
    """Exact perplexity of tokenized text under a model: forward, backward and their mean."""

    files: Positional[tuple[Path, ...]]
    """Tokenized text (plain, .gz or .zst), one sentence a line."""
    model: Model = None
    state: State = "carry"
    """LSTM state at the start of a sentence: zeros, the model's warm state, or carried on from the sentence before."""
    batch_size: int = 1
    """Rows read side by side. With carried state, sentence i belongs to row i mod batch size."""
    device: Device = None

    def run(self) -> None:
        from elmokit.lm.evaluate import evaluate_files

        _show(evaluate_files(**vars(self)))


@dataclass(frozen=True)
class Embed:
    """Write the contextual vectors of every word of a file. The same command resumes a run that was stopped."""

    file: Positional[Path]
    """Text (plain, .gz or .zst), one sentence a line."""
    output: Positional[Path]
    """Directory for the vectors, or a name that ends in .hdf5 for AllenNLP's layout."""
    model: Model = None
    layers: OneLayer | Literal["all"] = "mix"
    """The model's own mix, the average, the top, all of them, or the number of a layer (0 knows no context)."""
    state: State | None = None
    """LSTM state at the start of a sentence; the model's own policy when not given."""
    dtype: Literal["float32", "float16"] = "float32"
    """Number type of the written vectors."""
    device: Device = None
    tokenize: bool = False
    """Split the lines as the model's training text was, not at white space."""
    sentences_per_part: int = 1000
    """Sentences in a part: what a stopped run repeats at most, and what is in memory at a time."""

    def run(self) -> None:
        from elmokit.embed.files import embed_file

        _show(embed_file(**vars(self)))


@dataclass(frozen=True)
class Encode:
    """Write one vector for each line of a file. The same command resumes a run that was stopped."""

    file: Positional[Path]
    """Text (plain, .gz or .zst), one text a line."""
    output: Positional[Path]
    """NumPy file (.npy) for the vectors, a row for each line."""
    model: Model = None
    pooling: Literal["mean", "max"] = "mean"
    """How the vectors of a text's words become one."""
    normalize_embeddings: bool = False
    """Scale every vector to length one."""
    device: Device = None
    tokenize: bool = True
    """Split the lines as the model's training text was, not at white space."""
    sentences_per_part: int = 1000
    """Lines in a part: what a stopped run repeats at most, and what is in memory at a time."""

    def run(self) -> None:
        from elmokit.embed.files import encode_file

        _show(encode_file(**vars(self)))


@dataclass(frozen=True)
class Compare:
    """Print how alike the vectors of one word are across sentences."""

    word: Positional[str]
    """The word, as it is spelled in the sentences."""
    sentences: Positional[tuple[str, ...]]
    """Sentences with the word."""
    model: Model = None
    layers: OneLayer | Literal["all"] = "all"
    """The model's own mix, the average, the top, all of them, or the number of a layer (0 knows no context)."""

    def run(self) -> None:
        from elmokit.analysis.similarity import compare

        _show(compare(**vars(self)))


@dataclass(frozen=True)
class Neighbors:
    """Find the uses of a word in a corpus that are nearest to its use in a sentence."""

    word: Positional[str]
    """The word, as it is spelled in the sentence."""
    sentence: Annotated[str, arg(name="in")]
    """The sentence that shows the use."""
    corpus: Path
    """Text to search (plain, .gz or .zst), one sentence a line."""
    count: int = 10
    """How many uses to show."""
    model: Model = None
    layers: OneLayer = "top"
    """The model's own mix, the average, the top, or the number of a layer (0 knows no context)."""
    device: Device = None
    any_word: bool = False
    """Search the uses of every word, not only of this one."""
    max_sentences: int | None = None
    """Stop after so many sentences that could be near."""

    def run(self) -> None:
        from elmokit.analysis.neighbors import neighbors

        _show(neighbors(**vars(self)))


@dataclass(frozen=True)
class Fit:
    """Fit a sequence tagger on contextual vectors, until the development score stops rising."""

    train: Positional[Path]
    """Tagged sentences, one token a line: CoNLL-U, or columns at white space (plain, .gz or .zst)."""
    dev: Positional[Path]
    """Tagged sentences that decide when to stop, and which epoch's weights are kept."""
    output: Path
    """Directory for the tagger and report.json."""
    test: Path | None = None
    """Tagged sentences for the final score."""
    model: Model = None
    format: TaskFormat = None
    word_column: WordColumn = 0
    tag_column: TagColumn = None
    overwrite: bool = False
    """Replace the output where there is one."""
    tagger: Annotated[TaggerConfig, arg(name="")] = TaggerConfig()  # noqa: RUF009 (it is frozen)
    config: Annotated[FitConfig, arg(name="")] = FitConfig()  # noqa: RUF009 (it is frozen)

    def run(self) -> None:
        from elmokit.tasks.fit import fit_files

        _show(fit_files(**vars(self)))


@dataclass(frozen=True)
class Predict:
    """Tag a file with a tagger that was fitted."""

    tagger: Positional[Path]
    """Directory that fit wrote."""
    file: Positional[Path]
    """Sentences, one token a line: CoNLL-U, or columns at white space (plain, .gz or .zst)."""
    output: Positional[Path]
    """File for the sentences with their tags: CoNLL-U in the tag column, others in a new last column."""
    model: Model = None
    format: TaskFormat = None
    word_column: WordColumn = 0
    tag_column: TagColumn = None
    device: Device = None

    def run(self) -> None:
        from elmokit.tasks.fit import predict_files

        sentences, tokens = predict_files(**vars(self))
        print(f"{self.output}: {sentences} sentences, {tokens} tokens")


@dataclass(frozen=True)
class Info:
    """Print what a model is: format, sizes, vocabulary, tokenizer and card."""

    model: Positional[Model] = None

    def run(self) -> None:
        from elmokit.io.checkpoint import describe

        _show(describe(self.model))


Verb = Prepare | Pretrain | Evaluate | Embed | Encode | Compare | Neighbors | Fit | Predict | Info


def _one_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return "; ".join(filter(None, lines)).replace(":; ", ": ") or type(error).__name__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code: 0 done, 2 bad input, 130 interrupted.

    With ELMOKIT_DEBUG=1 in the environment, errors keep their traceback.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        print(f"elmokit {elmokit.__version__}")
        return 0
    try:
        verb = tyro.cli(
            Verb,
            prog="elmokit",
            description="Pretrain, load and use ELMo: deep contextual word vectors.",
            args=arguments,
            config=(tyro.conf.DisallowNone, tyro.conf.PositionalMetavarFromFieldName),
        )
        verb.run()
    except BrokenPipeError:  # whoever reads the output, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        if os.environ.get("ELMOKIT_DEBUG") == "1":
            raise
        print(f"elmokit: error: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("elmokit: interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return 130
    return 0
