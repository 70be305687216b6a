"""Token streams, against a simple reimplementation of bilm-tf's batcher."""

from collections.abc import Iterator
from itertools import chain, islice

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.text.vocab import Vocab
from elmokit.train.corpus import SentenceStream, TrainingStream, TrainingWindow
from elmokit.train.objectives import draw_masked

VOCAB = Vocab(["<S>", "</S>", "<UNK>", *"abcdefgh"])
SENTENCES = st.lists(
    st.lists(st.sampled_from([*"abcdefghij", "<S>"]), min_size=1, max_size=9),
    min_size=1,
    max_size=8,
)


def endless(sentences: list[list[str]]) -> Iterator[list[str]]:
    while True:
        yield from sentences


def whole_streams(sentences: list[list[str]]) -> dict[str, list[str]]:
    """Inputs and targets of one row in each direction (bilm-tf, data.py)."""
    streams: dict[str, list[str]] = {"fwd": [], "fwd targets": [], "bwd": [], "bwd targets": []}
    for words in sentences:
        streams["fwd"] += ["<S>", *words]
        streams["fwd targets"] += [*words, "</S>"]
        streams["bwd"] += ["</S>", *reversed(words)]
        streams["bwd targets"] += [*reversed(words), "<S>"]
    return streams


def assigned(
    sentences: Iterator[list[str]], rows: int, steps: int, windows: int
) -> list[list[list[str]]]:
    """The sentences of each row: for each window, row by row, a row without enough words takes the
    next sentences.
    """
    taken: list[list[list[str]]] = [[] for _ in range(rows)]
    for window in range(1, windows + 1):
        for row in taken:
            while sum(len(sentence) + 1 for sentence in row) < window * steps:
                row.append(next(sentences))
    return taken


def rows_of(window: TrainingWindow, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Words (2, B, T) and targets (2, B, T) of a window, which is time-major."""
    words = np.array(window.words, dtype=object)[window.tokens.numpy()].reshape(2, -1, batch_size)
    return words.transpose(0, 2, 1), window.targets.numpy().reshape(2, -1, batch_size).transpose(
        0, 2, 1
    )


@settings(max_examples=60)
@given(SENTENCES, st.integers(1, 4), st.integers(1, 7), st.integers(1, 6))
def test_training_stream_windows_equal_bilm_tf_layout(
    sentences: list[list[str]], batch_size: int, steps: int, windows: int
) -> None:
    stream = TrainingStream(endless(sentences), VOCAB, batch_size, steps)
    rows = [whole_streams(row) for row in assigned(endless(sentences), batch_size, steps, windows)]
    for number in range(windows):
        window = next(stream)
        words, targets = rows_of(window, batch_size)
        assert ((words[0] == "<S>") == window.begins.numpy().reshape(-1, batch_size).T).all()
        cut = slice(number * steps, (number + 1) * steps)
        for row, expected in enumerate(rows):
            for d, name in enumerate(["fwd", "bwd"]):
                assert words[d, row].tolist() == expected[name][cut]
                assert (
                    targets[d, row].tolist() == VOCAB.ids(expected[f"{name} targets"][cut]).tolist()
                )


def test_training_stream_resumes_from_its_rows() -> None:
    sentences = [["a", "b", "c"], ["d"], ["e", "f", "g", "h", "a"]]
    source = endless(sentences)
    whole = TrainingStream(endless(sentences), VOCAB, 2, 3)
    first = TrainingStream(source, VOCAB, 2, 3)
    for _ in range(2):
        next(first), next(whole)
    second = TrainingStream(source, VOCAB, 2, 3, first.pending.to_json())
    for _ in range(4):
        resumed = next(second)
        expected = next(whole)
        assert resumed.words == expected.words
        assert torch.equal(resumed.tokens, expected.tokens)
        assert torch.equal(resumed.targets, expected.targets)


# --- Batches of whole sentences -------------------------------------------------------------------


@given(SENTENCES, st.integers(2, 20), st.integers(1, 12))
def test_sentence_stream_reads_all_words_in_order_in_batches_of_a_size(
    sentences: list[list[str]], size: int, count: int
) -> None:
    stream = SentenceStream(endless(sentences), size)
    positions = 0
    read = []
    for number in range(1, count + 1):
        batch = next(stream)
        assert batch
        assert all(1 <= len(sentence) < size for sentence in batch)
        positions += sum(map(len, batch)) + len(batch)
        # Batch after batch, the total is that of so many batches, and less than one more.
        assert 0 <= positions - number * size == stream.pending.excess < size
        read += chain.from_iterable(batch)
    assert read == list(islice(chain.from_iterable(endless(sentences)), len(read)))


@given(SENTENCES, st.integers(2, 20), st.integers(0, 8))
def test_sentence_stream_continues_from_what_is_pending(
    sentences: list[list[str]], size: int, count: int
) -> None:
    source = endless(sentences)
    stream = SentenceStream(source, size)
    for _ in range(count):
        next(stream)
    resumed = SentenceStream(source, size, stream.pending.to_json())
    whole = SentenceStream(endless(sentences), size)
    batches = [next(whole) for _ in range(count + 5)]
    assert [next(resumed) for _ in range(5)] == batches[count:]
    assert resumed.pending == whole.pending


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.floats(0, 1), st.integers(0, 99))
def test_draw_masked_draws_the_share_of_each_sentence_and_at_least_one(
    lengths: list[int], share: float, seed: int
) -> None:
    hidden = draw_masked(lengths, share, torch.Generator().manual_seed(seed))
    assert [len(own) for own in hidden] == [max(1, round(share * length)) for length in lengths]
    for own, length in zip(hidden, lengths, strict=True):
        assert (np.diff(own) > 0).all()
        assert own[0] >= 0
        assert own[-1] < length
