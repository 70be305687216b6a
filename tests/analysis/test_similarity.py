"""Similarities of the uses of a word, against cosines of the embedder's vectors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from oracle import cosine

from elmokit.analysis.similarity import compare
from elmokit.analysis.uses import Use, uses_of
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, InterleavedConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM

FRUIT, FIRM, BOTH = "I eat an apple.", "The apple phone is new.", "Apple sells no apple, and no apple tree."


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    torch.manual_seed(11)
    return Embedder(Pretrained(BiLM(BiLMConfig.preset("tiny")), tokenizer="english-1"), device="cpu")


def test_uses_of_ignores_case_only_without_an_exact_match() -> None:
    assert [use.position for use in uses_of("apple", ["Apple", "or", "apple", "or", "apple"])] == [2, 4]
    assert [use.position for use in uses_of("apple", ["An", "APPLE", "pineapple"])] == [1]
    assert str(Use(("I", "like", "apple", "."), 2)) == "I like [apple] ."


def test_compare_gives_cosines_of_the_vectors(embedder: Embedder) -> None:
    result = compare("apple", [FRUIT, FIRM, BOTH], embedder)
    assert [(use.sentence[use.position], use.position) for use in result.uses] == [
        ("apple", 3),
        ("apple", 1),
        ("apple", 3),
        ("apple", 7),
    ]
    sentences = [use.sentence for use in result.uses]
    for matrix, layers in zip(result.similarities.values(), (0, 1, 2, "mix"), strict=True):
        vectors = [
            words[use.position] for words, use in zip(embedder.embed(sentences, layers), result.uses, strict=True)
        ]
        expected = [[cosine(left, right) for right in vectors] for left in vectors]
        np.testing.assert_allclose(matrix, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(next(iter(result.similarities.values())), 1, rtol=0, atol=1e-5)


def test_no_similarity_is_above_one(embedder: Embedder) -> None:
    result = compare("apple", [f"{number} apples and an apple ." for number in range(60)], embedder)
    assert all(1 - 1e-6 < matrix.max() <= 1 for matrix in result.similarities.values())


def test_comparison_prints_sentences_and_tables(embedder: Embedder) -> None:
    printed = str(compare("apple", [FRUIT, FIRM, FRUIT], embedder))
    assert printed.startswith("1  I eat an [apple] .\n2  The [apple] phone is new .\n3  I eat an [apple] .\n\nlayer 0")
    assert "\n      1     2     3\n1  1.00  1.00  1.00\n2  1.00  1.00  1.00\n3  1.00" in printed
    assert str(compare("apple", [FRUIT, FIRM], embedder, layers="top")).count("\n\n") == 1


def test_compare_calls_the_layer_of_a_model_with_one_contextual() -> None:
    config = BiLMConfig.preset("tiny")
    top = InterleavedConfig(2, 32, config.sequence_encoder.projection_dim, projects_layers=False)
    model = Pretrained(BiLM(replace(config, lstm=None, interleaved=top)), tokenizer="english-1")
    one = Embedder(model, device="cpu")
    similarities = compare("apple", [FRUIT, FIRM], one).similarities
    assert list(similarities) == ["top layer (contextual)"]
    expected = compare("apple", [FRUIT, FIRM], one, layers="top").similarities["top"]
    np.testing.assert_allclose(similarities["top layer (contextual)"], expected, atol=1e-6)


def test_compare_contrasts_two_senses(embedder: Embedder) -> None:
    plant, works = (
        ["A plant grows.", "Water the plant."],
        ["The plant makes cars.", "They shut the plant.", "A plant !"],
    )
    result = compare("plant", plant, embedder, other=works)
    cosines = result.similarities["layer 1 (contextual)"]
    same_pairs, other_pairs = [(0, 1), (2, 3), (2, 4), (3, 4)], [(i, j) for i in (0, 1) for j in (2, 3, 4)]
    nearest = [max(set(range(5)) - {use}, key=lambda one: cosines[use, one]) for use in range(5)]
    same, other, count = result.contrasts["layer 1 (contextual)"]
    assert same == pytest.approx(np.mean([cosines[pair] for pair in same_pairs]), abs=1e-6)
    assert other == pytest.approx(np.mean([cosines[pair] for pair in other_pairs]), abs=1e-6)
    assert count == sum((use < 2) == (one < 2) for use, one in enumerate(nearest))
    assert result.contrasts["layer 0 (context-independent)"].nearest_is_same == 0
    last = str(result).split("\n\n")[-1].splitlines()
    assert last[0].startswith("mean similarity") and len(last) == 1 + len(result.similarities)
    assert last[2].split()[-5:] == [f"{same:.2f}", f"{other:.2f}", str(count), "of", "5"]
    header, row = str(compare("plant", plant, embedder, layers="top", other=works)).split("\n\n")[-1].splitlines()
    assert len(header) == len(row) and row.startswith("top ")
    assert compare("plant", plant, embedder).contrasts == {}
    with pytest.raises(ValueError, match="at least two uses of 'plant' in each sense"):
        compare("plant", plant, embedder, other=works[:1])


def test_compare_raises_when_the_word_is_missing_or_occurs_once(embedder: Embedder) -> None:
    with pytest.raises(ValueError, match=r"sentence 2 has no word 'apple'; its words are: I \| eat \| pears"):
        compare("apple", [FRUIT, "I eat pears", FIRM], embedder)
    with pytest.raises(ValueError, match="at least two uses"):
        compare("apple", [FRUIT], embedder)


def test_compare_raises_for_a_text_in_place_of_a_list(embedder: Embedder) -> None:
    for sentences, other in ((FRUIT, ()), ([FRUIT, FIRM], FRUIT)):
        with pytest.raises(ValueError, match="list of sentences"):
            compare("apple", sentences, embedder, other=other)
