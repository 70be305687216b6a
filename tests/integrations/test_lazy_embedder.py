"""An embedder that waits: loaded once, shared by copies, left out of pickles."""

import copy
import gc
import os
import pickle
from pathlib import Path

import numpy as np
import torch
from tiny_model import tiny_model

from elmokit.checkpoints.loading import BUNDLED_MODELS, save
from elmokit.embed.embedder import Embedder
from elmokit.integrations.lazy_embedder import LazyEmbedder

TEXTS = ["a text"]


def test_copies_share_the_weights_and_pickles_leave_them_out() -> None:
    lazy = LazyEmbedder("en-small", "cpu", "float32")
    embedder = lazy.get()
    assert copy.deepcopy(lazy).get() is embedder
    pickled = pickle.dumps(lazy)
    assert len(pickled) < 500
    assert pickle.loads(pickled).get() is embedder  # while this process has it
    assert (
        pickle.loads(pickle.dumps(LazyEmbedder("en-small", "cpu", "bfloat16"))).get()
        is not embedder
    )
    vectors = embedder.encode(["a text"])
    del lazy, embedder
    gc.collect()
    np.testing.assert_array_equal(pickle.loads(pickled).get().encode(["a text"]), vectors)


def test_all_names_of_a_model_share_one_embedder() -> None:
    embedder = LazyEmbedder("en-small").get()
    names = [None, str(BUNDLED_MODELS / "en-small"), BUNDLED_MODELS / "en-small" / "config.json"]
    assert all(LazyEmbedder(name, "cpu", "float32").get() is embedder for name in names)
    assert LazyEmbedder("en-small", dtype="bfloat16").get() is not embedder


def test_no_new_one_keeps_the_vectors_of_files_that_were_replaced(tmp_path: Path) -> None:
    """In place, of the same size and with the times of the old ones: only their content tells them
    apart.
    """
    model = tiny_model()
    path = tmp_path / "model" / "model.safetensors"
    save(model, tmp_path / "model")
    lazy = LazyEmbedder(str(tmp_path / "model"))
    first = lazy.get().encode(TEXTS)
    pickled = pickle.dumps(lazy)
    status = path.stat()
    assert pickle.dumps(lazy) == pickled
    with torch.no_grad():
        next(model.bilm.parameters()).add_(0.1)
    save(model, tmp_path / "other")
    path.write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    for each in (LazyEmbedder(tmp_path / "model"), pickle.loads(pickled)):
        vectors = each.get().encode(TEXTS)
        assert np.abs(vectors - first).max() > 1e-3
        np.testing.assert_array_equal(vectors, Embedder(tmp_path / "other").encode(TEXTS))
    # By the pickle, caches know the vectors.
    assert pickle.dumps(lazy) == pickled != pickle.dumps(LazyEmbedder(tmp_path / "model"))
    np.testing.assert_array_equal(lazy.get().encode(TEXTS), first)
