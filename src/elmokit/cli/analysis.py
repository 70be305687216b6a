"""Verbs that measure what is in the vectors: tags, word senses, the uses of a word."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from elmokit.cli.options import UNSET, Device, Dtype, Model, OneLayer, Overwrite, OwnState
from elmokit.cli.show import show, write_json
from elmokit.tasks.config import Columns

ReportFile = Annotated[Path | None, arg(help="File for the figures, as JSON."), UNSET]


@dataclass(frozen=True)
class Probe:
    """Score a linear classifier of words' tags on the frozen vectors of each layer.

    The vectors of all words lie in temporary files meanwhile, two bytes a number (TMPDIR says where).
    """

    train: Positional[Path]
    """Tagged sentences to fit on, one token a line: CoNLL-U, or columns at white space (plain, .gz or .zst)."""
    dev: Positional[Path]
    """Tagged sentences on which the L2 penalty is chosen."""
    test: Annotated[Path | None, UNSET] = None
    """Tagged sentences for the final score."""
    output: ReportFile = None
    model: Model = None
    columns: Annotated[Columns, arg(name="")] = Columns()  # noqa: RUF009 (it is frozen)
    state: OwnState = None
    device: Device = None
    dtype: Dtype = "float32"

    def run(self) -> None:
        from elmokit.analysis.probe import probe_files

        options = {"model": self.model, "state": self.state, "device": self.device, "dtype": self.dtype}
        report = probe_files(self.train, self.dev, self.test, **options, **vars(self.columns))
        show(report)
        write_json(report, self.output)


@dataclass(frozen=True)
class Wsd:
    """Score word senses by the nearest mean of a sense's vectors, for each layer, beside the most frequent sense."""

    data: Annotated[Positional[tuple[Path, ...]], arg(metavar="DATA [DATA ...]", help_behavior_hint="(required)")]
    """A directory of CoarseWSD's folders; or all-words test sets, NAME.data.xml with NAME.gold.key.txt beside it, or a
    directory of them."""
    train: Annotated[Path | None, UNSET] = None
    """Sense-tagged text for all-words sets: SemCor as NAME.data.xml, or as JSON lines. CoarseWSD has its own."""
    first_senses: Annotated[Path | None, UNSET] = None
    """WordNet's index.sense, or its directory, for lemmas that the training text lacks (no answer without it)."""
    output: ReportFile = None
    model: Model = None
    state: OwnState = None
    device: Device = None
    dtype: Dtype = "float32"

    def run(self) -> None:
        from elmokit.analysis.wsd import wsd

        report = wsd(self.data, self.train, self.first_senses, self.model, self.state, self.device, self.dtype)
        show(report)
        write_json(report, self.output)


@dataclass(frozen=True)
class Senses:
    """Map the uses of a word in a corpus: clusters of its vectors, their typical uses and substitutes."""

    word: Positional[str]
    """The word. It counts as it is spelled, or where a sentence has no such token, in any case."""
    corpus: Path
    """Text (plain, .gz or .zst), one sentence a line; or a directory as `elmokit prepare` writes it."""
    output: Annotated[Path | None, UNSET] = None
    """Directory for senses.json, senses.html (a page with a map for each layer) and senses.png (extra "plots")."""
    clusters: Annotated[int | None, UNSET] = None
    """Number of clusters; that of the largest silhouette, from 2 to 8, when not given."""
    max_uses: int = 500
    """Uses on the map: a random sample where the corpus has more."""
    match_case: bool = False
    """Only the uses that are spelled as the word is."""
    seed: int = 0
    """Seed of the sample and of the clustering."""
    model: Model = None
    layers: OneLayer = "top"
    """The vectors that are clustered: the model's own mix, the average, the top, or the number of a layer."""
    device: Device = None
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.analysis.word_map import MapConfig
        from elmokit.analysis.word_map_files import map_senses

        config = MapConfig(self.max_uses, self.match_case, self.clusters, self.seed)
        options = {"layers": self.layers, "device": self.device, "config": config, "overwrite": self.overwrite}
        show(map_senses(self.word, self.corpus, self.output, self.model, **options))
        if self.output is not None:
            print(f"\n{self.output}: {', '.join(sorted(file.name for file in self.output.iterdir()))}")
