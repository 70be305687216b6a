"""Verbs that compare and search the vectors of words, and measure what they hold."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from elmokit.cli.console import show
from elmokit.cli.options import (
    LAYERS,
    UNSET,
    Column,
    ComputeDtype,
    Corpus,
    CorpusLayers,
    Device,
    Json,
    Layers,
    Model,
    OptionalState,
    Output,
    Overwrite,
    Tokenize,
    Word,
    state_defaults_in_text,
)
from elmokit.tasks import ColumnsConfig

state_defaults_in_text(ColumnsConfig)


def _run(verb: Any, function: Callable[..., Any], result: Any) -> None:
    """Call the function of a verb with its options, and print and save what it returns."""
    from elmokit.embed import Embedder
    from elmokit.fs import check_output

    arguments = dict(vars(verb))
    as_json = arguments.pop("json")
    output, overwrite = arguments.pop("output"), arguments.pop("overwrite")
    if output is not None:
        check_output(output, list(arguments.values()), overwrite=overwrite, suffixes=result.FORMATS)
    with_softmax = isinstance(verb, Senses)
    arguments["model"] = Embedder(verb.model, arguments.pop("device"), softmax=with_softmax)
    report = function(**arguments)
    if output is not None:
        report.save(output, overwrite)
    show(report, as_json)


@dataclass(frozen=True)
class Compare:
    """Print the cosine similarities of one word's vectors across sentences.

    Examples, in a checkout of elmokit:
        elmokit compare play "They play chess" "The boys play in the street" --other "The play has five acts" "He wrote the play"
    """  # noqa: E501

    word: Word
    sentences: Annotated[
        Positional[tuple[str, ...]],
        arg(metavar="SENTENCE [SENTENCE ...]", help_behavior_hint="(required)"),
    ]
    """Sentences that contain the word."""
    other: Annotated[tuple[str, ...], UNSET] = ()
    """Sentences in which the word has another sense; a summary then contrasts the two senses."""
    model: Model = None
    layers: Annotated[
        Layers | Literal["use"] | None,
        arg(
            help=f"{LAYERS}; or use, the top layer beside the mean vector of the sentence "
            "(default: these, but for layer 0)."
        ),
        UNSET,
    ] = None
    device: Device = None
    tokenize: Tokenize = True
    output: Output = None
    overwrite: Overwrite = False
    json: Json = False

    def run(self) -> None:
        from elmokit.analysis.similarity import Comparison, compare

        _run(self, compare, Comparison)


@dataclass(frozen=True)
class Neighbors:
    """Find the occurrences of a word in a corpus that are nearest to its occurrence in a sentence.

    Examples, in a checkout of elmokit:
        elmokit neighbors play --in "The play was a success" --corpus examples/data/sentences.txt
    """

    word: Word
    sentence: Annotated[str, arg(name="in")]
    """Sentence with the occurrence to search for."""
    corpus: Corpus
    count: int = 10
    """Number of neighbors to print."""
    model: Model = None
    layers: CorpusLayers = None
    device: Device = None
    any_word: bool = False
    """Search the occurrences of all words, not only of this one."""
    tokenize: Tokenize = True
    column: Column = None
    output: Output = None
    overwrite: Overwrite = False
    json: Json = False

    def run(self) -> None:
        from elmokit.analysis.similarity import Neighbors, neighbors

        _run(self, neighbors, Neighbors)


@dataclass(frozen=True)
class Senses:
    """Cluster the occurrences of a word in a corpus; list typical sentences and substitutes.

    Examples, in a checkout of elmokit:
        elmokit senses play --corpus examples/data/sentences.txt --output runs/senses.html
    """

    word: Word
    corpus: Corpus
    output: Output = None
    overwrite: Overwrite = False
    json: Json = False
    column: Column = None
    max_uses: int = 500
    """Maximum number of occurrences; a random sample if the corpus has more."""
    clusters: Annotated[int | None, UNSET] = None
    """Number of clusters; fewer where fewer occurrences differ (default: from 2 to 5, each with 5 %
    of the occurrences at least, by the largest silhouette; one where that is low).
    """
    seed: int = 0
    """Seed of the sampling and the clustering."""
    model: Model = None
    layers: CorpusLayers = None
    device: Device = None
    tokenize: Tokenize = True

    def run(self) -> None:
        from elmokit.analysis.word_map import WordMap, senses

        _run(self, senses, WordMap)


@dataclass(frozen=True)
class Change:
    """Measure how far apart the uses of words in two corpora are, with permutation tests.

    Examples, in a checkout of elmokit:
        elmokit change mouse house --first examples/data/mouse-1950.txt --second examples/data/mouse-2000.txt
    """  # noqa: E501

    words: Annotated[
        Positional[tuple[str, ...]], arg(metavar="WORD [WORD ...]", help_behavior_hint="(required)")
    ]
    """Words to compare; commas separate the forms of one, as in mouse,mice, and quotation marks
    hold a phrase. In sentences without an exact match, the case of letters is ignored.
    """
    first: Corpus
    second: Corpus
    output: Output = None
    overwrite: Overwrite = False
    json: Json = False
    column: Column = None
    max_uses: int = 500
    """Maximum number of occurrences in each corpus; a random sample if there are more."""
    permutations: int = 1000
    """Random assignments of the occurrences to the corpora, for the p-values; 0: none."""
    seed: int = 0
    """Seed of the sampling and of the permutations."""
    model: Model = None
    layers: CorpusLayers = None
    device: Device = None
    tokenize: Tokenize = True

    def run(self) -> None:
        from elmokit.analysis.change import ChangeReport, change

        _run(self, change, ChangeReport)


@dataclass(frozen=True)
class Probe:
    """Score a linear classifier of word tags on the frozen vectors of each layer.

    The vectors of all words are in temporary files in float16 (in the directory TMPDIR), those of
    one layer in memory in float32.

    Examples, in a checkout of elmokit:
        elmokit probe examples/data/train.conllu examples/data/dev.conllu --test examples/data/test.conllu
    """  # noqa: E501

    train: Positional[Path]
    """Tagged sentences to train on, one token per line: CoNLL-U, or columns (plain, .gz or
    .zst).
    """
    dev: Positional[Path]
    """Tagged sentences to select the L2 penalty on."""
    test: Annotated[Path | None, UNSET] = None
    """Tagged sentences for the final score."""
    json: Json = False
    model: Model = None
    columns: Annotated[ColumnsConfig, arg(name="")] = ColumnsConfig()  # noqa: RUF009
    state: OptionalState = None
    dtype: ComputeDtype = "float32"
    device: Device = None

    def run(self) -> None:
        from elmokit.analysis.probe import probe_files
        from elmokit.embed import Embedder

        files, columns = (self.train, self.dev, self.test), vars(self.columns)
        embedder = Embedder(self.model, self.device, self.dtype)
        show(probe_files(*files, embedder, self.state, **columns), self.json)
