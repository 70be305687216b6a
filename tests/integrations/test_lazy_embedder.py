"""An embedder that waits: loaded once, shared by copies, left out of pickles."""

import copy
import pickle

import numpy as np
import pytest

from elmokit.embed.embedder import Embedder
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
    again: Embedder = pickle.loads(pickled).get()
    assert again is not embedder
    np.testing.assert_array_equal(again.encode(["a text"]), embedder.encode(["a text"]))
