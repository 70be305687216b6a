"""Nearest neighbors of a use in a corpus, against brute force over the whole corpus."""

from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import cosine

from elmokit.analysis.config import SearchConfig
from elmokit.analysis.neighbors import neighbors
from elmokit.analysis.uses import Use
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM

FRUIT = "I eat an apple."
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


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    torch.manual_seed(11)
    return Embedder(Pretrained(BiLM(BiLMConfig.preset("tiny")), tokenizer="english-1"), device="cpu")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus.txt").write_text("\n".join(CORPUS))
    return tmp_path / "corpus.txt"


def test_neighbors_are_sorted_by_cosine(corpus: Path, embedder: Embedder) -> None:
    query = "I saw a play in London ."
    result = neighbors("play", query, corpus, embedder, config=SearchConfig(3))
    asked = embedder.embed([query], "top")[0][3]
    uses = [(0, 1), (2, 1), (6, 5), (7, 1)]
    vectors = embedder.embed([CORPUS[line] for line, _ in uses], "top")
    cosines = {cosine(words[at], asked): f"{line}:{at}" for words, (line, at) in zip(vectors, uses, strict=True)}
    expected = sorted(cosines, reverse=True)[:3]
    np.testing.assert_allclose([similarity for similarity, _ in result.nearest], expected, rtol=0, atol=1e-5)
    nearest = [f"{CORPUS.index(' '.join(use.sentence))}:{use.position}" for _, use in result.nearest]
    assert nearest == [cosines[value] for value in expected]
    assert result.sentences_searched == 5
    assert str(result).splitlines()[0].strip() == "I saw a [play] in London ."


def test_neighbors_searches_any_word_and_stops_at_max_sentences(corpus: Path, embedder: Embedder) -> None:
    result = neighbors("football", "They play football !", corpus, embedder, config=SearchConfig(1, any_word=True))
    assert result.nearest[0][1] == Use(tuple(CORPUS[0].split()), 2) and result.nearest[0][0] > 0.9
    assert result.sentences_searched == 7
    assert (
        neighbors("play", FRUIT + "play", corpus, embedder, config=SearchConfig(max_sentences=2)).sentences_searched
        == 2
    )


def test_neighbors_excludes_the_query_sentence(corpus: Path, embedder: Embedder) -> None:
    result = neighbors("play", CORPUS[0], corpus, embedder)
    assert [use.sentence[0] for _, use in result.nearest].count("They") == 0
    assert {use.sentence[0] for _, use in result.nearest} == {"The", "Play", "Children"}
    assert result.sentences_searched == 3


def test_neighbors_of_a_directory_equal_those_of_one_file(corpus: Path, embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    for number, lines in enumerate((CORPUS[:3], CORPUS[3:])):
        (tmp_path / "shards" / f"{number}.txt").write_text("\n".join(lines))
    query = "I saw a play ."
    whole, shards = (neighbors("play", query, source, embedder) for source in (corpus, tmp_path / "shards"))
    assert shards.nearest == whole.nearest and shards.sentences_searched == whole.sentences_searched


@pytest.mark.parametrize("batch", [1, 2, 512])
def test_neighbors_of_equal_similarity_keep_the_order_of_the_corpus(
    batch: int, corpus: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.analysis.neighbors.BATCH_SENTENCES", batch)
    result = neighbors("play", "I saw a play .", corpus, embedder, layers=0, config=SearchConfig(3))  # no context
    assert [use for _, use in result.nearest] == [
        Use(tuple(CORPUS[line].split()), position) for line, position in ((0, 1), (2, 1), (6, 5))
    ]


def test_neighbors_raises_when_the_word_is_missing_or_limits_are_zero(corpus: Path, embedder: Embedder) -> None:
    with pytest.raises(ValueError, match="sentence 1 has no word 'play'"):
        neighbors("play", "Nothing", corpus, embedder)
    with pytest.raises(ValueError, match=r"corpus\.txt has no other sentence with the word 'zebra'"):
        neighbors("zebra", "A zebra", corpus, embedder)
    with pytest.raises(ValueError, match="count"):
        SearchConfig(count=0)
