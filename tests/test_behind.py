"""What is handed over is used in order, and what goes wrong on one side ends the other."""

from collections.abc import Iterator

import pytest

from elmokit.embed.behind import Abandoned, used_behind


def test_an_error_of_who_uses_comes_back_while_things_are_made() -> None:
    def use(items: Iterator[int]) -> None:
        assert next(items) == 0
        raise OSError("full")

    made = 0
    with pytest.raises(OSError, match="full"), used_behind(use) as hand_over:
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

    with used_behind(use) as hand_over:
        for item in range(5):
            hand_over(item)
    assert used == [0, 1, 2, 3, 4]
    with pytest.raises(KeyboardInterrupt), used_behind(use) as hand_over:
        hand_over(5)
        raise KeyboardInterrupt
    assert used[-2:] == [5, "abandoned"]
