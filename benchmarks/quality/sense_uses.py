"""Whether the nearest use of a word has the same sense, and whether fruits are nearer to an apple
than the company.

In each item of sense_pairs.json, which never changes, the word has one sense in `sentence` and
`same`, and another in `other`; it counts as right if the vector in `sentence` is nearer to that in
`same`, by more than rounding errors.

sense_uses.json, which never changes, has ten words in two senses each, with three uses of each
sense. A use counts as right if the most similar of the word's five other uses has the same sense,
by more than rounding errors. (The token layer cannot distinguish the uses of a word.)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.analysis.uses import unit_vectors, uses_in_each
from elmokit.embed import Embedder

USES = Path(__file__).parent / "sense_uses.json"
CONTEXTUAL = "contextual"  # the mean of the cosines of layers 1 to L
ROUNDING = 1e-6  # smaller differences are rounding errors: in the token layer all uses are equal
# The sentence with the fruit, other sentences with fruits, and those with the company.
EATEN, FRUITS = "I like to eat apple", ["She cut an apple into slices"]
FIRMS = ["I like apple products", "The new apple computer is faster than the old one"]


def _vectors(items: list[tuple[str, list[str]]], embedder: Embedder, state: str) -> np.ndarray:
    """(N, L+1, 2D), scaled to length one: the vectors of each word at its first use in its
    sentence.
    """
    places = [uses_in_each(word, [sentence])[0].position for word, sentence in items]
    embedded = embedder.embed([sentence for _, sentence in items], "all", state)
    return unit_vectors(
        np.stack([layers[:, place] for layers, place in zip(embedded, places, strict=True)])
    )


def _cosines(vectors: np.ndarray) -> dict[str, np.ndarray]:
    """(N, N) for each layer, and for the mean over the contextual layers."""
    by_layer = np.einsum("nld,mld->lnm", vectors, vectors)
    named = {f"layer {number}": cosines for number, cosines in enumerate(by_layer)}
    return named | {CONTEXTUAL: by_layer[1:].mean(axis=0)}


def nearest_uses(embedder: Embedder, state: str) -> dict[str, Any]:
    """The number of uses whose nearest other use has the same sense: by layer, and by word for the
    contextual mean.
    """
    items = json.loads(USES.read_text(encoding="utf-8"))["uses"]
    vectors = _vectors(
        [(item["word"], item["sentence"].split()) for item in items], embedder, state
    )
    words, senses = (np.array([item[key] for item in items]) for key in ("word", "sense"))
    same_word = (words[:, None] == words) & ~np.eye(len(words), dtype=bool)
    same_sense = senses[:, None] == senses
    right = {}
    for name, cosines in _cosines(vectors).items():
        nearest = np.where(same_word & same_sense, cosines, -np.inf).max(axis=1)
        nearest_other = np.where(same_word & ~same_sense, cosines, -np.inf).max(axis=1)
        right[name] = nearest - nearest_other > ROUNDING
    by_word = {
        word: int(right[CONTEXTUAL][words == word].sum()) for word in dict.fromkeys(words.tolist())
    }
    return {
        "of": len(items),
        "right": {name: int(found.sum()) for name, found in right.items()},
        "by word": by_word,
    }


def compare_apples(embedder: Embedder, state: str) -> dict[str, Any]:
    """Cosines to the eaten apple, by layer, and whether every other fruit is nearer than each use
    of the company.
    """
    sentences = [EATEN, *FRUITS, *FIRMS]
    cosines = _cosines(
        _vectors([("apple", embedder.tokenize(text)) for text in sentences], embedder, state)
    )
    found = {}
    for name, matrix in cosines.items():
        fruits, firms = np.split(matrix[0, 1:], [len(FRUITS)])
        found[name] = {
            "fruits": fruits.astype(float).round(4).tolist(),
            "firms": firms.astype(float).round(4).tolist(),
            "holds": bool(fruits.min() > firms.max()),
        }
    return found


PAIRS = Path(__file__).with_name("sense_pairs.json")


def margins(
    item: dict[str, str], embedder: Embedder, state: str | None = None
) -> dict[str, tuple[float, float]]:
    """By method of comparison: the similarity of the word to its use in the same sense, and to that
    in the other.
    """
    sentences = [item[name].split() for name in ("sentence", "same", "other")]
    first_uses = [uses_in_each(item["word"], [sentence])[0] for sentence in sentences]
    found = {}
    for layers in (*range(embedder.num_layers), "mix"):
        embedded = zip(embedder.embed(sentences, layers, state), first_uses, strict=True)
        asked, same, other = unit_vectors(
            np.stack([words[use.position] for words, use in embedded])
        )
        found[str(layers)] = (float(asked @ same), float(asked @ other))
    contextual = [found[str(layer)] for layer in range(1, embedder.num_layers)]
    same, other = np.mean(contextual, axis=0).tolist()
    return {CONTEXTUAL: (same, other), **found}


def sense_pairs(embedder: Embedder, state: str | None = None) -> dict[str, Any]:
    """The number of items that are right, by method of comparison."""
    items = json.loads(PAIRS.read_text(encoding="utf-8"))["items"]
    scored = [margins(item, embedder, state) for item in items]
    right = {
        name: sum(each[name][0] - each[name][1] > ROUNDING for each in scored) for name in scored[0]
    }
    return {"of": len(items), "right": right}
