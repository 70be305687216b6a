"""Where a word is looked for: text, whose sentences are embedded, or the vectors that `elmokit
embed` wrote of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from elmokit.analysis.uses import Use, WordForms, sentences_with, uses_of, vectors_of_uses
from elmokit.data import find_files
from elmokit.embed import Embedder, layer_weights
from elmokit.storage import EmbeddingStore

BLOCK_WORDS = 4096  # of a store, whose vectors are in memory at a time


class Corpus:
    """Text files, whose sentences are embedded when the vectors of their words are needed.

    Args:
        path: Text (plain, .gz or .zst) with one sentence per line, or a directory of such files.
        embedder: The model.
        tokenize: Split raw lines with the model's tokenizer; else, and lines of `elmokit prepare`,
            at white space.
    """

    def __init__(self, path: str | Path, embedder: Embedder, tokenize: bool = True) -> None:
        self.path, self.embedder, self.tokenize = path, embedder, tokenize

    def sentences(self, words: Sequence[WordForms] | None) -> Iterator[tuple[str, ...]]:
        """Stream the sentences in which one of some words may occur; None: all."""
        return sentences_with(words, find_files([self.path]), self.embedder, self.tokenize)

    def uses(self, word: WordForms | None) -> Iterator[list[Use]]:
        """Stream the uses of a word in each sentence that has any; None: of every word."""
        sentences = self.sentences(None if word is None else [word])
        return filter(None, (uses_of(word, sentence) for sentence in sentences))

    def choose_layers(self, layers: str | int | None) -> str | int:
        """The representation to use, "top" where None is asked for. ValueError where there are no
        such vectors.
        """
        layers = "top" if layers is None else layers
        layer_weights(self.embedder.model, layers)
        return layers

    def vectors(self, uses: Sequence[Use], layers: str | int) -> np.ndarray:
        """The vectors of uses, (N, 2D), or with "all" every layer that there is of them, (N, L+1,
        2D).
        """
        return vectors_of_uses(uses, self.embedder, layers)


class StoredCorpus(Corpus):
    """A directory of `elmokit embed`, whose vectors are read.

    ValueError if they are of another model than the embedder's, or damaged.
    """

    def __init__(self, path: str | Path, embedder: Embedder) -> None:
        super().__init__(path, embedder)
        self.store = EmbeddingStore(path)
        if self.store.index.settings.get("model") != embedder.fingerprint():
            raise ValueError(f"{path} has the vectors of another model: name that one as the model")
        self.layers = self.store.index.settings["layers"]
        self._lines: dict[tuple[str, ...], int] = {}  # of the sentences that were found

    def sentences(self, words: Sequence[WordForms] | None) -> Iterator[tuple[str, ...]]:
        if words is None:
            lines = range(len(self.store))
        else:
            lines = self.store.lines_with({form[0] for word in words for form in word.forms})
        for line in lines:
            sentence = tuple(self.store.words(line))
            self._lines.setdefault(sentence, line)
            yield sentence

    def choose_layers(self, layers: str | int | None) -> str | int:
        """As of text, but with the stored representation as the default, if it is one."""
        if self.layers == "all":
            return super().choose_layers(layers)
        layers = super().choose_layers(self.layers if layers is None else layers)
        weights = [layer_weights(self.embedder.model, each) for each in (layers, self.layers)]
        if not torch.equal(*weights):
            raise ValueError(
                f"{self.path} has the layers {self.layers}, not {layers}: embed these, or all"
            )
        return layers

    def vectors(self, uses: Sequence[Use], layers: str | int) -> np.ndarray:
        places = [
            (self._lines[use.sentence], place)
            for use in uses
            for place in range(use.position, use.stop)
        ]
        vectors = self.store.word_vectors(*np.array(places).T).astype(np.float32)
        if len(places) > len(uses):  # of phrases the means
            ends = np.cumsum([use.length for use in uses])
            vectors = np.stack([words.mean(axis=0) for words in np.split(vectors, ends[:-1])])
        if layers == "all":
            return vectors if self.layers == "all" else vectors[:, None]
        return self._select(torch.from_numpy(vectors), layers).numpy()

    def _select(self, vectors: torch.Tensor, layers: str | int) -> torch.Tensor:
        """One vector (N, 2D) of stored ones."""
        if self.layers != "all":
            return vectors
        return torch.einsum("nld,l->nd", vectors, layer_weights(self.embedder.model, layers))

    def nearest(self, vector: np.ndarray, layers: str | int) -> Iterator[tuple[float, Use]]:
        """The cosines of a unit vector and those of all words, with the words, from the largest."""
        query, cosines = torch.from_numpy(vector), []
        for block in self.store.blocks(BLOCK_WORDS):
            vectors = self._select(torch.from_numpy(block).float(), layers)
            cosines.append((vectors @ query / vectors.norm(dim=1).clamp_min(1e-12)).numpy())
        similarities = np.concatenate(cosines).round(6)
        ends = self.store.lengths().cumsum()
        for word in np.argsort(-similarities, kind="stable"):
            line = int(np.searchsorted(ends, word, side="right"))
            sentence = tuple(self.store.words(line))
            yield float(similarities[word]), Use(sentence, int(word - ends[line]) + len(sentence))


def open_corpus(path: str | Path, embedder: Embedder, tokenize: bool = True) -> Corpus:
    """The corpus of a path: stored vectors if it is a directory of `elmokit embed`, else text."""
    is_store = (Path(path).expanduser() / EmbeddingStore.INDEX_NAME).exists()
    return StoredCorpus(path, embedder) if is_store else Corpus(path, embedder, tokenize)
