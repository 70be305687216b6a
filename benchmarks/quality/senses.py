"""Whether contextual layers distinguish the senses of a word. Scores sense_pairs.json, which never changes.

In each item, the word has one sense in `sentence` and `same`, and another in `other`. An item counts as right if the
word's vector in `sentence` is nearer to that in `same` than to that in `other`. The similarity is the cosine, averaged
over the contextual layers (1 to L). Scores by single layer and by the mix are reported too. The token layer cannot
distinguish senses; its ties count as wrong.

    python benchmarks/quality/senses.py [--model NAME_OR_PATH]
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from elmokit.analysis.uses import unit_vectors, uses_in_each
from elmokit.embed.embedder import Embedder

sys.path.append(str(Path(__file__).parents[1]))
from result_files import RESULTS, write_result

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory or name; the bundled English model when not given")
    parser.add_argument("--output", type=Path, default=RESULTS / "senses.json")
    arguments = parser.parse_args()
    embedder = Embedder.load(arguments.model)
    items = json.loads(PAIRS.read_text(encoding="utf-8"))["items"]
    scored = [(item, margins(item, embedder)) for item in items]
    for item, found in scored:
        same, other = found[SIMILARITY]
        print(f"{'right' if right(found[SIMILARITY]) else 'WRONG'}  same {same:.3f}  other {other:.3f}  ", end="")
        print(f"{item['word']}: {item['sentence']}")
    counts = {name: sum(right(found[name]) for _, found in scored) for name in scored[0][1]}
    print(f"{counts[SIMILARITY]} of {len(items)} right; by layer and mix: {counts}")
    report = {
        "model": arguments.model or "en-small",
        "fingerprint": embedder.fingerprint(),
        "items": len(items),
        "right": counts,
        "similarities": [{"word": item["word"], "sentence": item["sentence"], **found} for item, found in scored],
    }
    write_result(arguments.output, report)


if __name__ == "__main__":
    main()
