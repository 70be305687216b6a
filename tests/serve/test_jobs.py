"""Jobs: one at a time, bounded in number, and ended when nobody waits for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import count

import pytest

pytest.importorskip("fastapi", reason="no FastAPI: pip install fastapi (elmokit's extra serve)")

from elmokit.serve.errors import RequestError
from elmokit.serve.jobs import Job, JobQueue


@pytest.fixture
def jobs() -> Iterator[JobQueue]:
    queue = JobQueue(max_waiting=2)
    yield queue
    queue.close()


def test_queue_takes_so_many_jobs_and_more_when_one_has_ended(jobs: JobQueue) -> None:
    async def run() -> None:
        gate = threading.Event()
        first, second = jobs.submit(lambda job: gate.wait(20)), jobs.submit(lambda job: "second")
        with pytest.raises(RequestError, match="too many requests") as refused:
            jobs.submit(lambda job: None)
        assert refused.value.code == "overloaded" and refused.value.retry_after
        gate.set()
        assert (await first, await second) == (True, "second")
        await asyncio.sleep(0.05)
        assert jobs.waiting == 0 and await jobs.submit(lambda job: 3) == 3

    asyncio.run(run())


def test_cancelled_job_ends_at_its_next_item(jobs: JobQueue) -> None:
    taken: list[int] = []

    def endless(job: Job) -> None:
        for number in job.while_wanted(count()):
            taken.append(number)
            time.sleep(0.001)

    async def run() -> None:
        result = jobs.submit(endless)
        while not taken:
            await asyncio.sleep(0.005)
        result.cancel()
        assert await asyncio.wait_for(jobs.submit(lambda job: "next"), 20) == "next"

    asyncio.run(run())


def test_job_that_was_cancelled_before_its_turn_never_runs(jobs: JobQueue) -> None:
    ran: list[str] = []

    async def run() -> None:
        gate = threading.Event()
        first, second = jobs.submit(lambda job: gate.wait(20)), jobs.submit(lambda job: ran.append("second"))
        second.cancel()
        await asyncio.sleep(0.05)
        gate.set()
        await first
        await jobs.submit(lambda job: ran.append("third"))

    asyncio.run(run())
    assert ran == ["third"]
