"""Uses of a word: the search for them, their similarities against cosines, the nearest ones against
brute force.
"""

from pathlib import Path

import numpy as np
import pytest
from oracle import cosine

from elmokit.analysis.corpora import TextCorpus
from elmokit.analysis.similarity import compare, neighbors
from elmokit.analysis.uses import Use, uses_of
from elmokit.embed.embedder import Embedder

FRUIT = "I eat an apple."
FIRM = "The apple phone is new."
BOTH = "Apple sells no apple, and no apple tree."


def test_uses_of_ignores_case_only_without_an_exact_match() -> None:
    assert [use.position for use in uses_of("apple", ["Apple", "or", "apple", "or", "apple"])] == [
        2,
        4,
    ]
    assert [use.position for use in uses_of("apple", ["An", "APPLE", "pineapple"])] == [1]
    assert [use.words for use in uses_of("1,000,2", ["1", "or", "1,000,2"])] == [("1,000,2",)]
    uses = uses_of("1,000,a,b c", ["1", "a", "1,000", "b", "c"])
    assert [use.words for use in uses] == [("a",), ("1,000",), ("b", "c")]
    assert str(Use(("I", "like", "apple", "."), 2)) == "I like [apple] ."


def test_compare_gives_cosines_of_the_vectors(embedder: Embedder) -> None:
    result = compare("apple", [FRUIT, FIRM, BOTH], embedder, "all")
    assert [(use.sentence[use.position], use.position) for use in result.uses] == [
        ("apple", 3),
        ("apple", 1),
        ("apple", 3),
        ("apple", 7),
    ]
    sentences = [use.sentence for use in result.uses]
    *matrices, of_uses = result.similarities.values()
    for matrix, layers in zip(matrices, (0, 1, 2, "mix"), strict=True):
        vectors = [
            words[use.position]
            for words, use in zip(embedder.embed(sentences, layers), result.uses, strict=True)
        ]
        expected = [[cosine(left, right) for right in vectors] for left in vectors]
        np.testing.assert_allclose(matrix, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(next(iter(result.similarities.values())), 1, rtol=0, atol=1e-5)
    assert all(matrix.max() <= 1 for matrix in result.similarities.values())
    texts = [words.mean(axis=0) for words in embedder.embed(sentences, "top")]
    expected = [[cosine(left, right) for right in texts] for left in texts]
    # Of two vectors of length 1 beside each other, the cosine is the mean of theirs.
    np.testing.assert_allclose(of_uses, np.mean([matrices[2], expected], axis=0), atol=1e-5)


def test_compare_contrasts_two_senses(embedder: Embedder) -> None:
    plant = ["A plant grows.", "Water the plant."]
    works = ["The plant makes cars.", "They shut the plant.", "A plant !"]
    result = compare("plant", plant, embedder, "all", other=works)
    cosines = result.similarities["layer 1 (contextual)"]
    same_pairs = [(0, 1), (2, 3), (2, 4), (3, 4)]
    other_pairs = [(i, j) for i in (0, 1) for j in (2, 3, 4)]
    nearest = [max(set(range(5)) - {use}, key=lambda one: cosines[use, one]) for use in range(5)]
    same, other, count = result.contrasts["layer 1 (contextual)"]
    assert same == pytest.approx(np.mean([cosines[pair] for pair in same_pairs]), abs=1e-6)
    assert other == pytest.approx(np.mean([cosines[pair] for pair in other_pairs]), abs=1e-6)
    assert count == sum((use < 2) == (one < 2) for use, one in enumerate(nearest))
    assert result.contrasts["layer 0 (context-independent)"].nearest_is_same == 0
    assert compare("plant", plant, embedder).contrasts == {}


@pytest.mark.parametrize(
    ("sentences", "other", "message"),
    [
        ([FRUIT, "I eat pears", FIRM], (), "sentence 2 has no word 'apple'"),
        ([FRUIT], (), "at least two uses"),
        ([FRUIT, FIRM], [FIRM], "at least two uses of 'apple' in each sense"),
    ],
)
def test_too_few_uses_are_refused(
    sentences: list[str], other: list[str], message: str, embedder: Embedder
) -> None:
    with pytest.raises(ValueError, match=message):
        compare("apple", sentences, embedder, other=other)


CORPUS = [
    "They play football .",
    "",
    "The play was long .",
    "Nothing of the kind here .",
    "A player is no such word .",
    "They play football .",
    "Play it again , and play it well .",
    "Children play in the garden .",
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus.txt").write_text("\n".join(CORPUS))
    return tmp_path / "corpus.txt"


def test_neighbors_are_sorted_by_cosine(corpus: Path, embedder: Embedder) -> None:
    query = "I saw a play in London ."
    result = neighbors("play", query, corpus, embedder, count=3)
    asked = embedder.embed([query], "top")[0]
    uses = [(0, 1), (2, 1), (6, 5), (7, 1)]
    vectors = embedder.embed([CORPUS[line] for line, _ in uses], "top")
    cosines = {
        (cosine(words[at], asked[3]) + cosine(words.mean(axis=0), asked.mean(axis=0))) / 2: (
            f"{line}:{at}"
        )
        for words, (line, at) in zip(vectors, uses, strict=True)
    }
    expected = sorted(cosines, reverse=True)[:3]
    np.testing.assert_allclose(
        [similarity for similarity, _ in result.nearest], expected, rtol=0, atol=1e-5
    )
    nearest = [
        f"{CORPUS.index(' '.join(use.sentence))}:{use.position}" for _, use in result.nearest
    ]
    assert nearest == [cosines[value] for value in expected]
    assert result.sentences_searched == 5
    assert str(result).splitlines()[0].strip() == "I saw a [play] in London ."


def test_neighbors_searches_any_word(corpus: Path, embedder: Embedder) -> None:
    options = {"count": 1, "any_word": True}
    result = neighbors("football", "They play football !", corpus, embedder, **options)
    assert result.nearest[0][1] == Use(tuple(CORPUS[0].split()), 2)
    assert result.sentences_searched == 7


def test_neighbors_excludes_the_query_sentence(corpus: Path, embedder: Embedder) -> None:
    result = neighbors("play", CORPUS[0], corpus, embedder)
    assert [use.sentence[0] for _, use in result.nearest].count("They") == 0
    assert {use.sentence[0] for _, use in result.nearest} == {"The", "Play", "Children"}
    assert result.sentences_searched == 5


def test_neighbors_raises_when_the_word_is_missing(corpus: Path, embedder: Embedder) -> None:
    for word, sentence in (("play", "Nothing"), ("zebra", "A zebra")):
        with pytest.raises(ValueError, match=f"no .* '{word}'"):
            neighbors(word, sentence, corpus, embedder)


def test_a_search_finds_words_in_which_the_tokenizer_removes_invisible_characters(
    tmp_path: Path,
) -> None:
    (tmp_path / "text.txt").write_text("The chil\u00addren play.\nThe children sleep.\nNo one.\n")
    found = TextCorpus(tmp_path / "text.txt", Embedder()).uses("children")
    assert [use.sentence for uses in found for use in uses] == [
        ("The", "children", "play", "."),
        ("The", "children", "sleep", "."),
    ]
