"""Nearest neighbors of a word's contextual vector in a corpus, as for "play" in table 4 of Peters et al. (2018)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from elmokit.analysis.config import SearchConfig
from elmokit.analysis.report import Report
from elmokit.analysis.uses import Use, use_vectors, uses_in_each, uses_in_files
from elmokit.data.corpus import find_files
from elmokit.embed.embedder import Embedder, resolve_embedder

BATCH_SENTENCES = 512  # whose vectors are in memory at a time


@dataclass(frozen=True)
class Neighbors(Report):
    """The query, and the uses nearest to it with their cosine similarities, nearest first."""

    query: Use
    nearest: list[tuple[float, Use]]
    sentences_searched: int

    def __str__(self) -> str:
        lines = [f"{similarity:5.3f}  {use}" for similarity, use in self.nearest]
        return "\n".join([f"       {self.query}", *lines, f"({self.sentences_searched} sentences searched)"])


def nearest_uses(
    query: Use,
    uses: Iterable[list[Use]],
    embedder: Embedder,
    layers: str | int = "top",
    config: SearchConfig | None = None,
) -> Neighbors:
    """Find the uses whose vectors are nearest to that of a query.

    Args:
        query: The use to search for.
        uses: The uses in each sentence, read some hundred sentences at a time. The sentence of the query is excluded,
            and repeated ones are returned once.
        embedder: The model.
        layers: Representation, as in `Embedder.embed`, except "all".
        config: How many neighbors to search for, in how many sentences.

    Returns:
        The neighbors; none if no other sentence has a use.
    """
    config = config or SearchConfig()
    query_vector = use_vectors([query], embedder, layers)[0]
    candidates = islice((of_each for of_each in uses if of_each[0].sentence != query.sentence), config.max_sentences)
    best: dict[Use, float] = {}
    searched = 0
    while batch := list(islice(candidates, BATCH_SENTENCES)):
        searched += len(batch)
        in_batch = [use for of_sentence in batch for use in of_sentence]
        # Rounded, so that rounding errors, which depend on the batch, do not rank equal vectors.
        cosines = (use_vectors(in_batch, embedder, layers) @ query_vector).round(6)
        best |= zip(in_batch, cosines.tolist(), strict=True)
        # The sort is stable: of equal cosines the first in the corpus stays first.
        best = dict(sorted(best.items(), key=lambda item: -item[1])[: config.count])
    return Neighbors(query, [(cosine, use) for use, cosine in best.items()], searched)


def neighbors(
    word: str,
    sentence: str,
    corpus: str | Path,
    model: Embedder | str | Path | None = None,
    layers: str | int = "top",
    config: SearchConfig | None = None,
    tokenize: bool = True,
) -> Neighbors:
    """Find the uses of a word in a corpus whose vectors are nearest to that of its first use in `sentence`.

    The corpus is streamed, and only sentences with the word are embedded (every sentence with `any_word`).

    Args:
        word: The word; case is ignored in sentences without an exact match.
        sentence: A sentence with the use to search for.
        corpus: Text (plain, .gz or .zst) with one sentence per line, or a directory of such files. The query sentence
            is excluded, and repeated sentences are returned once.
        model: An `Embedder`, or a model as it takes one.
        layers: Representation, as in `Embedder.embed`, except "all".
        config: How many neighbors to search for, and where.
        tokenize: Split the sentence and raw lines with the model's tokenizer; else, and lines of `elmokit prepare`, at
            white space.

    Returns:
        The neighbors.

    Raises:
        ValueError: `sentence` lacks the word, or no other sentence in the corpus has it.
        FileNotFoundError: There is no such corpus.
    """
    config = config or SearchConfig()
    files = find_files([corpus])
    embedder = resolve_embedder(model)
    query = uses_in_each(word, [embedder.tokenize(sentence) if tokenize else sentence.split()])[0]
    uses = uses_in_files(None if config.any_word else word, files, embedder, tokenize)
    result = nearest_uses(query, uses, embedder, layers, config)
    if not result.nearest:
        searched = "" if config.any_word else f" with the word {word!r}"
        raise ValueError(f"{corpus} has no other sentence{searched}: try another corpus")
    return result
