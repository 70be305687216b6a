"""Documents of plain text and tables: streamed, tokenized and fingerprinted by worker processes.

                      process 1: NFC, fingerprints, tokens
read_documents  ->    process 2                              ->    documents in their order
                      ...
"""

import os
import signal
import threading
import unicodedata
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain, groupby, islice
from multiprocessing import get_context, parent_process
from typing import NamedTuple

from elmokit.data.batches import chunks
from elmokit.data.duplicates import Fingerprint, Place, fingerprints
from elmokit.data.tables import is_table, read_column
from elmokit.fs import read_lines
from elmokit.text import get_tokenizer

# Longer documents, such as books or texts without blank lines, are split into several.
MAX_LINES = 1_000
MAX_DOCUMENT_CHARACTERS = 250_000
CHUNK_CHARACTERS = 1_000_000  # characters of documents sent to a process at a time


@dataclass(frozen=True)
class Document:
    """The place of a document, or of a chunk of a long one, and its lines without blank ones."""

    place: Place
    lines: list[str]


def _wrapped_paragraphs(path: str) -> Iterator[tuple[int, str]]:
    """Yield the number of the first line and the text of each paragraph that blank lines end."""
    numbered = enumerate(read_lines(path), start=1)
    for is_blank, lines in groupby(numbered, lambda line: not line[1].strip()):
        if not is_blank:
            numbers, texts = zip(*lines, strict=True)
            yield numbers[0], " ".join(map(str.strip, texts))


def _marked_lines(path: str, field: str, wrapped: bool) -> Iterator[tuple[int, str | None]]:
    """Yield the position and text of each line that is not blank; a text of None marks the end of a
    document.
    """
    if is_table(path):
        for position, text, _ in read_column(path, field):
            for line in text.split("\n"):
                if line.strip():
                    yield position, line.rstrip("\r")
            yield position, None
    elif wrapped:
        yield from _wrapped_paragraphs(path)
    else:
        for number, line in enumerate(read_lines(path), start=1):
            yield number, line if line.strip() else None


def read_documents(
    path: str, field: str = "text", file: int = 0, wrapped: bool = False
) -> Iterator[Document]:
    """Stream the documents of a file.

    Args:
        path: Text file (plain, .gz or .zst) with blank lines between documents; a table as in
            `read_rows`, with one document per row.
        field: Field or column with the text.
        file: Index of the file, which each document records.
        wrapped: The lines of a text file are not paragraphs, but parts of them, with blank lines
            between paragraphs; a document is a file.

    Yields:
        Documents with at least one line. One of more than MAX_LINES lines or
        MAX_DOCUMENT_CHARACTERS characters is cut into several, between lines; those of one record
        have its position.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is damaged, not UTF-8, has no such field, or needs a library that is
            not installed.
    """
    # Lines of a file, and the documents that they become:
    #
    #   1 a    2 b    3 (blank)    4 c         Document(Place(file, 1), [a, b])
    #                                          Document(Place(file, 4), [c])
    lines: list[str] = []
    characters = begin = 0
    for position, line in _marked_lines(path, field, wrapped):
        if line is not None:
            begin = begin if lines else position
            lines.append(line)
            characters += len(line)
        if lines and (
            line is None or len(lines) == MAX_LINES or characters >= MAX_DOCUMENT_CHARACTERS
        ):
            yield Document(Place(file, begin), lines)
            lines, characters = [], 0
    if lines:
        yield Document(Place(file, begin), lines)


# --- Worker processes ----------------------------------------------------------------------------


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
                # A line for each sentence of a paragraph, with spaces between its tokens.
                document.lines[:] = [
                    "".join(f"{' '.join(tokens)}\n" for tokens in tokenizer.split_paragraph(line))
                    for line in document.lines
                ]
        return list(zip(documents, hashes, strict=True))


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
        ValueError: A worker process ended.
    """
    remaining = chunks(documents, CHUNK_CHARACTERS, lambda read: sum(map(len, read.lines)))
    first = list(islice(remaining, 2))
    if processes == 1 or len(first) < 2:
        for chunk in chain(first, remaining):
            yield from work(chunk)
        return
    # Not "fork": a forked copy of a process that has used torch may deadlock.
    pool = ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_start_worker
    )
    # Chunks are submitted ahead of the one whose result is awaited, two for each process, so that
    # none waits for work, and memory holds few.
    try:
        pending: deque[Future[list[tuple[Document, Fingerprint]]]] = deque()
        for chunk in chain(first, remaining):
            pending.append(pool.submit(work, chunk))
            if len(pending) > 2 * processes:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    except BrokenProcessPool as error:
        raise ValueError(
            "a process that splits text ended: in a script, call prepare below `if __name__ == "
            '"__main__":`, or with processes=1, as in one from standard input; or free memory'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
