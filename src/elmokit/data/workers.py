"""Tokenization and fingerprinting of documents by worker processes."""

import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import NamedTuple

from elmokit.data.documents import Document
from elmokit.data.duplicates import Fingerprint, fingerprints
from elmokit.text.characters import count_truncated
from elmokit.text.tokenizer import Tokenizer
from elmokit.text.tokenizers import tokenizer_for

CHUNK_CHARACTERS = 1_000_000  # of documents that are sent to a process at a time


def usable_cores() -> int:
    """The number of cores that this process may run on, often fewer than the machine has.

    Limits of processor time, such as those of containers (`docker run --cpus`), are not considered.
    """
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class TokenizedLine(NamedTuple):
    """A line of a document, tokenized: text with one sentence per line, and its counts."""

    text: str
    sentences: int
    words: int
    long_words: int


@dataclass(frozen=True)
class TokenizedDocument:
    """A tokenized document; documents of excluded files have no lines, only a fingerprint.

    Attributes:
        file: Index of the file.
        position: As in `Document`.
        lines: The tokenized lines.
        fingerprint: Hashes for the comparison with other documents, if documents are compared.
        characters: Number of characters.
        unknown_letters: Number of letters of scripts for which the tokenizer has no rules.
    """

    file: int
    position: int
    lines: list[TokenizedLine]
    fingerprint: Fingerprint | None
    characters: int = 0
    unknown_letters: int = 0

    @property
    def words(self) -> int:
        return sum(line.words for line in self.lines)


@dataclass(frozen=True)
class WorkerOptions:
    """The work of a process: tokenization, and with `fingerprints` hashes of each document (with `near`, of its parts).

    Documents of the first `num_excluded` files, which are excluded ones, are not tokenized.
    """

    tokenizer: str
    language: str | None
    num_excluded: int
    fingerprints: bool
    near: bool


def tokenize_line(line: str, tokenizer: Tokenizer) -> TokenizedLine:
    """Split a line into sentences and tokens."""
    sentences = list(tokenizer.split_paragraph(line))
    return TokenizedLine(
        text="".join(f"{' '.join(tokens)}\n" for tokens in sentences),
        sentences=len(sentences),
        words=sum(map(len, sentences)),
        long_words=sum(count_truncated(tokens) for tokens in sentences),
    )


def _work(documents: list[Document], options: WorkerOptions) -> list[TokenizedDocument]:
    tokenizer = tokenizer_for(options.tokenizer, options.language)
    lines = [document.lines for document in documents]
    hashes = fingerprints(lines, options.near) if options.fingerprints else [None] * len(lines)
    return [
        TokenizedDocument(document.file, document.position, [], fingerprint)
        if document.file < options.num_excluded
        else TokenizedDocument(
            file=document.file,
            position=document.position,
            lines=[tokenize_line(line, tokenizer) for line in document.lines],
            fingerprint=fingerprint,
            characters=sum(map(len, document.lines)),
            unknown_letters=sum(map(tokenizer.count_unknown, document.lines)),
        )
        for document, fingerprint in zip(documents, hashes, strict=True)
    ]


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    chunk: list[Document] = []
    characters = 0
    for document in documents:
        chunk.append(document)
        characters += sum(map(len, document.lines))
        if characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _start_worker() -> None:
    """Leave interrupts and warnings to the parent process, and exit when it does, even if it is killed."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def tokenize_documents(
    documents: Iterable[Document], options: WorkerOptions, processes: int
) -> Generator[TokenizedDocument, None, None]:
    """Tokenize a stream of documents with several processes.

    The processes end with the generator, which must be closed if it is not exhausted.

    Args:
        documents: The documents, of which a few chunks are held in memory.
        options: The work to do.
        processes: Number of worker processes; 1: do the work in this process.

    Yields:
        The tokenized documents, in order.

    Raises:
        ChildProcessError: A worker process was killed.
    """
    if processes == 1:
        for chunk in _chunks(documents):
            yield from _work(chunk, options)
        return
    # Not "fork": a forked copy of a process that has used torch may deadlock.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_start_worker)
    try:
        pending: deque[Future[list[TokenizedDocument]]] = deque()
        for chunk in _chunks(documents):
            pending.append(pool.submit(_work, chunk, options))
            if len(pending) > 2 * processes:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    except BrokenProcessPool:
        raise ChildProcessError(
            "a worker process was killed, possibly out of memory, or has ended for the reason that is printed above: "
            "run the same command again to resume, if necessary with fewer processes"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
