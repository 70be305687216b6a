"""What the page shows besides the other endpoints: the words of the corpus, and how similar words
are at random.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import APIRouter, Request

from elmokit.analysis.uses import Use, unit_vectors, vectors_of_uses
from elmokit.data import sentence_batches
from elmokit.embed import layer_weights
from elmokit.serve.service import Service, ServiceRequest

router = APIRouter(prefix="/explore", include_in_schema=False)
BUNDLED_CORPUS = Path(__file__).with_name(
    "corpus.txt.zst"
)  # corpus.md beside it says where it comes from
EXAMPLES = (
    "bank",
    "letter",
    "apple",
    "lead",
    "play",
    "spring",
    "court",
    "party",
    "match",
    "plant",
    "light",
    "note",
    "bill",
    "seal",
    "cell",
    "ring",
)
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
    sentences = next(sentence_batches(service.corpus_sentences(), WORDS_READ), [])
    counts = Counter(chain.from_iterable(sentences))
    in_small_letters = [
        word for word, _ in counts.most_common() if word.isalpha() and word == word.lower()
    ]
    grammar, offered = (
        in_small_letters[:GRAMMAR_WORDS],
        in_small_letters[GRAMMAR_WORDS:][:WORDS_OFFERED],
    )
    offered = [word for word in offered if counts[word] >= LEAST_USES]
    examples = [word for word in EXAMPLES if counts[word] >= LEAST_USES]
    drawn = random.Random(0)
    measured = set(drawn.sample(offered, min(PAIRS, len(offered))))
    uses: defaultdict[str, list[Use]] = defaultdict(list)
    for sentence in sentences:
        for position in (position for position, word in enumerate(sentence) if word in measured):
            uses[sentence[position]].append(Use(tuple(sentence), position).window(50))
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
    """For each layer, and for their mix where there are several, 21 quantiles of the cosines of two
    random uses.

    `same_word` are pairs of uses of one word, `other_word` pairs of uses of two words.
    """
    _, uses = read_corpus(service)
    if not uses:
        return []
    vectors = vectors_of_uses(uses, service.embedder, "all")
    mix = np.einsum("nld,l->nd", vectors, layer_weights(service.embedder.model, "mix").numpy())
    representations = [*np.moveaxis(vectors, 1, 0), *([mix] if vectors.shape[1] > 1 else [])]
    steps = np.linspace(0, 1, 21)

    def quantiles(units: np.ndarray) -> dict[str, list[float]]:
        first, second = units[::2], units[1::2]
        same, other = (
            (first * second).sum(axis=1),
            (first @ second.T)[~np.eye(len(first), dtype=bool)],
        )
        return {
            "same_word": np.quantile(same, steps).tolist(),
            "other_word": np.quantile(other, steps).tolist(),
        }

    return [quantiles(unit_vectors(each)) for each in representations]


async def _computed(request: Request, compute: Any) -> Any:
    """What a function, whose results are cached, gives for the service."""
    service, is_long = request.app.state.service, not compute.cache_info().currsize
    return await ServiceRequest(request.scope, request.receive).run(
        lambda job: compute(service), is_long
    )


@router.get("/corpus")
async def corpus(request: Request) -> Any:
    """The corpus's name (null: the bundled one), its size, words to look at, its frequent and its
    grammar words.
    """
    answer, _ = await _computed(request, read_corpus)
    return answer


@router.get("/yardstick")
async def yardstick(request: Request) -> Any:
    """Quantiles, in steps of 5 %, of the similarities of random pairs of uses, for each layer and
    their mix.
    """
    return await _computed(request, measure_pairs)
