"""Blocks on several cores: the same vectors, in the same order."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch

import elmokit
from elmokit.embed import embedder as embedding
from elmokit.nn.kernels.directions import begin_on_both_cores, on_both_cores, side_by_side

CPU = torch.device("cpu")


def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def two_threads() -> Iterator[None]:
    yield from threads(2)


@pytest.fixture
def four_threads() -> Iterator[None]:
    yield from threads(4)


def at_once(function: Callable[[int], object]) -> Callable[[int], Callable[[], object]]:
    """Nothing is begun before it is asked for."""
    return lambda item: partial(function, item)


def test_results_come_in_order_and_from_several_threads(four_threads: None) -> None:
    together = threading.Barrier(4, timeout=20)

    def run(item: int) -> tuple[int, int]:
        if item < 4:
            together.wait()  # only threads that run at the same time pass
        return item, torch.get_num_threads()

    assert list(side_by_side(at_once(run), range(11), CPU, True)) == [(item, 1) for item in range(11)]
    assert torch.get_num_threads() == 4


def test_an_item_alone_has_all_cores(four_threads: None) -> None:
    assert list(side_by_side(at_once(lambda _: torch.get_num_threads()), [0], CPU, True)) == [4]
    assert list(side_by_side(at_once(lambda _: torch.get_num_threads()), [], CPU, True)) == []


def test_an_error_comes_where_its_item_stood(four_threads: None) -> None:
    found = side_by_side(at_once(lambda item: 1 // (item - 2)), range(9), CPU, True)
    assert next(found) == -1 and next(found) == -1
    with pytest.raises(ZeroDivisionError):
        next(found)
    assert torch.get_num_threads() == 4


def test_no_more_items_are_taken_than_are_worked_on(four_threads: None) -> None:
    taken: list[int] = []
    found = side_by_side(at_once(lambda item: item), (taken.append(item) or item for item in range(100)), CPU, True)
    assert next(found) == 0
    assert len(taken) <= 6
    found.close()  # type: ignore[attr-defined]  # whoever has had enough


OVERLAPPING = ["0 begins", "1 begins", "0 ends", "2 begins", "1 ends", "2 ends"]
ONE_BY_ONE = ["0 begins", "0 ends", "1 begins", "1 ends", "2 begins", "2 ends"]


@pytest.mark.parametrize(
    ("device", "comes_back_early", "order"),
    [("cpu", True, OVERLAPPING), ("cpu", False, ONE_BY_ONE), ("cuda", True, OVERLAPPING)],
)
def test_an_item_begins_before_the_last_one_is_finished(
    two_threads: None, device: str, comes_back_early: bool, order: list[str]
) -> None:
    happened: list[str] = []

    def begin(item: int) -> Callable[[], int]:
        happened.append(f"{item} begins")
        return lambda: happened.append(f"{item} ends") or item

    assert list(side_by_side(begin, range(3), torch.device(device), comes_back_early)) == [0, 1, 2]
    assert happened == order


def test_what_follows_both_halves_is_done_once_when_both_are_there(two_threads: None) -> None:
    together, happened = threading.Barrier(2, timeout=20), []

    def run(half: int) -> None:
        together.wait()  # only halves that run at the same time pass
        happened.append(f"half {half}")

    waiting = [begin_on_both_cores(run, CPU, lambda turn=turn: happened.append(turn) or turn) for turn in range(20)]
    assert [wait() for wait in waiting] == list(range(20))
    for turn in range(20):
        assert sorted(happened[3 * turn : 3 * turn + 2]) == ["half 0", "half 1"]
    assert happened[2::3] == list(range(20))


@pytest.mark.parametrize("failing", [0, 1, "then"])
def test_what_goes_wrong_on_either_core_comes_back(two_threads: None, failing: int | str) -> None:
    def run(half: int) -> None:
        assert half != failing, f"half {half}"

    def then() -> str:
        assert failing != "then", "then"
        return "never without both"

    with pytest.raises(AssertionError, match=str(failing)):
        begin_on_both_cores(run, CPU, then)()
    assert begin_on_both_cores(lambda half: None, CPU, lambda: 5)() == 5


def test_while_items_overlap_torch_has_one_core_and_the_halves_have_two(two_threads: None) -> None:
    together, threads_of_torch = threading.Barrier(2, timeout=20), []

    def begin(item: int) -> Callable[[], int]:
        threads_of_torch.append(torch.get_num_threads())
        on_both_cores(lambda half: together.wait() and None, CPU)
        return lambda: item

    for item in side_by_side(begin, range(3), CPU, True):
        assert torch.get_num_threads() == 2, item  # for whoever uses what is found
    assert threads_of_torch == [1, 1, 1]
    with pytest.raises(ZeroDivisionError):
        list(side_by_side(lambda item: 1 // item, [0], CPU, True))
    assert torch.get_num_threads() == 2


def test_an_error_while_another_item_is_under_way_leaves_the_others_right(two_threads: None) -> None:
    embedder = elmokit.Embedder.load()
    sentences = [["apple", "play"] * 2000, ["bank"] * 5000, ["river", "of"] * 2500]
    expected = [embedder.embed([sentence])[0] for sentence in sentences]
    found = embedder.embed_groups([*sentences, 7])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="sentence 3 is neither"):
        list(found)
    for ours, alone in zip(embedder.embed(sentences), expected, strict=True):
        np.testing.assert_array_equal(ours, alone)


def test_vectors_are_the_same_on_more_cores(four_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmokit.embed.groups.FEWEST_WORDS_AT_ONCE", 40)
    rng = np.random.default_rng(0)
    words = ["apple", "play", "Straße", "bank", "of", "the", "x" * 60, "river"]
    sentences = [list(rng.choice(words, length)) for length in rng.integers(0, 30, 40)]
    embedder = elmokit.Embedder.load()
    with pytest.warns(embedding.TruncationWarning):
        several = embedder.embed(sentences, layers="all")
    torch.set_num_threads(1)
    embedder.forget_words()
    with pytest.warns(embedding.TruncationWarning):
        one = embedder.embed(sentences, layers="all")
    assert several.truncated_words == one.truncated_words
    for ours, expected in zip(several, one, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
