"""Tagged sentences in files with one token per line (CoNLL-style columns, CoNLL-U), and predictions
in them.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from elmokit.data.text_files import show_reading
from elmokit.fs import read_lines, suffixes_of, write_lines

CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
CONLLU_ID = re.compile(r"\d+([-.]\d+)?")
PARTS_OF_SPEECH = ("upos", "xpos")
SHOWN_TAGS = 12
DOCUMENT_START = "-DOCSTART-"
# Words may contain other white space, such as no-break spaces; and spaces, where tabs separate the
# columns.
SEPARATOR, TABS = re.compile(r"[ \t]+"), re.compile(r" *\t[ \t]*")
# In files that are not CoNLL-U, a "#" may be a word. Comments of MultiCoNER, "# id ..."; of
# GermEval, "#\thttp://..."; of CoNLL-2012, "#begin document"; of others, "# sent_id = ...".
COMMENT = re.compile(
    r"#([ \t]id[ \t]+\S+|\t\w+://\S+|(begin|end) document|[ \t]?[\w.:]+[ \t]*=)([ \t]|$)"
)


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence and their tags; no tags if the sentence is not tagged yet."""

    words: tuple[str, ...]
    tags: tuple[str, ...] = ()
    text: str | None = field(
        default=None, compare=False
    )  # of which these are the words, if it was one string


class Line(NamedTuple):
    """A line of a task file; `columns` is None if it is not the line of a word."""

    number: int
    text: str
    columns: list[str] | None


def _ends_sentence(line: Line) -> bool:
    """Whether a line separates sentences: blank, or the start of a document."""
    return not line.text.strip(" \t") or (
        line.columns is None and line.text.startswith(DOCUMENT_START)
    )


@dataclass(frozen=True)
class TaggedFile:
    """A file (plain, .gz or .zst) with one token per line, and how it is read or written.

    Attributes:
        path: The file.
        conllu: Whether it is CoNLL-U; else it has columns.
        word_column, tag_column: From 0; negative ones count from the end.
        with_tags: Whether tags are read. If not, a file with a single column has the words there.
    """

    path: Path
    conllu: bool
    word_column: int
    tag_column: int
    with_tags: bool = True

    @classmethod
    def of(
        cls,
        path: str | Path,
        format: str | None = None,
        word_column: int = 0,
        tag_column: str | int | None = None,
        with_tags: bool = True,
    ) -> "TaggedFile":
        """Build from explicit settings, else infer from the suffix.

        Args:
            path: The file.
            format: "columns" or "conllu"; inferred from the suffix of the file by default.
            word_column: Number of the column of the words; ignored for CoNLL-U.
            tag_column: For CoNLL-U, the name of the column of the tags, by default upos; otherwise
                its number, by default the last.
            with_tags: Whether tags are read. If not, `tag_column` matters only for CoNLL-U, where
                tags are written, and only if it names one of its columns.

        Raises:
            ValueError: There is no such format or column.
        """
        format = format or ("conllu" if suffixes_of(path).kind == ".conllu" else "columns")
        if format == "conllu":
            name = "upos" if tag_column is None else str(tag_column).lower()
            if name not in CONLLU_COLUMNS and not with_tags:  # a number, of the files with tags
                name = "upos"
            if name not in CONLLU_COLUMNS:
                raise ValueError(
                    f"CoNLL-U has no column {tag_column!r}, only {', '.join(CONLLU_COLUMNS)}"
                )
            form, tags = CONLLU_COLUMNS.index("form"), CONLLU_COLUMNS.index(name)
            return cls(Path(path), True, form, tags, with_tags)
        if format != "columns":
            raise ValueError(f"format must be columns or conllu, not {format!r}")
        number = -1 if tag_column is None or not with_tags else int(tag_column)
        return cls(Path(path), False, word_column, number, with_tags)

    def _lines(self) -> Iterator[Line]:
        """Yield every line with its number; word lines have columns.

        ValueError if a token has another number of columns than those before, or the ids of CoNLL-U
        do not count up.
        """
        width, separator, last_id = len(CONLLU_COLUMNS) if self.conllu else None, None, 0
        is_start = True  # whether a sentence starts
        for number, text in enumerate(read_lines(self.path), start=1):
            is_comment = (
                text.startswith("#")
                if self.conllu
                else is_start and COMMENT.match(text) is not None
            )
            if (
                not text.strip(" \t")
                or is_comment
                or (text.startswith(DOCUMENT_START) and not self.conllu)
            ):
                yield Line(number, text, None)
                is_start, last_id = True, last_id if text.startswith("#") else 0
                continue
            is_start = False
            separator = separator or (TABS if "\t" in text.strip(" \t") else SEPARATOR)
            columns = text.split("\t") if self.conllu else separator.split(text.strip(" \t"))
            width = width or len(columns)
            if len(columns) != width:
                expected = "CoNLL-U has" if self.conllu else "the lines before have"
                raise ValueError(
                    f"{self.path}, line {number}: {len(columns)} columns where {expected} {width}: "
                    f"{text[:80]!r} (only `elmokit predict --text` reads raw text)"
                )
            # Multiword tokens ("3-4") and empty nodes ("5.1") are not words.
            skipped = (
                self.conllu
                and CONLLU_ID.fullmatch(columns[0]) is not None
                and not columns[0].isdecimal()
            )
            if self.conllu and not skipped:
                if columns[0] != str(last_id + 1):
                    raise ValueError(
                        f"{self.path}, line {number}: the id {columns[0]!r} follows {last_id}; ids "
                        "count from 1 in each sentence, and an empty line ends it"
                    )
                last_id += 1
            yield Line(number, text, None if skipped else columns)

    def _column(self, line: Line, index: int) -> str:
        assert line.columns is not None
        try:
            return line.columns[index]
        except IndexError:
            raise ValueError(
                f"{self.path}, line {line.number}: there is no column {index} among "
                f"{len(line.columns)}"
            ) from None

    def sentences(self) -> Iterator[TaggedSentence]:
        """Stream the sentences of the file, and show how the first one is read.

        Yields:
            The sentences; a sentence of CoNLL-U whose parts of speech are all "_" has no tags.

        Raises:
            ValueError: A line has a wrong number of columns, or none for tags; or the words are the
                numbers 1, 2, 3, ..., or all "_".
            FileNotFoundError: The file does not exist.
        """
        has_parts_of_speech = self.conllu and CONLLU_COLUMNS[self.tag_column] in PARTS_OF_SPEECH
        is_shown, are_words_checked = False, self.conllu
        distinct: set[str] = set()  # until there are two
        words: list[str] = []
        tags: list[str] = []
        for line in chain(self._lines(), [Line(0, "", None)]):
            if line.columns is not None:
                has_only_words = not self.with_tags and len(line.columns) == 1
                words.append(self._column(line, 0 if has_only_words else self.word_column))
                if self.with_tags:
                    tags.append(self._column(line, self.tag_column))
                    if (self.tag_column - self.word_column) % len(line.columns) == 0:
                        raise ValueError(
                            f"{self.path}, line {line.number}: there is no column of tags besides "
                            "that of words"
                        )
            elif words and _ends_sentence(line):
                if not are_words_checked and len(words) > 1:
                    are_words_checked = True
                    if words == list(map(str, range(1, len(words) + 1))):
                        raise ValueError(
                            f"{self.path}: the words of its first longer sentence are the numbers "
                            f"1 to {words[-1]}: set format to conllu if it is CoNLL-U, else set "
                            "word_column, counted from 0"
                        )
                if not is_shown:
                    is_shown = True
                    show_reading(self.path, words, {"tags": " ".join(tags[:SHOWN_TAGS]) or None})
                distinct.update(words if len(distinct) < 2 else ())
                # "_" is CoNLL-U's mark for a missing value; in columns such as feats it is a value.
                is_untagged = has_parts_of_speech and set(tags) == {"_"}
                yield TaggedSentence(tuple(words), () if is_untagged else tuple(tags))
                words, tags = [], []
        if distinct == {"_"}:
            raise ValueError(
                f"{self.path}: all words are _: the treebank is published without its text, which "
                "must be merged in"
            )

    def format(self, words: Iterable[str], tags: Iterable[str]) -> str:
        """A sentence as lines "WORD TAG", or of CoNLL-U without other values."""
        lines = []
        for number, (word, tag) in enumerate(zip(words, tags, strict=True), start=1):
            columns = [word, tag]
            if self.conllu:
                columns = [str(number), word, *"_" * (len(CONLLU_COLUMNS) - 2)]
                columns[self.tag_column] = tag
            lines.append(("\t" if self.conllu else " ").join(columns) + "\n")
        return "".join(lines)

    def _with_tag(self, line: Line, tag: str) -> str:
        if self.conllu:
            columns = list(line.columns or ())
            columns[self.tag_column] = tag
            return "\t".join(columns)
        return line.text + ("\t" if "\t" in line.text else " ") + tag

    def write_predictions(
        self, predictions: Iterable[Sequence[str]], path: str | Path, overwrite: bool = False
    ) -> None:
        """Write a copy of the file with predicted tags, atomically.

        In CoNLL-U they replace the tag column. In other files they become a new last column, next
        to the gold tags, as conlleval expects.

        Args:
            predictions: The tags of each sentence.
            path: The copy.
            overwrite: Replace a file at `path`.

        Raises:
            FileExistsError: There is a file at `path`, and `overwrite` is not set.
            ValueError: There are more tags than tokens in the file, or fewer; or it is malformed.
        """
        tags = chain.from_iterable(predictions)

        def lines() -> Iterator[str]:
            for line in self._lines():
                text = line.text
                if line.columns is not None:
                    if (tag := next(tags, None)) is None:
                        raise ValueError(
                            f"{self.path}, line {line.number}: no tag was predicted for this token"
                        )
                    text = self._with_tag(line, tag)
                # The line that starts a document has as many columns as others in CoNLL-2003:
                # conlleval counts them.
                elif not self.conllu and len(SEPARATOR.split(text.strip(" \t"))) > 1:
                    text = self._with_tag(line, "O") if _ends_sentence(line) else text
                yield text
            if next(tags, None) is not None:
                raise ValueError(
                    f"{self.path} has fewer tokens than were predicted: give the file that the "
                    "tags are for"
                )

        write_lines(path, lines(), overwrite)
