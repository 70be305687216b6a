"""Character ids, against bilm-tf's own and a simple second encoder."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elmokit.text.characters import BOS, EOS, UNK, count_truncated, encode_sentences, encode_words

WORDS = st.lists(
    st.one_of(
        st.text(st.characters(codec="utf-8"), max_size=60), st.sampled_from([BOS, EOS, UNK, ""])
    ),
    max_size=8,
)


def reference_encode(word: str, width: int) -> list[int]:
    """Encode one word byte by byte: bilm-tf's ids plus one."""
    boundaries = {BOS: [256], EOS: [257]}
    inside = boundaries.get(word, list(word.encode())[: width - 2])
    row = [258, *inside, 259]
    return [number + 1 for number in row + [260] * (width - len(row))]


def test_encode_words_equals_bilm_tf(goldens: Callable[[str], Path]) -> None:
    sentences = json.loads(goldens("sentences.json").read_text())
    golden = np.load(goldens("char_ids.npz"))["ids"]
    ids = encode_sentences([[BOS, *sentence, EOS] for sentence in sentences])
    np.testing.assert_array_equal(ids, golden)


@given(WORDS, st.sampled_from([3, 10, 50]))
def test_encode_words_equals_a_reference_encoder(words: list[str], width: int) -> None:
    ids = encode_words(words, width)
    assert ids.shape == (len(words), width)
    assert ids.dtype == np.int32
    assert ids.tolist() == [reference_encode(word, width) for word in words]


@given(WORDS, st.sampled_from([1, 3, 7]))
def test_encode_words_with_widest_filter_only_removes_padding(
    words: list[str], widest_filter: int
) -> None:
    full = encode_words(words)
    trimmed = encode_words(words, widest_filter=widest_filter)
    width = trimmed.shape[1]
    np.testing.assert_array_equal(trimmed, full[:, :width])
    assert (full[:, width:] == 261).all()
    # Every word is followed by a whole window of padding, unless the width is maximal.
    assert width == 50 or not words or (trimmed[:, -widest_filter:] == 261).all()


@given(WORDS)
def test_count_truncated_equals_brute_force(words: list[str]) -> None:
    assert count_truncated(words) == sum(len(word.encode()) > 48 for word in words)


def test_encode_sentences_pads_with_zeros() -> None:
    ids = encode_sentences([["a", "b"], [], ["c"]])
    assert ids.shape == (3, 2, 50)
    np.testing.assert_array_equal(ids[0], encode_words(["a", "b"]))
    np.testing.assert_array_equal(ids[2, 0], encode_words(["c"])[0])
    assert not ids[1].any()
    assert not ids[2, 1].any()
    for empty in ([], [[]], [[], []]):
        assert encode_sentences(empty).shape == (len(empty), 0, 50)
