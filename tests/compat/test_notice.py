"""Warnings about differences from the old libraries: where they point, and how often they are issued."""

import warnings
from pathlib import Path

import pytest

from elmokit.compat.allennlp import Elmo, ELMoTokenCharactersIndexer, batch_to_ids
from elmokit.compat.bilm_tf import Batcher, TokenBatcher, dump_bilm_embeddings, dump_token_embeddings
from elmokit.compat.bilm_tf.data import UnicodeCharsVocabulary
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


def test_truncated_words_are_reported_everywhere(old_model: Path, tmp_path: Path) -> None:
    files, words = (old_model / "options.json", old_model / "model.hdf5"), tmp_path / "words.txt"
    words.write_text(f"<S>\n</S>\n<UNK>\n{'a' * 60}\n")
    (tmp_path / "lines.txt").write_text("the cat\n" * 3 + "a" * 60)
    calls = (
        lambda: ELMoTokenCharactersIndexer().tokens_to_indices(["a" * 60]),
        lambda: Elmo(*files, 1, vocab_to_cache=["", "a" * 60]),
        lambda: UnicodeCharsVocabulary(words, 50).encode_chars("a" * 60),
        lambda: dump_token_embeddings(words, *files, tmp_path / "tokens.hdf5"),
        lambda: dump_bilm_embeddings(None, tmp_path / "lines.txt", *files, tmp_path / "lines.hdf5"),
    )
    for call in calls:
        warn_once.cache_clear()
        with pytest.warns(UserWarning, match="some words have more than 48 bytes: as in") as caught:
            call()
        assert len(caught) == 1


def test_strings_in_place_of_sentences_are_reported_by_both_batchers(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("<S>\n</S>\n<UNK>\n")
    for batcher in (Batcher(None, 50), TokenBatcher(tmp_path / "words.txt")):
        warn_once.cache_clear()
        with pytest.warns(UserWarning, match="a sentence is a string"):
            batcher.batch_sentences(["the cat"])
