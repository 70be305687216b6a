"""Warnings about differences from the old libraries: where they point, and how often they are issued."""

import warnings
from pathlib import Path

import pytest

from elmokit.compat.allennlp import Elmo, batch_to_ids
from elmokit.compat.elmoformanylangs import Embedder
from elmokit.compat.notice import warn_once


@pytest.fixture
def elmo(old_model: Path) -> Elmo:
    return Elmo(old_model / "options.json", old_model / "model.hdf5", 1)


def test_a_warning_points_to_the_line_that_called_elmokit(elmo: Elmo, old_model: Path) -> None:
    ids, embedder = batch_to_ids([["a"]]), Embedder(old_model)
    warned = {
        "is a string": lambda: batch_to_ids(["ab"]),
        "word_inputs is ignored": lambda: elmo(ids, ids[..., 0]),  # PyTorch calls `forward`
        "only their beginning": lambda: embedder.sents2elmo([["a" * 60]]),
    }
    for message, call in warned.items():
        with pytest.warns(UserWarning, match=message) as caught:
            call()
        (warning,) = (each for each in caught if message in str(each.message))
        assert warning.filename == __file__ and warning.lineno == call.__code__.co_firstlineno


def test_a_message_is_issued_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            warn_once("as often as this")
    assert len(caught) == 1
