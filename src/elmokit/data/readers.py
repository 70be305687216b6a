"""Tagged sentences from files of one token a line (CoNLL-style columns, CoNLL-U), and predictions in that layout."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from elmokit.fs.atomic import atomic_path, create_bytes
from elmokit.fs.reading import read_lines

CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
DOCUMENT_START = "-DOCSTART-"
# Only these separate columns: a word may hold other white space, such as a no-break space.
SEPARATOR = re.compile(r"[ \t]+")


@dataclass(frozen=True)
class TaggedSentence:
    """The words of one sentence and their tags, as many or (a sentence still to be tagged) none."""

    words: tuple[str, ...]
    tags: tuple[str, ...] = ()


class Line(NamedTuple):
    """One line of a task file; `columns` is None unless the line is a token."""

    number: int
    text: str
    columns: list[str] | None


@dataclass(frozen=True)
class Layout:
    """Where words and tags stand in a file of one token a line; columns count from 0, from the end if negative."""

    conllu: bool
    word_column: int
    tag_column: int

    @classmethod
    def of(
        cls, path: str | Path, format: str | None = None, word_column: int = 0, tag_column: str | int | None = None
    ) -> "Layout":
        """The layout of a file: `format` "columns" or "conllu", or None to infer it from the file suffix.

        CoNLL-U names its tag column (upos if None), and its word column is given; others number it (the last if None).
        """
        suffixes = Path(path).suffixes
        suffix = next((suffix for suffix in reversed(suffixes) if suffix not in (".gz", ".zst")), "")
        format = format or ("conllu" if suffix == ".conllu" else "columns")
        if format == "conllu":
            name = "upos" if tag_column is None else str(tag_column).lower()
            if name not in CONLLU_COLUMNS:
                raise ValueError(f"tag column {tag_column!r}: CoNLL-U has {', '.join(CONLLU_COLUMNS)}")
            return cls(True, CONLLU_COLUMNS.index("form"), CONLLU_COLUMNS.index(name))
        if format != "columns":
            raise ValueError(f'format {format!r}: choose "columns" or "conllu"')
        try:
            return cls(False, word_column, -1 if tag_column is None else int(tag_column))
        except ValueError:
            raise ValueError(f"tag column {tag_column!r}: give its number, or format conllu to use a name") from None


def read_token_lines(path: str | Path, layout: Layout) -> Iterator[Line]:
    """Every line of a task file; a token line whose number of columns is not that of the others is a ValueError."""
    width = len(CONLLU_COLUMNS) if layout.conllu else None
    for number, text in enumerate(read_lines(path), start=1):
        if not text.strip(" \t") or (text.startswith("#") if layout.conllu else text.startswith(DOCUMENT_START)):
            yield Line(number, text, None)
            continue
        columns = text.split("\t") if layout.conllu else SEPARATOR.split(text.strip(" \t"))
        width = width or len(columns)
        if len(columns) != width:
            expected = "CoNLL-U has" if layout.conllu else "the lines before have"
            raise ValueError(f"{path}, line {number}: {len(columns)} columns where {expected} {width}: {text!r}")
        # "3-4" is a token of several words, "5.1" a node that was never written: their words have lines of their own.
        skipped = layout.conllu and not columns[0].isdecimal()
        yield Line(number, text, None if skipped else columns)


def ends_sentence(line: Line) -> bool:
    """Whether a line stands between sentences: blank, or the start of a document."""
    return not line.text.strip(" \t") or (line.columns is None and line.text.startswith(DOCUMENT_START))


def _column(columns: list[str], index: int, path: str | Path, number: int) -> str:
    try:
        return columns[index]
    except IndexError:
        raise ValueError(f"{path}, line {number}: there is no column {index} among {len(columns)}") from None


def read_tagged(path: str | Path, layout: Layout, with_tags: bool = True) -> Iterator[TaggedSentence]:
    """The sentences of a task file, streamed; without their tags where `with_tags` is False."""
    words: list[str] = []
    tags: list[str] = []
    for line in read_token_lines(path, layout):
        if line.columns is not None:
            words.append(_column(line.columns, layout.word_column, path, line.number))
            if with_tags:
                tags.append(_column(line.columns, layout.tag_column, path, line.number))
        elif ends_sentence(line) and words:
            yield TaggedSentence(tuple(words), tuple(tags))
            words, tags = [], []
    if words:
        yield TaggedSentence(tuple(words), tuple(tags))


def _with_tag(line: Line, tag: str, layout: Layout) -> str:
    assert line.columns is not None
    if layout.conllu:
        columns = list(line.columns)
        columns[layout.tag_column] = tag
        return "\t".join(columns)
    return line.text + ("\t" if "\t" in line.text else " ") + tag


def write_predictions(
    source: str | Path, predictions: Iterable[Sequence[str]], path: str | Path, layout: Layout
) -> tuple[int, int]:
    """A copy of a task file with predicted tags, one sequence a sentence; the numbers of sentences and tokens written.

    CoNLL-U gets them in place of the tag column and keeps all else. Other files get one more column, the last: gold and
    predicted tags then stand side by side, as conlleval reads them. The file appears whole or not at all.
    """
    sentences, tokens = 0, 0
    tags: Iterator[str] | None = None  # of the sentence that is being written
    remaining = iter(predictions)
    with atomic_path(path) as partial, create_bytes(partial) as stream:
        for line in read_token_lines(source, layout):
            text = line.text
            if line.columns is not None:
                if tags is None:
                    tags, sentences = iter(next(remaining, ())), sentences + 1
                tag = next(tags, None)
                if tag is None:
                    raise ValueError(f"{source}, line {line.number}: no tag was predicted for this token")
                text, tokens = _with_tag(line, tag, layout), tokens + 1
            elif ends_sentence(line):
                tags = None
            stream.write(f"{text}\n".encode())
    return sentences, tokens
