"""ELMoForManyLangs' vectors, against those of the original library and a sentence at a time."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from efml_files import write_efml

import elmokit
from elmokit.compat.elmoformanylangs import Embedder

SENTENCES = [["the", "cat"], ["今"], ["the", "the", "cat", "."], ["cat", "a/b"]]

pytestmark = pytest.mark.filterwarnings(
    "ignore:batches are processed longest first", "ignore:.*too long"
)


def check(golden: Path, result: dict[str, list[np.ndarray]]) -> None:
    with np.load(golden) as arrays:
        for key, found in result.items():
            for number, array in enumerate(found):
                assert array.dtype == np.float32
                np.testing.assert_allclose(
                    array, arrays[f"{key}_{number}"], atol=1e-6, rtol=0, err_msg=key
                )


@pytest.mark.parametrize("name", ["elmo_cnn", "elmo_word"])
def test_sents2elmo_equals_elmoformanylangs(goldens: Callable[[str], Path], name: str) -> None:
    folder = goldens("elmoformanylangs")
    sentences = json.loads((folder / "sentences.json").read_text())
    twice = Embedder(folder / name)
    twice.sents2elmo(sentences)
    result = {
        "second": twice.sents2elmo(sentences, -2),
        "b1_L-2": Embedder(folder / name, 1).sents2elmo(sentences[:2], -2),
    }
    for layer in (-1, 0, 1, 2, -2):
        result[f"L{layer}"] = Embedder(folder / name).sents2elmo(sentences, output_layer=layer)
    check(folder / name / "golden.npz", result)


def test_sents2elmo_carries_state_in_the_order_of_lengths(tmp_path: Path) -> None:
    """Five calls, beside the original's sorting and rows of state, written out a sentence at a
    time.
    """
    model = write_efml(tmp_path / "model")
    calls = [
        SENTENCES,
        SENTENCES[::-1],
        SENTENCES[1:],
        [["cat"], ["the", "the", "the"]],
        SENTENCES[:3],
    ]
    bilm = elmokit.load(model).bilm
    states = {}
    ours = Embedder(model, 2)
    for sentences in calls:
        expected = {}
        for place, number in enumerate(
            sorted(range(len(sentences)), key=lambda n: -len(sentences[n]))
        ):
            ids = bilm.token_encoder.ids(["<S>", *sentences[number], "</S>"])
            with torch.no_grad():
                out = bilm(ids[None], state=states.get(place % 2))
            states[place % 2], expected[number] = out.state, out.layers[:, 0, 1:-1].numpy()
        for number, vectors in enumerate(ours.sents2elmo(sentences, -2)):
            np.testing.assert_allclose(vectors, expected[number], atol=1e-5)
    ours.reset_states()
    first = Embedder(model, 2).sents2elmo(SENTENCES, -2)
    np.testing.assert_array_equal(ours.sents2elmo(SENTENCES, -2)[1], first[1])
    assert ours.sents2elmo([[]], -2)[0].shape == (3, 0, 32)
    assert ours.sents2elmo([]) == []
    with pytest.warns(UserWarning, match="a sentence is a string"):
        assert ours.sents2elmo(["cat"])[0].shape == (3, 32)
