"""Cosine similarities of the uses of a word: between some sentences, and the nearest ones in a
corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elmokit.analysis.config import SearchConfig
from elmokit.analysis.corpora import StoredCorpus, open_corpus
from elmokit.analysis.report import Report, table
from elmokit.analysis.uses import Use, Word, WordForms, unit_vectors, uses_in_each, vectors_of_uses
from elmokit.embed import Embedder, layer_weights
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
        same, pairs = np.equal.outer(is_other, is_other), ~np.eye(len(cosines), dtype=bool)
        nearest = np.where(same & pairs, cosines, -np.inf).max(axis=1)
        nearest_other = np.where(~same, cosines, -np.inf).max(axis=1)
        # By more than rounding errors: without dependence on the context, all cosines are 1.
        is_nearer = nearest - nearest_other > 1e-6
        return SenseContrast(
            float(cosines[same & pairs].mean()), float(cosines[~same].mean()), int(is_nearer.sum())
        )


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Report):
    """N uses of a word and, by name of the representation, their (N, N) cosine similarities.

    The last `num_other` uses are those in another sense, if any were given; `contrasts` then has
    how the two senses differ, by name of the representation.
    """

    word: str
    uses: list[Use]
    similarities: dict[str, np.ndarray]
    num_other: int
    contrasts: dict[str, SenseContrast]

    def __str__(self) -> str:
        count = len(self.uses)
        numbers = [str(number) for number in range(1, count + 1)]
        parts = [
            "\n".join(
                f"{number:>{len(str(count))}}  {use}"
                for number, use in zip(numbers, self.uses, strict=True)
            )
        ]
        for name, matrix in self.similarities.items():
            rows = [
                [number, *(f"{cosine:.2f}" for cosine in row)]
                for number, row in zip(numbers, matrix, strict=True)
            ]
            parts.append(f"{name}\n{table(['', *numbers], rows)}")
        if self.num_other:
            header = [
                "mean similarity",
                "same sense",
                "other sense",
                "nearest use has the same sense",
            ]
            rows = [
                [name, f"{same:.2f}", f"{other:.2f}", f"{nearest} of {count}"]
                for name, (same, other, nearest) in self.contrasts.items()
            ]
            parts.append(table(header, rows))
        return "\n\n".join(parts)


def _representations(
    uses: Sequence[Use], embedder: Embedder, layers: str | int | None
) -> dict[str, np.ndarray]:
    """The vectors to compare, (N, 2D), by the printed name of the representation; sentences are
    embedded once.
    """
    vectors = vectors_of_uses(uses, embedder, "all" if layers is None else layers)
    if layers not in (None, "all"):
        return {f"layer {layers}" if isinstance(layers, int) else layers: vectors}
    if embedder.num_layers == 1:  # the top layer: a token layer always has others above it
        return {"top layer (contextual)": vectors[:, 0]}
    kinds = ["context-independent", *["contextual"] * (embedder.num_layers - 1)]
    of_layers = {
        f"layer {number} ({kind})": vectors[:, number] for number, kind in enumerate(kinds)
    }
    if layers is None:
        del of_layers["layer 0 (context-independent)"]
    mix = np.einsum("nld,l->nd", vectors, layer_weights(embedder.model, "mix").numpy())
    return {**of_layers, "mix of all layers": mix}


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
        layers: "all" (every layer, and where there are several the mix), or one representation as
            in `Embedder.embed`; None: all but layer 0, in which all uses of a word are equal.
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
    split = embedder.tokenize if tokenize else str.split
    tokens = [split(text) if isinstance(text, str) else list(text) for text in (*sentences, *other)]
    forms = WordForms.of(word, split)
    uses = uses_in_each(forms, tokens)
    num_other = len(uses_in_each(forms, tokens[len(sentences) :]))
    if min(len(uses) - num_other, num_other or 2) < 2:
        of_each = " in each sense" if other else ""
        raise ValueError(
            f"a comparison needs at least two uses of {forms.name!r}{of_each}: add another sentence"
        )
    representations = _representations(uses, embedder, layers)
    units = {name: unit_vectors(vectors) for name, vectors in representations.items()}
    similarities = {
        name: np.clip(vectors @ vectors.T, -1, 1) for name, vectors in units.items()
    }  # rounding exceeds 1
    senses = similarities if num_other else {}
    contrasts = {name: SenseContrast.of(matrix, num_other) for name, matrix in senses.items()}
    return Comparison(forms.name, uses, similarities, num_other, contrasts)


# --- Nearest neighbors in a corpus, as of "play" in table 4 of Peters et al. (2018) ---------------

BATCH_SENTENCES = 512  # whose vectors are in memory at a time


class Neighbor(NamedTuple):
    """A use, and the cosine similarity of its vector and that of the query."""

    similarity: float
    use: Use


@dataclass(frozen=True, repr=False)
class Neighbors(Report):
    """The query, and the uses nearest to it, nearest first, among those in the sentences that were
    searched.
    """

    query: Use
    nearest: list[Neighbor]
    sentences_searched: int

    def __str__(self) -> str:
        lines = [f"{similarity:5.3f}  {use}" for similarity, use in self.nearest]
        return "\n".join(
            [f"       {self.query}", *lines, f"({self.sentences_searched} sentences searched)"]
        )


def nearest_uses(
    query: Use,
    uses: Iterable[list[Use]],
    embedder: Embedder,
    layers: str | int = "top",
    config: SearchConfig | None = None,
    vectors_of: Callable[[Sequence[Use]], np.ndarray] | None = None,
) -> Neighbors:
    """Find the uses whose vectors are nearest to that of a query.

    Args:
        query: The use to search for.
        uses: The uses in each sentence, read some hundred sentences at a time. Those in the
            sentence of the query are left out, and repeated ones are returned once.
        embedder: The model.
        layers: Representation, as in `Embedder.embed`, except "all".
        config: How many neighbors to search for, in how many sentences.
        vectors_of: The vectors (N, 2D) of some uses; None: they are embedded.

    Returns:
        The neighbors; none if no other sentence has a use.
    """
    config = config or SearchConfig()
    vectors_of = vectors_of or partial(vectors_of_uses, embedder=embedder, layers=layers)
    (query_vector,) = unit_vectors(vectors_of_uses([query], embedder, layers))
    sentences = islice(uses, config.max_sentences)
    best: dict[Use, float] = {}
    searched = 0
    while batch := list(islice(sentences, BATCH_SENTENCES)):
        searched += len(batch)
        in_batch = [
            use for of_sentence in batch for use in of_sentence if use.sentence != query.sentence
        ]
        if in_batch:
            # Rounded, so that rounding errors, which depend on the batch, do not rank equal
            # vectors.
            cosines = (unit_vectors(vectors_of(in_batch)) @ query_vector).round(6)
            best |= zip(in_batch, cosines.tolist(), strict=True)
            # The sort is stable: of equal cosines the first in the corpus stays first.
            best = dict(sorted(best.items(), key=lambda item: -item[1])[: config.count])
    return Neighbors(query, [Neighbor(cosine, use) for use, cosine in best.items()], searched)


def neighbors(
    word: Word,
    sentence: str,
    corpus: str | Path,
    model: Embedder | str | Path | None = None,
    layers: str | int | None = None,
    config: SearchConfig | None = None,
    tokenize: bool = True,
) -> Neighbors:
    """Find the uses of a word in a corpus whose vectors are nearest to that of its first use in
    `sentence`.

    Text is streamed, and only sentences with the word are embedded (every sentence with
    `any_word`). Of stored vectors, only those of the word are read.

    Args:
        word: As in `compare`.
        sentence: A sentence with the use to search for.
        corpus: Text (plain, .gz or .zst) with one sentence per line, or a directory of such files;
            or a directory that `embed_file` wrote with the same model. Uses in the query sentence
            are left out, and repeated sentences are returned once.
        model: An `Embedder`, or a model as it takes one.
        layers: Representation, as in `Embedder.embed`, except "all"; None: "top", or the one that
            is stored.
        config: How many neighbors to search for, and where.
        tokenize: Split the sentence and raw lines with the model's tokenizer; else, and lines of
            `elmokit prepare`, at white space.

    Returns:
        The neighbors.

    Raises:
        ValueError: `sentence` lacks the word, no other sentence in the corpus has it, or the stored
            vectors are of another model or other layers.
        FileNotFoundError: There is no such corpus.
    """
    config = config or SearchConfig()
    embedder = Embedder.of(model)
    opened = open_corpus(corpus, embedder, tokenize)
    layers = opened.choose_layers(layers)
    split = embedder.tokenize if tokenize else str.split
    forms = WordForms.of(word, split)
    query = uses_in_each(forms, [split(sentence)])[0]
    if config.any_word and isinstance(opened, StoredCorpus) and config.max_sentences is None:
        result = _nearest_words(query, opened, layers, config.count)
    else:
        uses = opened.uses(None if config.any_word else forms)
        result = nearest_uses(
            query, uses, embedder, layers, config, partial(opened.vectors, layers=layers)
        )
    if not result.nearest:
        searched = "" if config.any_word else f" with the word {forms.name!r}"
        raise ValueError(f"{corpus} has no other sentence{searched}: try another corpus")
    return result


def _nearest_words(query: Use, corpus: StoredCorpus, layers: str | int, count: int) -> Neighbors:
    """`nearest_uses` among all words of a store."""
    nearest: dict[Use, float] = {}
    (query_vector,) = unit_vectors(vectors_of_uses([query], corpus.embedder, layers))
    for cosine, use in corpus.nearest(query_vector, layers):
        if use.sentence != query.sentence:
            nearest.setdefault(use, cosine)
            if len(nearest) == count:
                break
    searched = int(np.count_nonzero(corpus.store.lengths()))
    return Neighbors(query, [Neighbor(cosine, use) for use, cosine in nearest.items()], searched)
