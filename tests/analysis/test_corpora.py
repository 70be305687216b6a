"""Answers from stored vectors, which are those of embedding the text anew; and the forms of
words.
"""

import re
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import tiny_model

from elmokit.analysis.change import change
from elmokit.analysis.similarity import compare, neighbors
from elmokit.analysis.uses import WordForms, uses_of
from elmokit.analysis.word_map import senses
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file
from elmokit.storage.store import EmbeddingStore

LINES = [
    "They lent the bank money .",
    "The old river bank is green .",
    "",
    "A Bank of the river",
    "They lent the bank money .",
    "My river banks are green , and so is this river bank .",
    "BANK of New York , not a bank of York",
    "Éclair and éclair , no bank",
    "the new york bank",
]
QUERY = "The green river bank is old ."


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n".join(LINES))
    return file


@pytest.fixture(scope="module", params=["mix", "top", 1, "all"])
def stored(request: pytest.FixtureRequest, text: Path, embedder: Embedder) -> Path:
    embed_file(
        text, text.parent / str(request.param), embedder, layers=request.param, sentences_per_part=4
    )
    return text.parent / str(request.param)


def layers_of(stored: Path, default: str = "top") -> str | int:
    return {"1": 1, "all": default, "top": default}.get(stored.name, stored.name)


@pytest.mark.parametrize("word", ["bank", "river bank,banks", "new york", "green"])
@pytest.mark.parametrize("options", [{}, {"any_word": True}, {"count": 2}])
def test_neighbors_in_a_store_are_those_in_its_text(
    word: str, options: dict[str, Any], stored: Path, text: Path, embedder: Embedder
) -> None:
    query = f"{QUERY} new york"
    options = {"count": 70} | options
    result = neighbors(word, query, stored, embedder, **options)
    layers = layers_of(stored, "top" if "any_word" in options else "use")
    expected = neighbors(word, query, text, embedder, layers, **options)
    assert (result.query, result.sentences_searched) == (
        expected.query,
        expected.sentences_searched,
    )
    for one, other in zip(result.nearest, expected.nearest, strict=True):
        assert one.similarity == pytest.approx(other.similarity, abs=2e-5)
    if (
        options["count"] > 2
    ):  # of equal cosines, which rounding orders, another may be among the first
        assert {use for _, use in result.nearest} == {use for _, use in expected.nearest}


def test_senses_in_a_store_are_those_in_its_text(
    stored: Path, text: Path, embedder: Embedder
) -> None:
    result = senses(["bank", "banks"], stored, embedder)
    expected = senses(["bank", "banks"], text, embedder, layers_of(stored, "use"))
    assert (result.uses, result.uses_in_corpus, result.clusters) == (
        expected.uses,
        9,
        expected.clusters,
    )
    np.testing.assert_array_equal(result.labels, expected.labels)
    if stored.name == "all":
        np.testing.assert_allclose(result.planes, expected.planes, atol=1e-4)
    assert len(result.planes) == {"all": 4, "top": 2}.get(stored.name, 1)


def test_change_between_stores_is_that_between_their_texts(
    stored: Path, text: Path, embedder: Embedder
) -> None:
    (text.parent / "other.txt").write_text("\n".join(LINES[:2] + LINES[5:6]))
    words = ["bank", "York", ["river bank", "river banks"]]
    options = {"permutations": 20, "layers": layers_of(stored)}
    result = change(words, stored, text.parent / "other.txt", embedder, **options)
    expected = change(words, text, text.parent / "other.txt", embedder, **options)
    assert [each.uses for each in result.words] == [(7, 3), (3, 0), (3, 3)]
    for one, other in zip(result.words, expected.words, strict=True):
        assert (one.pairwise is None) == (one.word == "York") == (other.pairwise is None)
        if one.pairwise is not None and other.pairwise is not None:
            assert one.pairwise.distance == pytest.approx(other.pairwise.distance, abs=1e-5)
    assert "too rare, with fewer than 2 uses: York" in str(result)


def test_a_store_of_another_model_or_other_layers_is_refused(
    stored: Path, embedder: Embedder
) -> None:
    other = Embedder(tiny_model(), "cpu")
    for asked, model, message in ((0, embedder, "layers"), (None, other, "another model")):
        if stored.name != "all" or model is other:
            with pytest.raises(ValueError, match=message):
                neighbors("bank", QUERY, stored, model, asked)


def test_lines_with_a_word_are_found_whatever_its_case(text: Path, stored: Path) -> None:
    store = EmbeddingStore(stored)
    for words in ("bank", "BANK"), ("éclair",), ("the", "york"), ("absent",), ():
        lowered = {word.lower() for word in words}
        expected = [
            number for number, line in enumerate(LINES) if lowered & set(line.lower().split())
        ]
        assert list(store.lines_with(words)) == expected


# --- Forms ----------------------------------------------------------------------------------------

FORMS = [" ".join(words) for length in (1, 2, 3) for words in product("aAb", repeat=length)]


@given(st.lists(st.sampled_from("aAbBc")), st.lists(st.sampled_from(FORMS), min_size=1, max_size=3))
def test_uses_of_forms_are_the_leftmost_and_longest(words: list[str], forms: list[str]) -> None:
    pattern = rf"(?<!\S)(?:{'|'.join(sorted(forms, key=len, reverse=True))})(?!\S)"
    matches = [*re.finditer(pattern, " ".join(words))] or [
        *re.finditer(pattern, " ".join(words), re.IGNORECASE)
    ]
    places = [(match.start() // 2, match.group().count(" ") + 1) for match in matches]
    assert [(use.position, use.length) for use in uses_of(forms, words)] == places
    assert uses_of(",".join(forms), words) == uses_of(forms, words)


def test_a_phrase_is_looked_for_as_the_tokenizer_splits_it_and_has_the_mean_vector(
    embedder: Embedder,
) -> None:
    result = compare("can't", ["I can't swim .", "We can't ."], embedder, "top")
    assert [use.words for use in result.uses] == [("ca", "n't")] * 2
    vectors = [
        array[1:3].mean(axis=0) for array in embedder.embed(["I can't swim .", "We can't ."], "top")
    ]
    cosine = vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    assert result.similarities["top"][0, 1] == pytest.approx(cosine, abs=1e-5)
    assert str(result.uses[0]) == "I [ca n't] swim ."


def test_words_that_are_marks() -> None:
    assert WordForms.of(",").forms == {(",",)}
    assert WordForms.of(["1,000"]).forms == {("1,000",)}


@pytest.mark.parametrize(
    ("card", "is_doubted"),
    [
        (None, False),
        ("- words seen: 192 of a corpus of 200", True),
        ("- words seen: 9\n- held-out perplexity: 629.31 (forward 1, backward 2)", True),
        ("- words seen: 9\n- held-out pseudo-perplexity: 41.20 (each word)", False),
    ],
)
def test_a_model_that_learned_hardly_anything_is_doubted(
    card: str | None, is_doubted: bool
) -> None:
    embedder = Embedder(tiny_model(card=card))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compare("dog", ["a dog", "the dog"], embedder)
        senses("dog", ["a dog", "the dog", "dogs or a dog"], embedder)
    assert ["toy" in str(warning.message) for warning in caught] == [True, True] * is_doubted


def test_words_inside_longer_ones_are_named(tmp_path: Path) -> None:
    texts = ["我 吃 苹果", "苹果公司 很 大", "买 苹果", "苹果公司 和 苹果树", "苹果 好吃"]
    embedder = Embedder(tiny_model(tokenizer="whitespace-1"))
    with pytest.warns(UserWarning, match=r"苹果公司 2, 苹果树 1.*苹果,苹果公司,苹果树"):
        assert len(senses("苹果", texts, embedder).uses) == 3
    assert len(senses("苹果,苹果公司,苹果树", texts, embedder).uses) == 6
    with pytest.warns(UserWarning, match="苹果公司 2, 苹果树 1"):
        change("苹果", texts, ["苹果 树", "苹果 好"], embedder, permutations=0)
    with pytest.raises(ValueError, match="give both: 苹果,苹果公司"):
        compare("苹果", texts[:2], embedder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        senses("dog", ["a dog", "the dog", "hot dogs or a dog"], embedder)  # with spaces
