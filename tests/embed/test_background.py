"""What is handed over is used in order, and what goes wrong on one side ends the other."""

import threading
from collections.abc import Callable, Iterator

import pytest

from elmokit.embed.background import Abandoned, background_consumer


def test_an_error_of_who_uses_comes_back_while_things_are_made() -> None:
    def use(items: Iterator[int]) -> None:
        assert next(items) == 0
        raise OSError("full")

    made = 0
    with pytest.raises(OSError, match="full"), background_consumer(use) as hand_over:
        for made in range(10**6):
            hand_over(made)
    assert made < 10**6 - 1


def test_what_is_handed_over_is_used_in_order_and_what_fails_is_abandoned() -> None:
    used: list[int | str] = []

    def use(items: Iterator[int]) -> None:
        try:
            used.extend(items)
        except Abandoned:
            used.append("abandoned")
            raise

    with background_consumer(use) as hand_over:
        for item in range(5):
            hand_over(item)
    assert used == [0, 1, 2, 3, 4]
    with pytest.raises(KeyboardInterrupt), background_consumer(use) as hand_over:
        hand_over(5)
        raise KeyboardInterrupt
    assert used[-2:] == [5, "abandoned"]


def fails_when_abandoned(items: Iterator[int]) -> None:
    try:
        list(items)
    finally:
        raise OSError("full")


def fails_at_the_end(items: Iterator[int]) -> None:
    list(items)
    raise OSError("full")


def ends_early(items: Iterator[int]) -> None:
    next(items)


@pytest.mark.parametrize("use", [fails_when_abandoned, fails_at_the_end, ends_early])
@pytest.mark.parametrize("fails", [False, True], ids=["", "the block fails"])
def test_the_block_ends_whatever_becomes_of_who_uses(use: Callable[[Iterator[int]], None], fails: bool) -> None:
    ended: list[str] = []

    def run() -> None:
        try:
            with background_consumer(use) as hand_over:
                for item in range(5):
                    hand_over(item)
                if fails:
                    raise KeyError
        except (OSError, KeyError) as error:
            ended.append(type(error).__name__)
        else:
            ended.append("")

    block = threading.Thread(target=run, daemon=True)
    block.start()
    block.join(timeout=20)
    error_of_use = "" if use is ends_early else "OSError"
    assert ended == ["KeyError" if fails else error_of_use]
    assert "elmokit-consumer" not in {thread.name for thread in threading.enumerate()}


def test_what_an_interrupted_wait_leaves_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    used, waits = [], []
    join = threading.Thread.join

    def interrupted_once(thread: threading.Thread) -> None:
        waits.append(1)
        if len(waits) == 1:
            raise KeyboardInterrupt
        join(thread)

    monkeypatch.setattr(threading.Thread, "join", interrupted_once)
    with pytest.raises(KeyboardInterrupt), background_consumer(used.extend) as hand_over:
        hand_over(1)
    assert used == [1] and len(waits) == 2
