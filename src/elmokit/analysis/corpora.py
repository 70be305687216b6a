"""Searchable corpora: text, or vectors stored by `elmokit embed`."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from elmokit.analysis.uses import (
    USE,
    Use,
    UseVectors,
    Word,
    WordForms,
    longer_words,
    uses_of,
    warn_of_toy,
)
from elmokit.data import TextFile
from elmokit.embed import Embedder, layer_weights
from elmokit.progress import ProgressBar
from elmokit.storage import EmbeddingStore
from elmokit.text import TOKENIZED, Tokenizer, get_tokenizer

BLOCK_WORDS = 4096  # of a store, whose vectors are in memory at a time
Check = Callable[[], None]
Source = str | Path | Iterable[str]  # of a corpus: a path, or sentences


class TextList(NamedTuple):
    """Sentences in memory."""

    texts: list[str]
    tokenizer: Tokenizer

    def lines(self) -> Iterator[str]:
        return iter(self.texts)


class Corpus(ABC):
    """Sentences, and the vectors of uses in them.

    Attributes:
        path: The files.
        embedder: The model.
        split: Splits a text as those of the corpus were split.
    """

    def __init__(
        self,
        path: str | Path,
        embedder: Embedder,
        tokenize: bool,
    ) -> None:
        self.path = path
        self.embedder = embedder
        self.split = partial(embedder.model.split, tokenize=tokenize)

    @abstractmethod
    def sentences(
        self, words: Sequence[WordForms] | None = None, check: Check | None = None
    ) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Stream the sentences in which one of some words may occur, with their numbers from 1;
        None: all.
        """

    @abstractmethod
    def vectors(self, uses: Sequence[Use]) -> UseVectors:
        """The vectors of uses, at every layer that there is."""

    def choose_layers(self, layers: str | int | None, default: str | int = USE) -> str | int:
        """The representation to take. ValueError where there are no such vectors."""
        layers = default if layers is None else layers
        if layers != USE:
            layer_weights(self.embedder.model, layers)
        return layers

    def uses(self, word: Word | None, check: Check | None = None) -> Iterator[list[Use]]:
        """Stream the uses of a word in each sentence that has any; None: of every word."""
        forms = None if word is None else WordForms.of(word, self.split)
        for line, sentence in self.sentences(None if forms is None else [forms], check):
            if uses := uses_of(forms, sentence, line):
                yield uses


class TextCorpus(Corpus):
    """Text files, whose sentences are embedded when the vectors of their words are needed.

    Args:
        path: Text (plain, .gz or .zst) with one sentence per line, or a directory of such files; a
            table; or a list or column of sentences.
        embedder: The model.
        tokenize: Split raw lines with the model's tokenizer; else, and lines of `elmokit prepare`,
            at white space.
        column: The column of a table; None: "text".
        progress: Show the progress of a search.
    """

    def __init__(
        self,
        path: Source,
        embedder: Embedder,
        tokenize: bool = True,
        column: str | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__("the corpus", embedder, tokenize)
        tokenizer = embedder.model.tokenizer
        self.files: Sequence[TextFile | TextList]
        if isinstance(path, str | Path):
            self.path = path
            self.files = TextFile.open(TextFile.find([path]), tokenizer, tokenize, column=column)
        else:
            split = get_tokenizer(tokenizer if tokenize and tokenizer else TOKENIZED)
            self.files = [TextList(list(path), split)]
        self.progress = progress

    def sentences(
        self, words: Sequence[WordForms] | None = None, check: Check | None = None
    ) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Stream sentences; `check` is called for every line."""
        # Tokenizing takes most of the time, so lines that lack a part of every form are skipped. A
        # tokenizer may remove invisible characters from words, such as soft hyphens.
        forms = [form for word in words or () for form in word.forms]
        needed = []  # parts of each form
        for form in forms:
            needed.append([Tokenizer.visible(part.lower()) for part in form])
        options = {"unit": " sentences", "unit_scale": True, "disable": not self.progress}
        longer = [Counter[str]() for _ in words or ()]
        number = 0
        for file in self.files:
            for line in ProgressBar(file.lines(), "search", **options):
                number += 1
                if check is not None:
                    check()
                text = Tokenizer.visible(line.lower())
                if words is None or any(all(part in text for part in parts) for parts in needed):
                    sentence = tuple(file.tokenizer.tokenize(line))
                    for word, counts in zip(words or (), longer, strict=True):
                        counts.update(longer_words(word, sentence))
                    yield number, sentence
        for word, counts in zip(words or (), longer, strict=True):
            if counts:
                names = ",".join([word.name, *(name for name, _ in counts.most_common(3))])
                found = ", ".join(f"{name} {count}" for name, count in counts.most_common(5))
                warnings.warn(
                    f"{word.name!r} is also a part of longer words, which are left out ({found}): "
                    f"to count them, give these forms: {names}",
                    stacklevel=2,
                )

    def vectors(self, uses: Sequence[Use]) -> UseVectors:
        return UseVectors.of(uses, self.embedder)


class StoredCorpus(Corpus):
    """A directory of `elmokit embed`, whose vectors are read.

    ValueError if they are of another model than the embedder's, or damaged.
    """

    def __init__(
        self,
        path: str | Path,
        embedder: Embedder,
        tokenize: bool = True,
    ) -> None:
        super().__init__(path, embedder, tokenize)
        self.store = EmbeddingStore(path)
        if self.store.index.settings.get("model") != embedder.fingerprint():
            raise ValueError(f"{path} has the vectors of another model: name that one as the model")
        self.layers = self.store.index.settings["layers"]
        self._lines: dict[tuple[str, ...], int] = {}  # of the sentences that were streamed

    def sentences(
        self, words: Sequence[WordForms] | None = None, check: Check | None = None
    ) -> Iterator[tuple[int, tuple[str, ...]]]:
        lines = range(len(self.store))
        if words is not None:
            forms = (form for word in words for form in word.forms)
            lines = self.store.lines_with({form[0] for form in forms})
        for line in lines:
            sentence = tuple(self.store.words(line))
            self._lines.setdefault(sentence, line)
            yield line + 1, sentence

    def choose_layers(self, layers: str | int | None, default: str | int = USE) -> str | int:
        """By default the representation that is stored, if the default one needs another."""
        if self.layers == "all":
            return super().choose_layers(layers, default)
        model, stored = self.embedder.model, self.layers

        def is_stored(layers: str | int) -> bool:
            """A vector of a use needs the top layer, at which the default looks, too."""
            weights = layer_weights(model, "top" if layers == USE else layers)
            return torch.equal(weights, layer_weights(model, stored))

        layers = super().choose_layers(layers, default if is_stored(default) else stored)
        if not is_stored(layers):
            raise ValueError(
                f"{self.path} has the layers {stored}, not {layers}: embed these, or all"
            )
        return layers

    def vectors(self, uses: Sequence[Use]) -> UseVectors:
        words, texts = [], []
        for use in uses:  # of which most are alone in their sentence
            text = self.store.vectors(self._lines[use.sentence]).astype(np.float32)
            layers = text if text.ndim == 3 else text[:, None]  # (T, L+1, 2D)
            words.append(layers[use.position : use.stop].mean(axis=0))
            texts.append(layers[:, -1].mean(axis=0))
        return UseVectors(np.stack(words), np.stack(texts))

    def _select(self, vectors: torch.Tensor, layers: str | int) -> torch.Tensor:
        """One vector of each word (N, 2D) from what is stored of it."""
        if self.layers != "all":
            return vectors
        weights = layer_weights(self.embedder.model, layers)
        return torch.einsum("nld,l->nd", vectors, weights)

    def nearest_words(
        self,
        query: Use,
        vector: np.ndarray,
        layers: str | int,
        count: int,
    ) -> dict[Use, float]:
        """The `count` words of other sentences whose vectors are nearest to the unit vector of a
        use, with the cosines, the nearest first.
        """
        cosines = []
        for block in self.store.blocks(BLOCK_WORDS):
            vectors = self._select(torch.from_numpy(block).float(), layers)
            products = vectors @ torch.from_numpy(vector)
            norms = vectors.norm(dim=1).clamp_min(1e-12)
            cosines.append((products / norms).numpy())
        similarities = np.concatenate(cosines).round(6)
        ends = self.store.lengths().cumsum()
        nearest: dict[Use, float] = {}
        for word in np.argsort(-similarities, kind="stable"):
            line = int(np.searchsorted(ends, word, side="right"))
            sentence = tuple(self.store.words(line))
            if sentence != query.sentence:
                position = int(word - ends[line]) + len(sentence)
                nearest.setdefault(
                    Use(sentence, position, line=line + 1), float(similarities[word])
                )
                if len(nearest) == count:
                    break
        return nearest


def open_corpus(
    path: Source, embedder: Embedder, tokenize: bool = True, column: str | None = None
) -> Corpus:
    """The corpus of a path or list: stored vectors if it is a directory of `elmokit embed`, else
    text.
    """
    warn_of_toy(embedder.model)
    is_path = isinstance(path, str | Path)
    if is_path and (Path(path).expanduser() / EmbeddingStore.INDEX_NAME).exists():
        return StoredCorpus(path, embedder, tokenize)
    return TextCorpus(path, embedder, tokenize, column)
