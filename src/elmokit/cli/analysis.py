"""Verbs that measure the information in the vectors: tags, and the occurrences of a word."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from elmokit.analysis.config import ChangeConfig, MapConfig
from elmokit.cli.console import show
from elmokit.cli.options import (
    UNSET,
    ComputeDtype,
    Corpus,
    CorpusLayers,
    Device,
    Json,
    Lemmas,
    Model,
    OptionalState,
    Overwrite,
    Tokenize,
    state_defaults_in_text,
    with_forms,
)
from elmokit.tasks.config import ColumnsConfig

state_defaults_in_text(ColumnsConfig)
state_defaults_in_text(MapConfig)


@dataclass(frozen=True)
class Probe:
    """Score a linear classifier of word tags on the frozen vectors of each layer.

    The vectors of all words are kept in temporary files in float16 (in the directory TMPDIR).
    """

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

        embedder = Embedder(self.model, self.device, self.dtype)
        report = probe_files(
            self.train, self.dev, self.test, embedder, self.state, **vars(self.columns)
        )
        show(report, self.json)


@dataclass(frozen=True)
class Change:
    """Measure how far apart the uses of words in two corpora are, with permutation tests."""

    words: Annotated[
        Positional[tuple[str, ...]], arg(metavar="WORD [WORD ...]", help_behavior_hint="(required)")
    ]
    """Words to compare; commas separate the forms of one, as in mouse,mice, and quotation marks
    hold a phrase. In sentences without an exact match, the case of letters is ignored.
    """
    first: Corpus
    second: Corpus
    lemma: Lemmas = None
    json: Json = False
    config: Annotated[ChangeConfig, arg(name="")] = ChangeConfig()  # noqa: RUF009
    model: Model = None
    layers: CorpusLayers = None
    device: Device = None
    tokenize: Tokenize = True

    def run(self) -> None:
        from elmokit.analysis.change import change
        from elmokit.embed import Embedder

        words = [with_forms(word, self.lemma) for word in self.words]
        embedder, corpora = Embedder(self.model, self.device), (self.first, self.second)
        show(change(words, *corpora, embedder, self.layers, self.config, self.tokenize), self.json)


@dataclass(frozen=True)
class Senses:
    """Cluster the occurrences of a word in a corpus by their vectors; list typical sentences and
    substitutes.
    """

    word: Positional[str]
    """Word to look up; commas separate its forms, as in play,plays,played, and quotation marks hold
    a phrase. In sentences without an exact match, the case of letters is ignored.
    """
    corpus: Corpus
    lemma: Lemmas = None
    output: Annotated[Path | None, UNSET] = None
    """HTML file for scatter plots of all layers."""
    json: Json = False
    config: Annotated[MapConfig, arg(name="")] = MapConfig()  # noqa: RUF009
    model: Model = None
    layers: CorpusLayers = None
    device: Device = None
    tokenize: Tokenize = True
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.analysis.word_map import senses, write_page
        from elmokit.embed import Embedder
        from elmokit.fs import check_output

        if self.output is not None:
            check_output(self.output, [self.corpus], overwrite=self.overwrite)
        embedder = Embedder(self.model, self.device, softmax=True)
        word = with_forms(self.word, self.lemma)
        result = senses(word, self.corpus, embedder, self.layers, self.config, self.tokenize)
        if self.output is not None:
            write_page(result, self.output, self.overwrite)
        show(result, self.json)
