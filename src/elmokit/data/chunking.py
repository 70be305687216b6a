"""Consecutive items in lists of a size."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def chunks(items: Iterable[T], size: Callable[[T], int], least: int) -> Iterator[list[T]]:
    """Lists of consecutive items, whose sizes add up to `least`, or somewhat more; the last may be
    smaller.
    """
    chunk: list[T] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += size(item)
        if total >= least:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk
