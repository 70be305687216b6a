"""Streams become the vectors of a text, in both orders, with the compiled kernels and without."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from elmokit.ops.packing import PackedText, Packing

LARGEST, TOO_LARGE = (
    65519.996,
    65520.0,
)  # in float32, next to one another: what float16 holds, and what it does not


@pytest.fixture(params=["reference", pytest.param("native", marks=pytest.mark.native)])
def any_machine(request: pytest.FixtureRequest, backend: Callable[[str], None]) -> None:
    backend(request.param)


def text_of(slots: torch.Tensor) -> PackedText:
    return PackedText(Packing.rectangle(slots.shape[1], 1), slots)


def of_words(streams: torch.Tensor, slots: torch.Tensor, dtype: str) -> np.ndarray:
    found = np.empty((slots.shape[1], len(streams), 2 * streams.shape[-1]), dtype)
    text_of(slots).write_words(streams, found)
    return found


def random_streams(
    layers: int, words: int, spare: int = 3, width: int = 37
) -> tuple[torch.Tensor, torch.Tensor]:
    """Streams with slots that no word has, and where the words lie."""
    generator = torch.Generator().manual_seed(layers * words)
    streams = torch.randn(layers, 2, words + spare, width, generator=generator)
    slots = torch.stack(
        [torch.randperm(words + spare, generator=generator)[:words] for _ in range(2)]
    )
    return streams, slots


def word_by_word(streams: torch.Tensor, slots: torch.Tensor) -> np.ndarray:
    """(K, M, 2D)."""
    layers, _, _, width = streams.shape
    found = np.empty((layers, slots.shape[1], 2 * width), np.float32)
    for layer, word, d in np.ndindex(layers, slots.shape[1], 2):
        found[layer, word, d * width : (d + 1) * width] = streams[layer, d, slots[d, word]].numpy()
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("layers", "words"), [(3, 7), (1, 2), (1, 1), (2, 0)])
def test_words_lie_end_to_end(any_machine: None, layers: int, words: int, dtype: str) -> None:
    streams, slots = random_streams(layers, words)
    found = of_words(streams, slots, dtype)
    np.testing.assert_array_equal(found, word_by_word(streams, slots).swapaxes(0, 1).astype(dtype))


def test_sentences_lie_layer_by_layer(any_machine: None) -> None:
    streams, slots = random_streams(layers=3, words=9)
    begins, ends = (
        np.array([0, 2, 2, 5]),
        np.array([2, 2, 4, 9]),
    )  # one is empty, and the word before the last has none
    expected = word_by_word(streams, slots)
    found = [np.empty((3, length, expected.shape[-1]), np.float32) for length in ends - begins]
    text_of(slots).write_sentences(streams, begins, found)
    for vectors, begin, end in zip(found, begins, ends, strict=True):
        np.testing.assert_array_equal(vectors, expected[:, begin:end])


def test_an_array_of_another_shape_is_refused(any_machine: None) -> None:
    """Compiled code would write past its end."""
    streams, slots = random_streams(layers=2, words=5)
    for shape in ((1, 5, 74), (2, 5, 73)):
        with pytest.raises((AssertionError, ValueError)):
            text_of(slots).write_sentences(streams, np.array([0]), [np.zeros(shape, np.float32)])
    for shape in ((5, 1, 74), (5, 2, 73)):
        with pytest.raises((AssertionError, ValueError)):
            text_of(slots).write_words(streams, np.zeros(shape, np.float16))


def in_float16(numbers: np.ndarray) -> np.ndarray:
    """As vectors of one word."""
    streams = torch.from_numpy(numbers.astype(np.float32)).view(1, 2, 1, -1)
    return of_words(streams, torch.zeros(2, 1, dtype=torch.int64), "float16").reshape(-1)


def test_numbers_are_rounded_as_numpy_rounds_them(any_machine: None) -> None:
    drawn = (
        np.random.default_rng(0)
        .integers(0, 1 << 32, 400_000, dtype=np.uint64)
        .astype(np.uint32)
        .view(np.float32)
    )
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        ties = halves[:-1] + (halves[1:] - halves[:-1]) / 2  # and their neighbours on both sides
        numbers = np.concatenate(
            [drawn, halves, *(np.nextafter(ties, np.float32(to)) for to in (-1e30, 0, 1e30)), ties]
        )
    numbers = numbers[~np.isfinite(numbers) | (np.abs(numbers) < TOO_LARGE)]
    numbers = numbers[: len(numbers) // 2 * 2]
    found = in_float16(numbers)
    expected = numbers.astype(np.float16)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(found.view(np.uint16)[known], expected.view(np.uint16)[known])
    assert np.isnan(found[~known]).all()


@pytest.mark.native
@pytest.mark.parametrize("word", [0, 9])
def test_a_number_too_large_is_seen_on_every_thread(
    word: int, num_threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.ops.native.unpack.VALUES_WORTH_A_THREAD", 1)
    num_threads(4)
    streams, slots = random_streams(layers=2, words=10)
    streams[1, 0, slots[0, word], 5] = TOO_LARGE
    with pytest.raises(FloatingPointError):
        of_words(streams, slots, "float16")


@pytest.mark.parametrize("number", [TOO_LARGE, -TOO_LARGE, 3e38])
def test_numbers_that_float16_cannot_hold_raise(any_machine: None, number: float) -> None:
    assert in_float16(np.array([LARGEST, -LARGEST, np.inf, np.nan])).tolist()[:3] == [
        65504,
        -65504,
        np.inf,
    ]
    with pytest.raises(FloatingPointError):
        in_float16(np.array([0.5, number]))
