"""An embedder that waits: loaded once, shared by copies, left out of pickles."""

import copy
import gc
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.checkpoints.loading import load, save
from elmokit.integrations.lazy_embedder import LazyEmbedder


def test_the_model_is_loaded_at_first_use_and_kept() -> None:
    lazy = LazyEmbedder("nowhere")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        lazy.get()
    lazy = LazyEmbedder("en-small")
    assert lazy.get() is lazy.get()


def test_copies_share_the_weights_and_pickles_leave_them_out() -> None:
    lazy = LazyEmbedder("en-small", "cpu", "float32")
    embedder = lazy.get()
    assert copy.deepcopy(lazy).get() is embedder
    pickled = pickle.dumps(lazy)
    assert len(pickled) < 500
    assert pickle.loads(pickled).get() is embedder  # while this process has it
    assert pickle.loads(pickle.dumps(LazyEmbedder("en-small", "cpu", "bfloat16"))).get() is not embedder
    vectors = embedder.encode(["a text"])
    del lazy, embedder
    gc.collect()
    np.testing.assert_array_equal(pickle.loads(pickled).get().encode(["a text"]), vectors)


def test_a_model_that_is_written_again_is_another(tmp_path: Path) -> None:
    model, texts = load(softmax=False), ["a text"]
    save(model, tmp_path / "model")
    lazy = LazyEmbedder(str(tmp_path / "model"))
    first, pickled = lazy.get().encode(texts), pickle.dumps(lazy)
    with torch.no_grad():
        next(model.bilm.parameters()).add_(0.1)
    save(model, tmp_path / "model", overwrite=True)
    again = LazyEmbedder(tmp_path / "model")
    for fresh in (again, pickle.loads(pickled)):
        assert np.abs(fresh.get().encode(texts) - first).max() > 1e-3
    np.testing.assert_array_equal(lazy.get().encode(texts), first)
    assert pickle.dumps(lazy) == pickled  # a cache must not take its vectors for those of the new weights
    assert pickle.dumps(again) != pickled
