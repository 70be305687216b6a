"""Work on any number of threads: in order, in the caller's modes, and over whatever becomes of the
caller.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from backends import each_native_dtype, each_native_or_int8_dtype

import elmokit
from elmokit.config import BiLMConfig, CharCNNConfig, LSTMConfig
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.ops.packing import Packing
from elmokit.text.characters import TruncationWarning
from elmokit.threads import num_threads as threads_here
from elmokit.threads import overlapped, parallel_for, parallel_rows, run_side_by_side

pytestmark = pytest.mark.any_backend

THREADS = (1, 2, 3, 8)


def test_tasks_run_at_the_same_time_and_results_are_in_order(
    num_threads: Callable[[int], None],
) -> None:
    num_threads(4)
    together = threading.Barrier(4, timeout=20)

    def task(number: int) -> tuple[int, int]:
        together.wait()  # only threads that run at the same time pass
        return number, torch.get_num_threads()

    found = run_side_by_side([lambda number=number: task(number) for number in range(4)])
    assert found == [(number, 1) for number in range(4)]
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_chunk_is_done_once(num_threads: Callable[[int], None], threads: int) -> None:
    num_threads(threads)
    done: list[int] = []
    parallel_for(done.append, 100)
    assert sorted(done) == list(range(100))
    rows: list[slice] = []
    parallel_rows(rows.append, 10, 4)
    assert sorted(part.start for part in rows) == [0, 4, 8]
    assert max(part.stop for part in rows) == 10


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_loops_within_tasks_neither_wait_for_each_other_nor_take_more_threads(
    num_threads: Callable[[int], None], threads: int
) -> None:
    num_threads(threads)
    done: list[tuple[int, int, int]] = []

    def task(outer: int) -> None:
        parallel_for(
            lambda inner: parallel_for(lambda chunk: done.append((outer, inner, chunk)), 3), 5
        )
        assert threads_here() <= threads

    run_side_by_side([lambda outer=outer: task(outer) for outer in range(6)])
    assert sorted(done) == [
        (outer, inner, chunk) for outer in range(6) for inner in range(5) for chunk in range(3)
    ]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_an_error_of_a_task_comes_back(num_threads: Callable[[int], None], threads: int) -> None:
    num_threads(threads)
    with pytest.raises(ZeroDivisionError):
        parallel_for(lambda number: 1 // (number - 2), 5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ZeroDivisionError):
        run_side_by_side([lambda: run_side_by_side([lambda: 1, lambda: 1 // 0]), lambda: [2]])
    parallel_for(lambda number: None, 5)


@pytest.mark.parametrize("threads", [1, 2])
def test_tasks_compute_in_the_modes_of_the_caller_without_gradients(
    num_threads: Callable[[int], None], threads: int
) -> None:
    num_threads(threads)

    def modes() -> tuple[bool, bool, bool]:
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
        )

    assert run_side_by_side([modes, modes]) == [(False, False, False)] * 2
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert run_side_by_side([modes, modes]) == [(False, True, True)] * 2
    assert torch.is_grad_enabled()


# --- Items in a pipeline --------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_items_come_in_order(ahead: int) -> None:
    def process(item: int) -> int:
        time.sleep(0.01 * (item % 3))
        return item * item

    assert list(overlapped(process, range(12), ahead)) == [item * item for item in range(12)]
    assert list(overlapped(process, [], ahead)) == []


def test_an_error_comes_where_its_item_stood() -> None:
    found = overlapped(lambda item: 1 // (item - 2), range(9), 2)
    assert next(found) == -1
    assert next(found) == -1
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_no_more_items_are_taken_than_are_processed_and_what_is_begun_ends_with_the_caller() -> (
    None
):
    taken = []
    ended = []

    def process(item: int) -> int:
        time.sleep(0.02)
        ended.append(item)
        return item

    found = overlapped(process, (taken.append(item) or item for item in range(100)), 2)
    assert next(found) == 0
    assert len(taken) <= 3
    found.close()  # type: ignore[attr-defined]
    assert set(ended) <= set(taken)
    count = len(ended)
    time.sleep(0.05)
    assert len(ended) == count


# --- Embedding ------------------------------------------------------------------------------------


def random_sentences(count: int) -> list[list[str]]:
    rng = np.random.default_rng(0)
    words = ["apple", "play", "Straße", "bank", "of", "the", "x" * 60, "river"]
    return [list(rng.choice(words, length)) for length in rng.integers(0, 30, count)]


@each_native_or_int8_dtype
@pytest.mark.parametrize(
    "batch_words", [200, 2000]
)  # some batches of a few rows; one of so many that threads share it
def test_compiled_kernels_give_the_same_bits_on_any_number_of_threads(
    num_threads: Callable[[int], None], dtype: torch.dtype, batch_words: int
) -> None:
    model = elmokit.load()
    found = []
    for threads in (1, 3):
        num_threads(threads)
        embedder = elmokit.Embedder(model, "cpu", str(dtype)[6:])
        embedder.pipeline.batch_words = batch_words
        with pytest.warns(TruncationWarning):
            found.append(
                np.concatenate(list(embedder.embed(random_sentences(60), layers="all")), axis=1)
            )
    for vectors in found[1:]:
        np.testing.assert_array_equal(vectors, found[0])


@each_native_dtype
def test_gradients_of_a_training_step_are_the_same_bits_on_any_number_of_threads(
    num_threads: Callable[[int], None], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    config = BiLMConfig(
        LSTMConfig(cell_dim=70, projection_dim=36),
        CharCNNConfig(8, ((1, 30), (3, 90)), num_highway=1),
    )
    bilm = BiLM(config)
    softmax = FullSoftmax(700, 36)
    packing = Packing.rectangle(6, 130)
    parameters = [*bilm.parameters(), *softmax.parameters()]
    ids = torch.randint(1, 200, (300, 12))
    tokens = torch.randint(0, 300, (2, packing.num_slots))
    targets = torch.randint(0, 700, (2, packing.num_slots))
    samples = [softmax.sample(300, torch.Generator().manual_seed(seed)) for seed in (1, 2)]

    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(1)  # of the dropout
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            layers, _ = bilm.run(bilm.token_encoder(ids), tokens, packing, dropout=0.1)
            losses = softmax.sampled_losses(layers[-1], targets, samples)
        return [losses.detach(), *torch.autograd.grad(losses.mean(), parameters)]

    num_threads(1)
    expected = gradients()
    for threads in THREADS[1:]:
        num_threads(threads)
        assert all(map(torch.equal, gradients(), expected))


@pytest.mark.slow
def test_a_process_that_ends_after_an_interruption_waits_for_what_is_running() -> None:
    """Python would stop threads within PyTorch, which aborts the process."""
    code = """
import os, signal, threading, time, torch
from elmokit.threads import run_side_by_side
torch.set_num_threads(2)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start jobs that ignore it
running = threading.Barrier(3)
def task():
    running.wait()
    time.sleep(2)
    print("ended", flush=True)
def interrupt():
    running.wait()
    time.sleep(0.5)  # Python notices a signal late that arrives just before it waits for a lock
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    run_side_by_side([task, task])
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True
    )
    assert found.stdout.startswith("interrupted") and found.stdout.count("ended") == 2, found
