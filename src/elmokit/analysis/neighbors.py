"""The uses of a word in a corpus that are nearest to one use of it (the paper's table 4, where the word is "play")."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elmokit.analysis.uses import Use, of_length_one, state_of_single_sentences, uses_in_every, uses_in_files
from elmokit.data.corpus import find_files
from elmokit.embed.embedder import Embedder, resolve_embedder

SENTENCES_AT_ONCE = 512


@dataclass(frozen=True)
class Search:
    """What is looked for in a corpus."""

    count: int = 10
    """How many uses to show."""
    any_word: bool = False
    """Search the uses of every word, not only of this one."""
    max_sentences: int | None = None
    """Search at most this many sentences that contain the word."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"at least one neighbor has to be asked for, not {self.count}")
        if self.max_sentences is not None and self.max_sentences < 1:
            raise ValueError(f"at least one sentence has to be searched, not {self.max_sentences}")


class Neighbors(NamedTuple):
    """The use that was asked about, and the uses nearest to it with their cosines, nearest first."""

    query: Use
    nearest: list[tuple[float, Use]]
    sentences_searched: int

    def __str__(self) -> str:
        lines = [f"{similarity:5.3f}  {use}" for similarity, use in self.nearest]
        return "\n".join([f"       {self.query}", *lines, f"({self.sentences_searched} sentences searched)"])


def _vectors(uses: list[Use], embedder: Embedder, layers: str | int) -> np.ndarray:
    """(N, 2D), each of length one; every sentence is embedded once."""
    sentences = list(dict.fromkeys(use.sentence for use in uses))
    found = embedder.embed(sentences, layers, state_of_single_sentences(embedder))
    vectors = dict(zip(sentences, found, strict=True))
    return of_length_one(np.stack([vectors[use.sentence][use.position] for use in uses]))


def neighbors(
    word: str,
    sentence: str,
    corpus: str | Path,
    model: Embedder | str | Path | None = None,
    layers: str | int = "top",
    device: str | None = None,
    search: Search | None = None,
) -> Neighbors:
    """The uses of the word in a corpus whose vectors are nearest to the word's first use in `sentence`.

    `corpus` is text (plain, .gz or .zst), one sentence a line, or a directory of such files, of any size: it is
    streamed, and only sentences with the word (all of them, and every word in them, with `any_word`) are embedded,
    `max_sentences` at most. The model's tokenizer splits them. `sentence` itself is left out, and one that comes again
    is shown once. ValueError where `sentence` lacks the word, or the corpus does.
    """
    search = search or Search()
    files = find_files([corpus])
    embedder = resolve_embedder(model, device)
    query = uses_in_every(word, [embedder.tokenize(sentence)])[0]
    asked = _vectors([query], embedder, layers)[0]
    found = uses_in_files(None if search.any_word else word, files, embedder)
    candidates = islice((uses for uses in found if uses[0].sentence != query.sentence), search.max_sentences)
    best: dict[Use, float] = {}
    searched = 0
    while group := list(islice(candidates, SENTENCES_AT_ONCE)):
        searched += len(group)
        uses = [use for found in group for use in found]
        cosines = _vectors(uses, embedder, layers) @ asked
        nearest = np.argsort(-cosines, kind="stable")
        best |= {uses[number]: float(cosines[number]) for number in reversed(nearest)}
        best = dict(sorted(best.items(), key=lambda item: -item[1])[: search.count])
    if not best:
        raise ValueError(f"{corpus} has no other sentence with the word {word!r}: try another corpus")
    return Neighbors(query, [(similarity, use) for use, similarity in best.items()], searched)
