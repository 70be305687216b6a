"""Interfaces that carry a state, with models of every encoder: those without a state are refused."""

from pathlib import Path

import numpy as np
import pytest
from sequence_encoders import CARRYING, STATELESS, random_bilm

from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.compat.elmoformanylangs import Embedder
from elmokit.compat.seqvec import SeqVecEmbedder
from elmokit.compat.simple_elmo import ElmoModel

SENTENCES = [["the", "cat"], ["the"]]


@pytest.mark.parametrize("name", [*STATELESS, *CARRYING])
def test_models_with_a_state_are_read_whatever_their_encoder(name: str, tmp_path: Path) -> None:
    model, elmo = tmp_path / "model", ElmoModel()
    save(Pretrained(random_bilm(name, scale=0.3, characters=True).float()), model)
    if name in STATELESS:
        for open_model in (elmo.load, Embedder, lambda path: SeqVecEmbedder(1, model_directory=path)):
            with pytest.raises(ValueError, match="state"):
                open_model(model)
        assert np.isfinite(SeqVecEmbedder(model_directory=model).embed("MVLS")).all()
        return
    elmo.load(model)
    vectors = elmo.get_elmo_vectors(SENTENCES, warmup=False)
    for row, array in zip(vectors, Embedder(model, 32).sents2elmo(SENTENCES), strict=True):
        np.testing.assert_allclose(row[: len(array)], array, atol=1e-6)
    assert SeqVecEmbedder(1, model_directory=model).embed("MVLS").shape[1] == 4
