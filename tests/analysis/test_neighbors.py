"""Uses of a word searched in a corpus, against a plain computation over all of it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.analysis.neighbors import Search, neighbors
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


def cosine(left: np.ndarray, right: np.ndarray) -> float:
    return float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))


def test_neighbors_are_the_nearest_uses(corpus: Path, embedder: Embedder) -> None:
    query = "I saw a play in London ."
    found = neighbors("play", query, corpus, embedder, search=Search(3))
    asked = embedder.embed([query], "top")[0][3]
    uses = [(0, 1), (2, 1), (6, 5), (7, 1)]
    vectors = embedder.embed([CORPUS[line] for line, _ in uses], "top")
    cosines = {cosine(words[at], asked): f"{line}:{at}" for words, (line, at) in zip(vectors, uses, strict=True)}
    expected = sorted(cosines, reverse=True)[:3]
    np.testing.assert_allclose([similarity for similarity, _ in found.nearest], expected, rtol=0, atol=1e-5)
    nearest = [f"{CORPUS.index(' '.join(use.sentence))}:{use.position}" for _, use in found.nearest]
    assert nearest == [cosines[value] for value in expected]
    assert found.sentences_searched == 5
    assert str(found).splitlines()[0].strip() == "I saw a [play] in London ."


def test_any_word_can_be_a_neighbor_and_a_search_can_stop(corpus: Path, embedder: Embedder) -> None:
    found = neighbors("football", "They play football !", corpus, embedder, search=Search(1, any_word=True))
    assert found.nearest[0][1] == Use(tuple(CORPUS[0].split()), 2) and found.nearest[0][0] > 0.9
    assert found.sentences_searched == 7
    assert neighbors("play", FRUIT + "play", corpus, embedder, search=Search(max_sentences=2)).sentences_searched == 2


def test_the_sentence_itself_is_no_neighbor(corpus: Path, embedder: Embedder) -> None:
    found = neighbors("play", CORPUS[0], corpus, embedder)
    assert [use.sentence[0] for _, use in found.nearest].count("They") == 0
    assert {use.sentence[0] for _, use in found.nearest} == {"The", "Play", "Children"}
    assert found.sentences_searched == 3


def test_a_corpus_may_be_a_directory(corpus: Path, embedder: Embedder, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    for number, lines in enumerate((CORPUS[:3], CORPUS[3:])):
        (tmp_path / "shards" / f"{number}.txt").write_text("\n".join(lines))
    query = "I saw a play ."
    whole, shards = (neighbors("play", query, source, embedder) for source in (corpus, tmp_path / "shards"))
    assert shards.nearest == whole.nearest and shards.sentences_searched == whole.sentences_searched


def test_a_search_in_groups_finds_the_same(corpus: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = neighbors("play", CORPUS[2], corpus, embedder, search=Search(3))
    monkeypatch.setattr("elmokit.analysis.neighbors.SENTENCES_AT_ONCE", 1)
    pieces = neighbors("play", CORPUS[2], corpus, embedder, search=Search(3))
    assert [use for _, use in pieces.nearest] == [use for _, use in whole.nearest]


def test_a_search_for_what_is_not_there_is_told(corpus: Path, embedder: Embedder) -> None:
    with pytest.raises(ValueError, match="sentence 1 has no word 'play'"):
        neighbors("play", "Nothing", corpus, embedder)
    with pytest.raises(ValueError, match=r"corpus\.txt has no other sentence with the word 'zebra'"):
        neighbors("zebra", "A zebra", corpus, embedder)
    with pytest.raises(ValueError, match="at least one neighbor"):
        Search(count=0)
    with pytest.raises(ValueError, match="at least one sentence"):
        Search(max_sentences=0)
