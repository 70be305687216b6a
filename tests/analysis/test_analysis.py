"""Uses of a word compared and searched, and perplexity of files, against plain computations."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.analysis.neighbors import Search, neighbors
from elmokit.analysis.similarity import compare
from elmokit.analysis.uses import Use, uses_of
from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.lm.evaluate import evaluate
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

FRUIT, FIRM, BOTH = "I eat an apple.", "The apple phone is new.", "Apple sells no apple, and no apple tree."
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


# --- compare -------------------------------------------------------------------------------------------------------


def test_a_use_is_found_as_spelled_or_else_in_any_case() -> None:
    assert [use.position for use in uses_of("apple", ["Apple", "or", "apple", "or", "apple"])] == [2, 4]
    assert [use.position for use in uses_of("apple", ["An", "APPLE", "pineapple"])] == [1]
    assert str(Use(("I", "like", "apple", "."), 2)) == "I like [apple] ."


def test_similarities_are_cosines_of_the_vectors(embedder: Embedder) -> None:
    found = compare("apple", [FRUIT, FIRM, BOTH], embedder)
    assert [(use.sentence[use.position], use.position) for use in found.uses] == [
        ("apple", 3),
        ("apple", 1),
        ("apple", 3),
        ("apple", 7),
    ]
    sentences = [use.sentence for use in found.uses]
    for matrix, layers in zip(found.similarities.values(), (0, 1, 2, "mix"), strict=True):
        vectors = [
            words[use.position] for words, use in zip(embedder.embed(sentences, layers), found.uses, strict=True)
        ]
        expected = [[cosine(left, right) for right in vectors] for left in vectors]
        np.testing.assert_allclose(matrix, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(next(iter(found.similarities.values())), 1, rtol=0, atol=1e-5)


def test_a_comparison_is_printed_with_its_sentences(embedder: Embedder) -> None:
    printed = str(compare("apple", [FRUIT, FIRM, FRUIT], embedder))
    assert printed.startswith("1  I eat an [apple] .\n2  The [apple] phone is new .\n3  I eat an [apple] .\n\nlayer 0")
    table = "           1      2      3\n    1   1.00   1.00   1.00\n    2   1.00   1.00   1.00\n    3   1.00"
    assert table in printed
    assert str(compare("apple", [FRUIT, FIRM], embedder, layers="top")).count("\n\n") == 1


def test_a_comparison_that_cannot_be_made_is_told(embedder: Embedder) -> None:
    with pytest.raises(ValueError, match=r"sentence 2 has no word 'apple'; its words are: I \| eat \| pears"):
        compare("apple", [FRUIT, "I eat pears", FIRM], embedder)
    with pytest.raises(ValueError, match="at least twice"):
        compare("apple", [FRUIT], embedder)


# --- neighbors -----------------------------------------------------------------------------------------------------


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


# --- evaluate ------------------------------------------------------------------------------------------------------


def with_softmax(**settings) -> Pretrained:
    torch.manual_seed(2)
    vocab = Vocab(["<S>", "</S>", "<UNK>", "play", "They", "."])
    return Pretrained(BiLM(BiLMConfig.preset("tiny")), softmax=FullSoftmax(len(vocab), 16), vocab=vocab, **settings)


def test_perplexity_equals_that_of_bilm_tf(shared: Path) -> None:
    golden = shared / "goldens" / "bilm_tf_training"
    model, arrays = load(golden), np.load(golden / "softmax.npz")
    softmax = FullSoftmax(*arrays["W"].shape)
    softmax.load_state_dict({"weight": torch.from_numpy(arrays["W"]), "bias": torch.from_numpy(arrays["b"])})
    model = Pretrained(model.bilm, softmax=softmax, vocab=Vocab.read(golden / "vocab.txt"))
    found = evaluate([golden / "heldout.txt"], model, device="cpu").total
    expected = json.loads((golden / "expected.json").read_text())
    assert found.mean == pytest.approx(expected["perplexity_batch_1"], rel=1e-4)
    assert found.forward == pytest.approx(expected["perplexity_batch_1_forward"], rel=1e-4)
    assert found.backward == pytest.approx(expected["perplexity_batch_1_backward"], rel=1e-4)
    assert found.predictions == expected["words_per_direction_batch_1"]


def test_the_total_is_that_of_one_text(tmp_path: Path, corpus: Path) -> None:
    (tmp_path / "first.txt").write_text("\n".join(CORPUS[:3]))
    (tmp_path / "second.txt").write_text("\n".join(CORPUS[3:]))
    model = with_softmax()
    found = evaluate([tmp_path / "first.txt", tmp_path / "second.txt"], model, state="zeros", device="cpu")
    whole = evaluate([corpus], model, state="zeros", device="cpu")
    assert list(found.files) == [str(tmp_path / "first.txt"), str(tmp_path / "second.txt")]
    assert (found.total.sentences, found.total.predictions) == (7, whole.total.predictions)
    assert found.total.unknown == whole.total.unknown > 0
    for direction in ("forward", "backward", "mean"):
        assert getattr(found.total, direction) == pytest.approx(getattr(whole.total, direction), rel=1e-5)


def test_what_cannot_be_evaluated_is_told(tmp_path: Path, corpus: Path, embedder: Embedder) -> None:
    with pytest.raises(ValueError, match="needs a model with its softmax and vocabulary"):
        evaluate([corpus], embedder.model)
    (tmp_path / "blank.txt").write_text("\n\n")
    with pytest.raises(ValueError, match=r"blank\.txt: there is no sentence"):
        evaluate([tmp_path / "blank.txt"], with_softmax())
    with pytest.raises(ValueError, match="needs a model with a stored state"):
        evaluate([corpus], with_softmax(), state="warm")
