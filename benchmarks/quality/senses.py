"""Whether contextual layers distinguish the senses of a word. Scores sense_pairs.json, which never changes.

In each item, the word has one sense in `sentence` and `same`, and another in `other`. An item counts as right if the
word's vector in `sentence` is nearer to that in `same` than to that in `other`. The similarity is the cosine, averaged
over the contextual layers (1 to L). Scores by single layer and by the mix are reported too. The token layer cannot
distinguish senses; its ties count as wrong. A part of intrinsic.py.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.analysis.uses import unit_vectors, uses_in_each
from elmokit.embed.embedder import Embedder

PAIRS = Path(__file__).with_name("sense_pairs.json")
SIMILARITY = "contextual"


def margins(item: dict[str, str], embedder: Embedder, state: str | None = None) -> dict[str, tuple[float, float]]:
    """By method of comparison: the similarity of the word to its use in the same sense, and to that in the other."""
    sentences = [item[name].split() for name in ("sentence", "same", "other")]
    first_uses = [uses_in_each(item["word"], [sentence])[0] for sentence in sentences]
    found = {}
    for layers in (*range(embedder.num_layers), "mix"):
        embedded = zip(embedder.embed(sentences, layers, state), first_uses, strict=True)
        asked, same, other = unit_vectors(np.stack([words[use.position] for words, use in embedded]))
        found[str(layers)] = (float(asked @ same), float(asked @ other))
    contextual = [found[str(layer)] for layer in range(1, embedder.num_layers)]
    same, other = np.mean(contextual, axis=0).tolist()
    return {SIMILARITY: (same, other), **found}


def right(similarities: tuple[float, float]) -> bool:
    """Whether the same sense is nearer by more than rounding errors (in the token layer all uses are equal)."""
    same, other = similarities
    return same - other > 1e-6


def sense_pairs(embedder: Embedder, state: str | None = None) -> dict[str, Any]:
    """The number of items that are right, by method of comparison."""
    items = json.loads(PAIRS.read_text(encoding="utf-8"))["items"]
    scored = [margins(item, embedder, state) for item in items]
    return {"of": len(items), "right": {name: sum(right(each[name]) for each in scored) for name in scored[0]}}
