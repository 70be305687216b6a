"""The character convolutions, from tables and as products, against plain convolutions in
float64.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from elmokit.config import CHARACTER_SHIFT
from elmokit.ops.functional import CharFilters, char_conv, prepack
from elmokit.ops.native import char_conv as kernel
from elmokit.text.characters import encode_words

WORDS = [
    "<S>",
    "</S>",
    "",
    *("abracadabra, 🐋 naïve? " * 4)[:50],
    *(("of every length, é " * 4)[:length] for length in range(1, 51)),
    *("a" * length for length in range(1, 51)),
]
FILTERS = ((1, 1), (2, 32), (3, 33), (4, 5), (5, 3), (6, 2), (7, 70), (9, 40))  # (width, number)


def leaves(filters: CharFilters) -> list[Tensor]:
    return [filters.embedding, *filters.weights, *filters.biases]


def in_dtype(filters: CharFilters, dtype: torch.dtype) -> CharFilters:
    def of(tensor: Tensor) -> Tensor:
        return tensor.detach().to(dtype).requires_grad_()

    return CharFilters(
        of(filters.embedding), *([of(part) for part in parts] for parts in filters[1:])
    )


def draw(
    filters: tuple[tuple[int, int], ...] = FILTERS, num_characters: int = 261, seed: int = 0
) -> CharFilters:
    generator = torch.Generator().manual_seed(seed)

    def leaf(*shape: int, terms: int = 1) -> Tensor:
        return (torch.randn(shape, generator=generator) / terms**0.5).requires_grad_()

    weights = [leaf(number, 4, width, terms=4 * width) for width, number in filters]
    return CharFilters(leaf(num_characters, 4), weights, [leaf(number) for _, number in filters])


def plainly(ids: Tensor, weights: CharFilters) -> Tensor:
    characters = F.embedding(ids, weights.embedding).transpose(1, 2)
    pairs = zip(weights.weights, weights.biases, strict=True)
    return torch.cat(
        [F.conv1d(characters, weight, bias).amax(dim=2) for weight, bias in pairs], dim=1
    )


def characters_of(words: list[str], widest: int | None = None) -> Tensor:
    return torch.from_numpy(encode_words(words, widest_filter=widest)) - CHARACTER_SHIFT


@pytest.fixture(params=[pytest.param("native", marks=pytest.mark.native), "reference"])
def both_ways(request: pytest.FixtureRequest, backend: Callable[[str], None]) -> None:
    backend(request.param)


def assert_equal_to_plain(ids: Tensor, weights: CharFilters) -> None:
    """Values and all gradients, against float64."""
    exact = in_dtype(weights, torch.float64)
    found = char_conv(ids, *weights)
    expected = plainly(ids, exact)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-6)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad(found, leaves(weights), upstream)
    theirs = torch.autograd.grad(expected, leaves(exact), upstream.double())
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            left.double(), right, atol=1e-5 * float(right.abs().max()), rtol=1e-5
        )


@pytest.mark.parametrize(("widest", "dtype"), [(None, torch.int32), (9, torch.int64)])
def test_words_of_every_length(both_ways: None, widest: int | None, dtype: torch.dtype) -> None:
    assert_equal_to_plain(characters_of(WORDS, widest).to(dtype), draw())


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257])
def test_characters_without_padding(both_ways: None, length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    widths = tuple((width, 3) for width in (1, 2, 255) if width <= length)
    weights = draw(widths, num_characters=20)
    ids = torch.randint(0, 20, (5, length), generator=generator)
    with torch.no_grad():  # so that the last character wins in half of the filters
        weights.embedding[19] *= 10
        ids[:, -1] = 19
    assert_equal_to_plain(ids, weights)


@pytest.mark.native
def test_two_threads_give_the_same(
    num_threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "WORDS_WORTH_THREADS", 0)
    num_threads(2)
    assert_equal_to_plain(characters_of(WORDS), draw())


def test_no_words_give_no_rows_and_gradients_of_zero(both_ways: None) -> None:
    weights = draw()
    found = char_conv(torch.zeros(0, 50, dtype=torch.int32), *weights)
    assert found.shape == (0, sum(number for _, number in FILTERS))
    assert not any(grad.any() for grad in torch.autograd.grad(found.sum(), leaves(weights)))


@pytest.mark.parametrize("wrong", [-1, 261, 2**31 - 1])
def test_a_character_without_a_row_is_refused(both_ways: None, wrong: int) -> None:
    ids = characters_of(["some", "words"])
    ids[1, 3] = wrong
    with pytest.raises(IndexError):
        char_conv(ids, *draw())


def test_words_narrower_than_a_filter_are_refused(both_ways: None) -> None:
    with pytest.raises(ValueError, match="rows of 8 characters are too short for filters 9 wide"):
        char_conv(torch.zeros(2, 8, dtype=torch.int32), *draw())


def test_what_is_not_a_number_stays_so(both_ways: None) -> None:
    weights = draw()
    ids = characters_of(["nap", "map", "pan", "ant", "oak"], 9)
    with torch.no_grad():
        weights.embedding[ord("n")] = torch.nan
        found = char_conv(ids, *weights)
        torch.testing.assert_close(found, plainly(ids, weights), atol=1e-5, rtol=0, equal_nan=True)
    assert found.isnan().any(dim=1).tolist() == [True, False, True, True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_number_types(both_ways: None, dtype: torch.dtype) -> None:
    ids = characters_of(WORDS)
    weights = draw()
    exact = plainly(ids, weights)
    tolerance = 0.2 if dtype == torch.bfloat16 else 1e-5
    found = char_conv(ids, *in_dtype(weights, dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), exact, atol=tolerance, rtol=0)
    if dtype == torch.bfloat16:
        with torch.autocast("cpu", dtype):
            found = char_conv(ids, *weights)
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), exact, atol=tolerance, rtol=0)
        gradients = torch.autograd.grad(found.float().sum(), leaves(weights))
        assert all(grad.dtype == torch.float32 for grad in gradients)


@pytest.mark.native
def test_too_many_distinct_characters_become_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "MAX_ALPHABET", 5)
    monkeypatch.setattr(kernel, "_table", None)
    assert_equal_to_plain(characters_of(WORDS), draw())


@pytest.mark.native
@pytest.mark.parametrize("threads", [1, 2])
def test_tables_made_once_give_each_word_the_same_to_the_last_bit(
    threads: int, num_threads: Callable[[int], None]
) -> None:
    num_threads(threads)
    ids = characters_of(WORDS)
    weights = draw()
    pooled = prepack("char_conv", weights, torch.float32)
    together = pooled(ids)
    alone = [pooled(word[None].long()) for word in ids]
    trimmed = [pooled(characters_of([word], 9)) for word in WORDS]
    torch.testing.assert_close(
        together.double(), plainly(ids, in_dtype(weights, torch.float64)), atol=1e-5, rtol=1e-6
    )
    assert not together.requires_grad
    assert pooled(ids[:0]).shape == (0, together.shape[1])
    assert torch.equal(torch.cat(alone), together)
    assert torch.equal(torch.cat(trimmed), together)
