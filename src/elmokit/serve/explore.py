"""What the page shows besides the other endpoints: the words of the corpus, and how similar words
are at random.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import APIRouter, Request

from elmokit.analysis.uses import Use, unit_vectors, vectors_of_uses
from elmokit.data import chunks
from elmokit.serve.service import Service

router = APIRouter(prefix="/explore", include_in_schema=False)
# corpus.md beside it says where it comes from.
BUNDLED_CORPUS = Path(__file__).with_name("corpus.txt.zst")
EXAMPLES = ("bank", "letter", "apple", "lead", "play", "spring")
WORDS_READ = 1_000_000  # of a large corpus the first: lines may be whole documents
LEAST_USES = 8  # of the words that are offered
GRAMMAR_WORDS = 250  # the most frequent words, which say little about their neighbors
WORDS_OFFERED = 2000  # the most frequent words after them
PAIRS = 200  # of uses whose similarities are the yardstick


@lru_cache(maxsize=1)
def read_corpus(service: Service) -> tuple[dict[str, Any], list[Use]]:
    """What /explore/corpus answers, and two uses of each of some of the corpus's words, one after
    the other.
    """
    sentences = next(chunks(service.corpus_sentences(), WORDS_READ), [])
    counts = Counter(chain.from_iterable(sentences))
    words = [word for word, _ in counts.most_common() if word.isalpha() and word == word.lower()]
    grammar = words[:GRAMMAR_WORDS]
    frequent = words[GRAMMAR_WORDS : GRAMMAR_WORDS + WORDS_OFFERED]
    offered = [word for word in frequent if counts[word] >= LEAST_USES]
    examples = [word for word in EXAMPLES if counts[word] >= LEAST_USES]
    drawn = random.Random(0)
    measured = set(drawn.sample(offered, min(PAIRS, len(offered))))
    uses: defaultdict[str, list[Use]] = defaultdict(list)
    for sentence in sentences:
        for position, word in enumerate(sentence):
            if word in measured:
                uses[word].append(Use(tuple(sentence), position).window(50))
    corpus = service.config.corpus
    answer = {
        "name": None if corpus == BUNDLED_CORPUS or corpus is None else corpus.name,
        "sentences": len(sentences),
        "words": counts.total(),
        "examples": examples if len(examples) > 3 else offered[: len(EXAMPLES)],
        "frequent": offered,
        "grammar": grammar,
    }
    return answer, [use for word in sorted(uses) for use in drawn.sample(uses[word], 2)]


@lru_cache(maxsize=1)
def measure_pairs(service: Service) -> list[dict[str, Any]]:
    """For each layer, 21 quantiles of the cosines of two random uses.

    `same_word` are pairs of uses of one word, `other_word` pairs of uses of two words.
    """
    _, uses = read_corpus(service)
    if not uses:
        return []
    vectors = vectors_of_uses(uses, service.embedder, "all")
    steps = np.linspace(0, 1, 21)
    quantiles = []
    for layer in range(vectors.shape[1]):
        units = unit_vectors(vectors[:, layer])
        first, second = units[::2], units[1::2]
        same = (first * second).sum(axis=1)
        other = (first @ second.T)[~np.eye(len(first), dtype=bool)]
        quantiles.append(
            {
                "same_word": np.quantile(same, steps).tolist(),
                "other_word": np.quantile(other, steps).tolist(),
            }
        )
    return quantiles


async def _computed(request: Request, compute: Callable[[Service], Any]) -> Any:
    service = request.app.state.service
    return await service.run(request, lambda check: compute(service))


@router.get("/corpus")
async def corpus(request: Request) -> Any:
    """The corpus's name (null: the bundled one), its size, words to look at, its frequent and its
    grammar words.
    """
    answer, _ = await _computed(request, read_corpus)
    return answer


@router.get("/yardstick")
async def yardstick(request: Request) -> Any:
    """Quantiles, in steps of 5 %, of the similarities of random pairs of uses, for each layer."""
    return await _computed(request, measure_pairs)
