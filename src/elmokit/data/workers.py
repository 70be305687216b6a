"""Tokenization and fingerprinting of documents by worker processes."""

import os
import signal
import threading
import unicodedata
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from typing import NamedTuple

from elmokit.data.batches import chunks
from elmokit.data.documents import Document
from elmokit.data.duplicates import Fingerprint, fingerprints
from elmokit.text import Tokenizer, get_tokenizer

CHUNK_CHARACTERS = 1_000_000  # of documents that are sent to a process at a time


class Work(NamedTuple):
    """The work of a process: normalization (NFC), tokenization, and with `near` signatures to find
    near duplicates.

    Documents of the first `num_excluded` files, which are excluded ones, are not tokenized.
    """

    tokenizer: str
    language: str | None
    num_excluded: int
    near: bool

    def __call__(self, documents: list[Document]) -> list[tuple[Document, Fingerprint]]:
        tokenizer = get_tokenizer(self.tokenizer, self.language)
        for document in documents:
            document.lines[:] = [unicodedata.normalize("NFC", line) for line in document.lines]
        hashes = fingerprints([document.lines for document in documents], self.near)
        for document in documents:
            if document.place.file >= self.num_excluded:
                document.lines[:] = [_tokenize(line, tokenizer) for line in document.lines]
        return list(zip(documents, hashes, strict=True))


def _tokenize(line: str, tokenizer: Tokenizer) -> str:
    """Split a line into sentences, a line each, and these into tokens, with spaces between them."""
    return "".join(f"{' '.join(tokens)}\n" for tokens in tokenizer.split_paragraph(line))


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    return chunks(documents, CHUNK_CHARACTERS, lambda document: sum(map(len, document.lines)))


def _start_worker() -> None:
    """Leave interrupts and warnings to the parent process, and exit when it does, even if it is
    killed.
    """

    def exit_with_parent() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, daemon=True).start()


def tokenize_documents(
    documents: Iterable[Document], work: Work, processes: int
) -> Generator[tuple[Document, Fingerprint], None, None]:
    """Tokenize a stream of documents with several processes.

    The processes end with the generator, which must be closed if it is not exhausted.

    Args:
        documents: The documents, of which a few chunks are held in memory.
        work: The work to do.
        processes: Number of worker processes; 1: do the work in this process.

    Yields:
        The documents in order, with the tokenized lines, and the fingerprint of the raw ones.

    Raises:
        BrokenProcessPool: A worker process was killed, possibly out of memory.
    """
    if processes == 1:
        for chunk in _chunks(documents):
            yield from work(chunk)
        return
    # Not "fork": a forked copy of a process that has used torch may deadlock.
    pool = ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_start_worker
    )
    try:
        pending: deque[Future[list[tuple[Document, Fingerprint]]]] = deque()
        for chunk in _chunks(documents):
            pending.append(pool.submit(work, chunk))
            if len(pending) > 2 * processes:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
