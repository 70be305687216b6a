"""bio_embeddings' SeqVecEmbedder and SeqVec's own ways, on a random model in SeqVec's layout."""

import random
from pathlib import Path

import numpy as np
import pytest

from elmokit.compat.allennlp import ElmoEmbedder
from elmokit.compat.seqvec import WARMUP_SEQUENCE, SeqVecEmbedder


def proteins(lengths: list[int]) -> list[str]:
    draw = random.Random(len(lengths))
    return ["".join(draw.choices("ACDEFGHIKLMNPQRSTVWY", k=length)) for length in lengths]


@pytest.fixture
def files(old_model: Path) -> dict[str, Path]:
    return {"options_file": old_model / "options.json", "weights_file": old_model / "model.hdf5"}


def original(files: dict[str, Path]) -> ElmoEmbedder:
    """The class that SeqVec and bio_embeddings call; tests/golden compares it with
    AllenNLP.
    """
    return ElmoEmbedder(files["options_file"], files["weights_file"])


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    """Within rounding: with these random weights, float32 is up to 2e-5 away from float64 after 70
    residues.
    """
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=5e-5)


def test_default_is_the_original_from_zeros_after_any_calls(files: dict[str, Path]) -> None:
    embedder = SeqVecEmbedder(**files)
    elmo = original(files)
    elmo.elmo_bilm._elmo_lstm.stateful = False
    assert (embedder.embedding_dimension, embedder.number_of_layers) == (32, 3)
    for sequence in [*proteins([9, 40, 1]), *proteins([9, 40, 1])[::-1]]:
        assert_close(embedder.embed(sequence), elmo.embed_sentence(list(sequence)))
    together = list(embedder.embed_batch(np.array(proteins([9, 40, 1]))))
    for found, sequence in zip(together, proteins([9, 40, 1]), strict=True):
        assert_close(found, elmo.embed_sentence(list(sequence)))


def test_warm_up_carries_the_state_as_the_original_did(files: dict[str, Path]) -> None:
    embedder = SeqVecEmbedder(warmup_rounds=4, **files)
    elmo = original(files)
    for _ in range(4):
        elmo.embed_sentence(list(WARMUP_SEQUENCE))
    for batch in (proteins([9, 40, 1]), proteins([5, 12]), proteins([3, 8, 2, 30]), proteins([7])):
        expected = elmo.embed_batch([list(sequence) for sequence in batch])
        for found, vectors in zip(embedder.embed_batch(batch), expected, strict=True):
            assert_close(found, vectors)
    assert_close(embedder.embed("MVLS"), elmo.embed_sentence(list("MVLS")))


def test_embed_many_keeps_the_order_and_does_not_depend_on_the_batch(
    files: dict[str, Path],
) -> None:
    embedder = SeqVecEmbedder(**files)
    sequences = proteins([4, 9, 50, 2, 7, 0, 20])
    alone = [embedder.embed(sequence) for sequence in sequences]
    for batch_size in (None, 10, 21, 1000):  # the fourth is longer than the first two
        found = list(embedder.embed_many(iter(sequences), batch_size))
        assert [array.shape for array in found] == [
            (3, len(sequence), 32) for sequence in sequences
        ]
        for array, expected in zip(found, alone, strict=True):
            assert_close(array, expected)
    assert list(embedder.embed_many([], 10)) == []
