"""Cosine similarities of a word's uses: between some sentences, and the nearest in a corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from elmokit.analysis import Report, table
from elmokit.analysis.corpora import Source, StoredCorpus, open_corpus
from elmokit.analysis.uses import (
    USE,
    Use,
    UseVectors,
    Word,
    WordForms,
    unit_vectors,
    uses_in_each,
    warn_of_toy,
)
from elmokit.embed import Embedder
from elmokit.fs import TABLES
from elmokit.runtime import check_list


class SenseContrast(NamedTuple):
    """Similarities of uses in two senses.

    Attributes:
        same: Mean cosine of two uses in the same sense.
        other: Mean cosine of two uses in different senses.
        nearest_is_same: Number of uses whose most similar other use has the same sense.
    """

    same: float
    other: float
    nearest_is_same: int

    @staticmethod
    def of(cosines: np.ndarray, num_other: int) -> SenseContrast:
        """From the cosines (N, N) of uses, of which the last `num_other` are in the other sense."""
        is_other = np.arange(len(cosines)) >= len(cosines) - num_other
        is_same = np.equal.outer(is_other, is_other)
        is_same_pair = is_same & ~np.eye(len(cosines), dtype=bool)
        nearest_same = np.where(is_same_pair, cosines, -np.inf).max(axis=1)
        nearest_other = np.where(is_same, -np.inf, cosines).max(axis=1)
        # By more than rounding errors: without dependence on the context, all cosines are 1.
        count = int((nearest_same - nearest_other > 1e-6).sum())
        same = float(cosines[is_same_pair].mean())
        other = float(cosines[~is_same].mean())
        return SenseContrast(same, other, count)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Report):
    """How similar N uses of a word are.

    Attributes:
        word: The word.
        uses: The uses.
        similarities: Cosine similarities (N, N) by name of the representation.
        num_other: How many uses, the last ones, are in another sense.
        contrasts: How the two senses differ, by name of the representation, if there are two.
    """

    word: str
    uses: list[Use]
    similarities: dict[str, np.ndarray]
    num_other: int
    contrasts: dict[str, SenseContrast]

    def __str__(self) -> str:
        count = len(self.uses)
        numbers = list(map(str, range(1, count + 1)))
        width = len(numbers[-1])
        lines = [f"{number:>{width}}  {use}" for number, use in enumerate(self.uses, start=1)]
        parts = ["\n".join(lines)]
        for name, matrix in self.similarities.items():
            rows = [
                [number, *(f"{cosine:.2f}" for cosine in row)]
                for number, row in zip(numbers, matrix, strict=True)
            ]
            parts.append(f"{name}\n{table(['', *numbers], rows)}")
        if self.contrasts:
            header = ["mean similarity", "same sense", "other sense"]
            rows = [
                [name, f"{same:.2f}", f"{other:.2f}", f"{nearest} of {count}"]
                for name, (same, other, nearest) in self.contrasts.items()
            ]
            parts.append(table([*header, "nearest use has the same sense"], rows))
        return "\n\n".join(parts)

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each use and representation, with its similarities to all uses."""
        for name, matrix in self.similarities.items():
            for number, (use, cosines) in enumerate(
                zip(self.uses, matrix.tolist(), strict=True), 1
            ):
                is_other = number > len(self.uses) - self.num_other
                row = {"layers": name, "use": number, "other_sense": is_other, **use.to_row()}
                del row["line"]
                yield row | {f"use {other}": cosine for other, cosine in enumerate(cosines, 1)}

    def plot(self, figure: Any) -> None:
        """A matrix of similarities for each representation."""
        size = 1.5 + 0.35 * len(self.uses)
        figure.set_size_inches(size * len(self.similarities), size + 0.2 * len(self.uses))
        numbers = range(1, len(self.uses) + 1)
        for axes, (name, matrix) in zip(
            figure.subplots(1, len(self.similarities), squeeze=False)[0],
            self.similarities.items(),
            strict=True,
        ):
            image = axes.imshow(matrix, vmin=min(0, matrix.min()), vmax=1)
            axes.set(title=name, xticks=range(len(matrix)), yticks=range(len(matrix)))
            axes.set_xticklabels(numbers)
            axes.set_yticklabels(numbers)
            figure.colorbar(image, ax=axes, shrink=0.8)
        lines = (f"{number}  {use}" for number, use in zip(numbers, self.uses, strict=True))
        figure.supxlabel("\n".join(lines), x=0.02, ha="left", fontsize="small")


USE_NAME = "use (top layer beside the text)"


def _representations(
    uses: Sequence[Use],
    embedder: Embedder,
    layers: str | int | None,
) -> dict[str, np.ndarray]:
    """The vectors to compare by the printed name of the representation."""
    vectors, model = UseVectors.of(uses, embedder), embedder.model
    if layers == USE or layers not in (None, "all"):
        name = f"layer {layers}" if isinstance(layers, int) else layers
        return {USE_NAME if layers == USE else name: vectors.select(model, layers)}
    top = embedder.num_layers - 1
    named = {}
    if layers == "all" and top:  # of one layer only, it is the top one
        named["layer 0 (context-independent)"] = vectors.select(model, 0)
    for layer in range(min(1, top), top + 1):
        named[f"layer {layer} (contextual)"] = vectors.select(model, layer)
    if top:
        named["mix of all layers"] = vectors.select(model, "mix")
    return {**named, USE_NAME: vectors.select(model, USE)}


def compare(
    word: Word,
    sentences: Sequence[str | Sequence[str]],
    model: Embedder | str | Path | None = None,
    layers: str | int | None = None,
    tokenize: bool = True,
    other: Sequence[str | Sequence[str]] = (),
) -> Comparison:
    """Compute the cosine similarities between the vectors of all uses of a word in some sentences.

    Args:
        word: A word or a phrase ("New York"), or several forms of it ("play,plays,played", or a
            list); case is ignored in sentences without an exact match.
        sentences: Strings, which the model's tokenizer splits, or lists of tokens.
        model: An `Embedder`, or a model as it takes one.
        layers: "all" (every layer, where there are several the mix, and "use"), or one of them, as
            `UseVectors.select` names them; None: all but layer 0, in which all uses of a word are
            equal.
        tokenize: Split strings with the model's tokenizer; else at white space.
        other: Sentences in which the word has another sense than in `sentences`.

    Returns:
        The similarities; with `other` also the contrast between the senses.

    Raises:
        ValueError: A sentence lacks the word, or there are fewer than two uses (with `other`, in
            each sense).
    """
    check_list(sentences)
    embedder = Embedder.of(model)
    warn_of_toy(embedder.model)
    split = partial(embedder.model.split, tokenize=tokenize)
    tokens = [split(text) for text in (*sentences, *other)]
    forms = WordForms.of(word, split)
    uses = uses_in_each(forms, tokens)
    num_other = len(uses_in_each(forms, tokens[len(sentences) :]))
    if min(len(uses) - num_other, num_other or 2) < 2:
        in_each = " in each sense" if other else ""
        raise ValueError(
            f"a comparison needs at least two uses of {forms.name!r}{in_each}: add another sentence"
        )
    similarities = {}
    contrasts = {}
    for name, vectors in _representations(uses, embedder, layers).items():
        units = unit_vectors(vectors)
        similarities[name] = np.clip(units @ units.T, -1, 1)  # rounding exceeds 1
        if num_other:
            contrasts[name] = SenseContrast.of(similarities[name], num_other)
    return Comparison(forms.name, uses, similarities, num_other, contrasts)


# --- Nearest neighbors in a corpus, as of "play" in table 4 of Peters et al. (2018) ---------------

BATCH_SENTENCES = 512  # whose vectors are in memory at a time


class Neighbor(NamedTuple):
    """A use, and the cosine similarity of its vector and that of the query."""

    similarity: float
    use: Use


@dataclass(frozen=True, repr=False)
class Neighbors(Report):
    """The query and its nearest uses, nearest first, among those in the searched sentences."""

    query: Use
    nearest: list[Neighbor]
    sentences_searched: int
    FORMATS: ClassVar = TABLES

    @staticmethod
    def of(
        query: Use,
        cosines: dict[Use, float],
        sentences_searched: int,
    ) -> Neighbors:
        """From the cosines of the nearest uses, in their order."""
        nearest = [Neighbor(cosine, use) for use, cosine in cosines.items()]
        return Neighbors(query, nearest, sentences_searched)

    def __str__(self) -> str:
        lines = [f"       {self.query}"]
        lines += [f"{similarity:5.3f}  {use}" for similarity, use in self.nearest]
        return "\n".join([*lines, f"({self.sentences_searched} sentences searched)"])

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each neighbor, nearest first."""
        for rank, (similarity, use) in enumerate(self.nearest, start=1):
            yield {"rank": rank, "similarity": similarity, **use.to_row()}


def nearest_uses(
    query: Use,
    vector: np.ndarray,
    uses: Iterable[list[Use]],
    vectors_of: Callable[[Sequence[Use]], np.ndarray],
    count: int,
) -> Neighbors:
    """Find the uses whose vectors are nearest to that of a query.

    Args:
        query: The use to search for.
        vector: Its unit vector, (d,).
        uses: The uses in each sentence, read some hundred sentences at a time. Those in the
            sentence of the query are left out, and repeated ones are returned once.
        vectors_of: Returns the unit vectors (N, d) of some uses.
        count: Number of neighbors.

    Returns:
        The neighbors; none if no other sentence has a use.
    """
    sentences = iter(uses)
    nearest: dict[Use, float] = {}
    searched = 0
    while batch := list(islice(sentences, BATCH_SENTENCES)):
        searched += len(batch)
        candidates = [
            use for in_sentence in batch for use in in_sentence if use.sentence != query.sentence
        ]
        if candidates:
            # Rounded, so that rounding errors, which depend on the batch, do not rank equal
            # vectors.
            cosines = (vectors_of(candidates) @ vector).round(6)
            nearest |= zip(candidates, cosines.tolist(), strict=True)
            # The sort is stable: of equal cosines the first in the corpus stays first.
            by_cosine = sorted(nearest.items(), key=lambda item: -item[1])
            nearest = dict(by_cosine[:count])
    return Neighbors.of(query, nearest, searched)


def neighbors(
    word: Word,
    sentence: str,
    corpus: Source,
    model: Embedder | str | Path | None = None,
    layers: str | int | None = None,
    tokenize: bool = True,
    *,
    column: str | None = None,
    count: int = 10,
    any_word: bool = False,
) -> Neighbors:
    """Find the uses of a word in a corpus that are nearest to its first use in `sentence`.

    Text is streamed, and only sentences with the word are embedded. Of stored vectors, only those
    of the word are read.

    Args:
        word: As in `compare`.
        sentence: A sentence with the use to search for.
        corpus: As for `elmokit.senses`. Uses in the query sentence are left out, and repeated
            sentences are returned once.
        model: An `Embedder`, or a model as it takes one.
        layers: "use" (see `UseVectors.select`), or a representation of the word, as in
            `Embedder.embed`, except "all"; None: "use", with `any_word` "top", or the one that is
            stored.
        tokenize: Split the sentence and raw lines with the model's tokenizer; else, and lines of
            `elmokit prepare`, at white space.
        column: The column of a table; None: "text".
        count: Number of neighbors.
        any_word: Search the uses of all words, in every sentence.

    Returns:
        The neighbors.

    Raises:
        ValueError: `sentence` lacks the word, no other sentence in the corpus has it, or the stored
            vectors are of another model or other layers.
        FileNotFoundError: There is no such corpus.
    """
    embedder = Embedder.of(model)
    searched = open_corpus(corpus, embedder, tokenize, column)
    layers = searched.choose_layers(layers, "top" if any_word else USE)
    if any_word and layers == USE:
        raise ValueError("uses of any word are compared by a layer or the mix, without their texts")
    forms = WordForms.of(word, searched.split)
    query = uses_in_each(forms, [searched.split(sentence)])[0]

    def vectors_of(vectors: UseVectors) -> np.ndarray:
        return unit_vectors(vectors.select(embedder.model, layers))

    (vector,) = vectors_of(UseVectors.of([query], embedder))
    if any_word and isinstance(searched, StoredCorpus):
        nearest = searched.nearest_words(query, vector, layers, count)
        sentences = int(np.count_nonzero(searched.store.lengths()))
        result = Neighbors.of(query, nearest, sentences)
    else:
        uses = searched.uses(None if any_word else forms)
        result = nearest_uses(
            query, vector, uses, lambda found: vectors_of(searched.vectors(found)), count
        )
    if not result.nearest:
        with_word = "" if any_word else f" with the word {forms.name!r}"
        raise ValueError(f"{searched.path} has no other sentence{with_word}: try another corpus")
    return result
