"""Batches of stored sentences: the vectors of each, and zeros."""

import numpy as np
import pytest
import torch

from elmokit.storage.collate import collate


@pytest.mark.parametrize("shape", [(4,), (3, 4)], ids=["mix", "all layers"])
def test_collate_pads_sentences_with_zeros(shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(1)
    lengths = [2, 0, 3]
    sentences = [([f"w{n}"] * n, draw.standard_normal((n, *shape)).astype(np.float16)) for n in lengths]
    batch = collate(sentences)
    assert batch.words == [words for words, _ in sentences]
    assert batch.vectors.shape == (3, 3, *shape) and batch.vectors.dtype == torch.float32
    assert batch.mask.tolist() == [[True, True, False], [False] * 3, [True] * 3]
    for row, (_, vectors) in enumerate(sentences):
        np.testing.assert_array_equal(batch.vectors[row, : len(vectors)], vectors.astype(np.float32))
    assert not batch.vectors[~batch.mask].any()


def test_collate_gives_float32_on_the_cpu_whatever_pytorchs_defaults_are() -> None:
    sentences = [(["a"], np.ones((1, 4), np.float16)), ([], np.ones((0, 4), np.float16))]
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):  # stands for a GPU
            batch = collate(sentences)
    finally:
        torch.set_default_dtype(torch.float32)
    assert batch.vectors.dtype == torch.float32 and batch.mask.tolist() == [[True], [False]]
    assert batch.vectors.tolist() == [[[1.0] * 4], [[0.0] * 4]]
