"""Documents split into sentences and tokens, with their fingerprints, by several processes."""

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
from elmokit.text.characters import MAX_CHARACTERS, count_truncated
from elmokit.text.tokenizer import Tokenizer
from elmokit.text.tokenizers import tokenizer_for

# What one process tokenizes at a time.
CHUNK_CHARACTERS = 1_000_000


class TokenizedLine(NamedTuple):
    """A line of a document as text of one sentence a line, with its counts."""

    text: str
    sentences: int
    words: int
    long_words: int


@dataclass(frozen=True)
class TokenizedDocument:
    """A document whose lines are tokenized; of one that is only compared with, there are none."""

    file: int
    lines: list[TokenizedLine]
    fingerprint: Fingerprint | None
    characters: int = 0
    unknown_letters: int = 0  # of scripts that the tokenizer has no rules for

    @property
    def words(self) -> int:
        return sum(line.words for line in self.lines)


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker process does with documents; those of the first `num_excluded` files are only compared with."""

    tokenizer: str
    language: str | None
    num_excluded: int
    fingerprints: bool
    near: bool


def tokenize_line(line: str, tokenizer: Tokenizer) -> TokenizedLine:
    """Split a line into sentences and tokens. No sentence reaches across a line."""
    sentences = [tokens for text in tokenizer.split_sentences(line) if (tokens := tokenizer.tokenize(text))]
    return TokenizedLine(
        text="".join(f"{' '.join(tokens)}\n" for tokens in sentences),
        sentences=len(sentences),
        words=sum(map(len, sentences)),
        long_words=sum(count_truncated(tokens, MAX_CHARACTERS) for tokens in sentences),
    )


def _work(documents: list[Document], options: WorkerOptions) -> list[TokenizedDocument]:
    tokenizer = tokenizer_for(options.tokenizer, options.language)
    lines = [document.lines for document in documents]
    found = fingerprints(lines, options.near) if options.fingerprints else [None] * len(lines)
    return [
        TokenizedDocument(document.file, [], fingerprint)
        if document.file < options.num_excluded
        else TokenizedDocument(
            file=document.file,
            lines=[tokenize_line(line, tokenizer) for line in document.lines],
            fingerprint=fingerprint,
            characters=sum(map(len, document.lines)),
            unknown_letters=sum(map(tokenizer.count_unknown, document.lines)),
        )
        for document, fingerprint in zip(documents, found, strict=True)
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


def _leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _start_worker() -> None:
    """A worker leaves interruptions and warnings to its parent, and does not outlive it, however that ends."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def tokenize_documents(
    documents: Iterable[Document], options: WorkerOptions, processes: int
) -> Generator[TokenizedDocument, None, None]:
    """Tokenize a stream of documents on several processes; the order is kept, and only a few chunks are in memory.

    The processes end with the generator: close it where it is not read to its end.
    """
    if processes == 1:
        for chunk in _chunks(documents):
            yield from _work(chunk, options)
        return
    # "spawn", because a forked copy of a process that has run torch may hang.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_start_worker)
    try:
        waiting: deque[Future[list[TokenizedDocument]]] = deque()
        for chunk in _chunks(documents):
            waiting.append(pool.submit(_work, chunk, options))
            if len(waiting) > 2 * processes:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool:
        raise ChildProcessError(
            "a worker process was killed, perhaps for want of memory: the same command goes on, with fewer processes "
            "if need be"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
