"""The biLM of the compatible interfaces is prepacked once, and gives the same vectors, with carried state, too."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elmokit.compat import allennlp, bilm_tf, tf_hub

SENTENCES = [["the", "cat", "is", "on", "the", "mat"], ["dogs"], [], ["First", "sentence", "."]]


def old_files(folder: Path) -> tuple[Path, Path]:
    return folder / "options.json", folder / "model.hdf5"


def by_allennlp(folder: Path) -> tuple[Any, Any, Callable[[], Tensor]]:
    elmo = allennlp.Elmo(*old_files(folder), 1, dropout=0.0)
    ids = allennlp.batch_to_ids(SENTENCES)
    return elmo._elmo_lstm, elmo._elmo_lstm._bilm, lambda: elmo(ids)["elmo_representations"][0]


def by_bilm_tf(folder: Path) -> tuple[Any, Any, Callable[[], Tensor]]:
    model = bilm_tf.BidirectionalLanguageModel(*old_files(folder))
    ids = bilm_tf.Batcher(None, 50).batch_sentences(SENTENCES)
    return model, model.bilm, lambda: model(ids)["lm_embeddings"]


def by_tf_hub(folder: Path) -> tuple[Any, Any, Callable[[], Tensor]]:
    module = tf_hub.Module(folder)
    texts = [" ".join(sentence) for sentence in SENTENCES]
    return module, module.bilm, lambda: module(texts, as_dict=True)["elmo"]


def never_prepacked(build: Callable[..., Any], folder: Path) -> tuple[Any, Callable[[], Tensor]]:
    """A biLM in shared memory is not prepacked."""
    _, bilm, call = build(folder)
    bilm.share_memory()
    return bilm, call


@pytest.mark.native(torch.float32)
@pytest.mark.parametrize("build", [by_allennlp, by_bilm_tf, by_tf_hub])
def test_compat_prepacks_the_bilm_once(build: Callable[..., Any], old_model: Path) -> None:
    holder, _, call = build(old_model)
    _, call_original = never_prepacked(build, old_model)
    kept = None
    for _ in range(3):  # the state is carried from call to call, except in the TF-Hub module
        torch.testing.assert_close(call(), call_original(), rtol=1e-5, atol=1e-5)
        assert holder._frozen._prepacked is not None and kept in (None, holder._frozen._prepacked)
        kept = holder._frozen._prepacked


@pytest.mark.native(torch.float32)
@pytest.mark.parametrize("build", [by_allennlp, by_bilm_tf, by_tf_hub])
def test_compat_follows_loaded_weights(build: Callable[..., Any], old_model: Path) -> None:
    _, bilm, call = build(old_model)
    hooked, call_original = never_prepacked(build, old_model)
    for scale in (1.0, 0.5):
        bilm.load_state_dict({name: scale * weight for name, weight in hooked.state_dict().items()})
        hooked.load_state_dict(bilm.state_dict())
        torch.testing.assert_close(call(), call_original(), rtol=1e-5, atol=1e-5)


def test_allennlp_elmo_with_requires_grad_is_not_prepacked(old_model: Path) -> None:
    elmo = allennlp.Elmo(*old_files(old_model), 1, requires_grad=True)
    with torch.no_grad():
        elmo(allennlp.batch_to_ids(SENTENCES))
    assert elmo._elmo_lstm._frozen._prepacked is None


def test_compat_state_dicts_and_copies_are_unaffected(old_model: Path) -> None:
    elmo = allennlp.Elmo(*old_files(old_model), 1).eval()
    elmo._elmo_lstm._elmo_lstm.stateful = False
    ids, names = allennlp.batch_to_ids(SENTENCES), list(elmo.state_dict())
    expected = elmo(ids)["elmo_representations"][0]
    assert list(elmo.state_dict()) == names and isinstance(elmo, nn.Module)
    other = copy.deepcopy(elmo)
    assert other._elmo_lstm._frozen._prepacked is None
    assert torch.equal(other(ids)["elmo_representations"][0], expected)
