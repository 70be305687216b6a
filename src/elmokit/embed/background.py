"""A background consumer: a thread that uses what the caller produces, through a bounded queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from queue import Queue
from threading import Thread
from typing import Any, TypeVar

Item = TypeVar("Item")


class _Last(Enum):
    """What comes after the items."""

    END = 0
    FAILURE = 1


class Abandoned(Exception):
    """No more items come, since the producer has failed: what is begun is to be undone."""


def _received(items: Queue[Any]) -> Iterator[Any]:
    while (item := items.get()) is not _Last.END:
        if item is _Last.FAILURE:
            raise Abandoned
        yield item


@contextmanager
def background_consumer(consume: Callable[[Iterator[Item]], None]) -> Iterator[Callable[[Item], None]]:
    """Gives a function that puts an item into the queue of `consume`, which runs in a thread until the block ends.

    One item is in use and one waits at most: the function blocks while the queue is full. What `consume` raises is
    raised by it, or by the end of the block. Where the block raises, `consume` gets `Abandoned` from its iterator, and
    has ended before it goes on; so it has when Ctrl-C comes while it is waited for, but not when a second one comes.
    """
    items: Queue[Any] = Queue(maxsize=1)
    errors: list[BaseException] = []

    def run() -> None:
        received = _received(items)
        try:
            consume(received)
        except Abandoned:
            pass
        except BaseException as error:
            errors.append(error)
        with suppress(Abandoned):
            for _ in received:  # what is left, or the queue would stay full
                pass

    def put(item: Item) -> None:
        if errors:
            raise errors[0]
        items.put(item)

    thread = Thread(target=run, name="elmokit-consumer", daemon=True)  # so that a second Ctrl-C ends the process
    thread.start()
    last = _Last.FAILURE
    try:
        yield put
        last = _Last.END
    finally:
        try:
            items.put(last)
            thread.join()
        except BaseException:
            items.put(_Last.FAILURE)  # where `last` did not come that far
            thread.join()
            raise
    if errors:
        raise errors[0]
