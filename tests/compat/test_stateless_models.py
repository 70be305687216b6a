"""Models without a state in the interfaces that carry one: refused when they are loaded."""

from pathlib import Path

import numpy as np
import pytest
from sequence_encoders import CARRYING, CONFIGS, STATELESS, random_bilm

from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.compat.elmoformanylangs import Embedder
from elmokit.compat.seqvec import SeqVecEmbedder
from elmokit.compat.simple_elmo import ElmoModel
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

VOCAB = Vocab(["<S>", "</S>", "<UNK>", "the", "cat"])
SENTENCES = [["the", "cat"], ["the"]]


def saved(name: str, folder: Path) -> Path:
    bilm = random_bilm(name, scale=0.3, characters=True).float()
    softmax = FullSoftmax(len(VOCAB), bilm.config.sequence_encoder.projection_dim)
    save(Pretrained(bilm, softmax=softmax, vocab=VOCAB), folder / "model")
    return folder / "model"


@pytest.mark.parametrize("name", STATELESS)
def test_models_without_a_state_are_refused_when_they_are_loaded(name: str, tmp_path: Path) -> None:
    """Among them are models that merge the directions, which have seen the words that they would be asked for."""
    model, encoder = saved(name, tmp_path), CONFIGS[name].encoder_name
    with pytest.raises(ValueError, match=f"from batch to batch but {encoder} models have none: use elmokit.Embedder"):
        ElmoModel().load(model, full=True)
    with pytest.raises(ValueError, match=f"from call to call but {encoder} models have none: use elmokit.Embedder"):
        Embedder(model)
    with pytest.raises(ValueError, match="set warmup_rounds=0"):
        SeqVecEmbedder(1, model_directory=model)
    assert np.isfinite(SeqVecEmbedder(model_directory=model).embed("MVLS")).all()


@pytest.mark.parametrize("name", CARRYING)
def test_models_with_a_state_are_read_whatever_their_encoder(name: str, tmp_path: Path) -> None:
    model, elmo = saved(name, tmp_path), ElmoModel()
    elmo.load(model)
    vectors = elmo.get_elmo_vectors(SENTENCES, warmup=False)
    for row, array in zip(vectors, Embedder(model, 32).sents2elmo(SENTENCES), strict=True):
        np.testing.assert_allclose(row[: len(array)], array, atol=1e-6)
    assert SeqVecEmbedder(1, model_directory=model).embed("MVLS").shape[1] == 4
