"""Verbs that make vectors, and that show what is in them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from elmokit.cli.options import UNSET, Device, Dtype, Model, OneLayer, OwnState, Tokenize
from elmokit.cli.show import show


@dataclass(frozen=True)
class Embed:
    """Write the contextual vectors of every word of a file. The same command resumes a run that was stopped."""

    file: Positional[Path]
    """Text (plain, .gz or .zst), one sentence a line."""
    output: Path
    """Directory for the vectors, or a name that ends in .hdf5 for AllenNLP's layout."""
    model: Model = None
    layers: OneLayer | Literal["all"] = "mix"
    """The model's own mix, the average, the top, all of them, or the number of a layer (0 knows no context)."""
    state: OwnState = None
    tokenize: Tokenize = True
    device: Device = None
    dtype: Dtype = "float32"
    storage_dtype: Literal["float32", "float16"] = "float32"
    """Number type of the written vectors."""
    sentences_per_part: int = 1000
    """Sentences in a part: what a stopped run repeats at most."""

    def run(self) -> None:
        from elmokit.embed.files import embed_file

        show(embed_file(**vars(self)))


@dataclass(frozen=True)
class Encode:
    """Write one vector for each line of a file. The same command resumes a run that was stopped."""

    file: Positional[Path]
    """Text (plain, .gz or .zst), one text a line."""
    output: Path
    """NumPy file (.npy) for the vectors, a row for each line."""
    model: Model = None
    pooling: Literal["mean", "max"] = "mean"
    """How the vectors of a text's words become one."""
    normalize_embeddings: bool = False
    """Scale every vector to length one."""
    layers: OneLayer = "mix"
    """The model's own mix, the average, the top, or the number of a layer (0 knows no context)."""
    state: OwnState = None
    tokenize: Tokenize = True
    device: Device = None
    dtype: Dtype = "float32"
    sentences_per_part: int = 1000
    """Lines in a part: what a stopped run repeats at most."""

    def run(self) -> None:
        from elmokit.embed.files import encode_file

        show(encode_file(**vars(self)))


@dataclass(frozen=True)
class Compare:
    """Print how alike the vectors of one word are across sentences."""

    word: Positional[str]
    """The word, as it is spelled in the sentences."""
    sentences: Annotated[
        Positional[tuple[str, ...]], arg(metavar="SENTENCE [SENTENCE ...]", help_behavior_hint="(required)")
    ]
    """Sentences with the word."""
    model: Model = None
    layers: OneLayer | Literal["all"] = "all"
    """The model's own mix, the average, the top, all of them, or the number of a layer (0 knows no context)."""
    device: Device = None

    def run(self) -> None:
        from elmokit.analysis.similarity import compare

        show(compare(**vars(self)))


@dataclass(frozen=True)
class Neighbors:
    """Find the uses of a word in a corpus that are nearest to its use in a sentence."""

    word: Positional[str]
    """The word, as it is spelled in the sentence."""
    sentence: Annotated[str, arg(name="in")]
    """The sentence that shows the use."""
    corpus: Path
    """Text to search (plain, .gz or .zst), one sentence a line; or a directory as `elmokit prepare` writes it."""
    count: int = 10
    """How many uses to show."""
    model: Model = None
    layers: OneLayer = "top"
    """The model's own mix, the average, the top, or the number of a layer (0 knows no context)."""
    device: Device = None
    any_word: bool = False
    """Search the uses of every word, not only of this one."""
    max_sentences: Annotated[int | None, UNSET] = None
    """Search at most this many sentences that contain the word."""

    def run(self) -> None:
        from elmokit.analysis.neighbors import Search, neighbors

        search = Search(self.count, self.any_word, self.max_sentences)
        show(neighbors(self.word, self.sentence, self.corpus, self.model, self.layers, self.device, search))
