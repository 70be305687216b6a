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


def test_a_new_embedder_reads_the_files_as_they_are_now(tmp_path: Path) -> None:
    model = load(softmax=False)
    save(model, tmp_path / "model")
    first = LazyEmbedder(tmp_path / "model").get().encode(["a text"])
    with torch.no_grad():
        next(model.bilm.parameters()).add_(0.1)
    save(model, tmp_path / "model", overwrite=True)
    assert np.abs(LazyEmbedder(tmp_path / "model").get().encode(["a text"]) - first).max() > 1e-3


def test_a_pickle_reads_the_files_as_they_are_now(tmp_path: Path) -> None:
    model = load(softmax=False)
    save(model, tmp_path / "model")
    lazy = LazyEmbedder(str(tmp_path / "model"))
    first, pickled = lazy.get().encode(["a text"]), pickle.dumps(lazy)
    with torch.no_grad():
        next(model.bilm.parameters()).add_(0.1)
    save(model, tmp_path / "model", overwrite=True)
    assert np.abs(pickle.loads(pickled).get().encode(["a text"]) - first).max() > 1e-3


def test_a_pickle_differs_with_the_weights_that_compute(tmp_path: Path) -> None:
    model = load(softmax=False)
    save(model, tmp_path / "model")
    lazy = LazyEmbedder(tmp_path / "model")
    first, pickled = lazy.get().encode(["a text"]), pickle.dumps(lazy)
    with torch.no_grad():
        next(model.bilm.parameters()).add_(0.1)
    save(model, tmp_path / "model", overwrite=True)
    np.testing.assert_array_equal(lazy.get().encode(["a text"]), first)
    assert pickle.dumps(lazy) == pickled  # a cache must not take its vectors for those of the new weights
    assert pickle.dumps(LazyEmbedder(tmp_path / "model")) != pickled


def test_a_broken_link_among_the_files_does_not_stop_a_pickle(tmp_path: Path) -> None:
    save(load(softmax=False), tmp_path / "model")
    (tmp_path / "model" / "link").symlink_to("nowhere")
    assert pickle.dumps(LazyEmbedder(tmp_path / "model"))
