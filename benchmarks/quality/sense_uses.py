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
from word_senses import Instance, Sentence, instance_vectors, names_of, use_cosines

from elmokit.analysis.uses import unit_vectors, uses_in_each
from elmokit.embed import Embedder

USES = Path(__file__).parent / "sense_uses.json"
CONTEXTUAL = "contextual"  # the mean of the cosines of layers 1 to L
ROUNDING = 1e-6  # smaller differences are rounding errors: in the token layer all uses are equal
# The sentence with the fruit, other sentences with fruits, and those with the company.
EATEN, FRUITS = "I like to eat apple", ["She cut an apple into slices"]
FIRMS = ["I like apple products", "The new apple computer is faster than the old one"]


def _vectors(items: list[tuple[str, list[str]]], embedder: Embedder, state: str) -> np.ndarray:
    """(N, L+2, 2D), scaled to length one: the vectors of each word at its first use in its
    sentence, and of the sentence, as of `word_senses.instance_vectors`.
    """
    sentences = []
    for word, words in items:
        place = uses_in_each(word, [words])[0].position
        sentences.append(Sentence(tuple(words), (Instance(word, place, place + 1, ()),)))
    found = instance_vectors(sentences, embedder, state)
    return unit_vectors(np.stack([vectors for _, vectors in found]))


def _cosines(vectors: np.ndarray) -> dict[str, np.ndarray]:
    """(N, N) for each layer, for uses, and for the mean over the contextual layers."""
    cosines = np.einsum("nld,mld->lnm", vectors, vectors)
    return names_of(use_cosines(cosines)) | {CONTEXTUAL: cosines[1:-1].mean(axis=0)}


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


def margins(item: dict[str, str], embedder: Embedder, state: str) -> dict[str, tuple[float, float]]:
    """By method of comparison: the similarity of the word to its use in the same sense, and to that
    in the other.
    """
    items = [(item["word"], item[name].split()) for name in ("sentence", "same", "other")]
    cosines = _cosines(_vectors(items, embedder, state))
    return {name: (float(matrix[0, 1]), float(matrix[0, 2])) for name, matrix in cosines.items()}


def sense_pairs(embedder: Embedder, state: str = "zeros") -> dict[str, Any]:
    """The number of items that are right, by method of comparison."""
    items = json.loads(PAIRS.read_text(encoding="utf-8"))["items"]
    scored = [margins(item, embedder, state) for item in items]
    right = {
        name: sum(each[name][0] - each[name][1] > ROUNDING for each in scored) for name in scored[0]
    }
    return {"of": len(items), "right": right}
