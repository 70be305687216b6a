"""Text files as every verb reads them: raw, so that a tokenizer splits the lines, or tokenized
already.

A file is raw unless `elmokit prepare` wrote it or the caller says that it is tokenized. A warning
is issued for text that does not look like it, since results would otherwise be silently wrong.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from elmokit.data.documents import is_fasta
from elmokit.data.readers import is_conllu, is_tagged
from elmokit.data.tables import is_table, read_column, row_of
from elmokit.data.text_checks import attached_mark, beginning, doubt_of
from elmokit.fs import atomic_path, create_bytes, read_json, read_lines
from elmokit.progress import ProgressBar
from elmokit.text import TOKENIZED, Tokenizer, get_tokenizer, missing_rules, tokenizer_for

REPORT_NAME = "corpus.json"  # beside the shards of `elmokit prepare`
COLUMN = "text"  # of a table, unless another is named
SHARD = re.compile(r"shard-\d{5}\.txt(?:\.gz|\.zst)?")


def option_of_shard(file: Path, name: str) -> str | None:
    """An option by which `elmokit prepare` made a shard, from the corpus.json next to it; None for
    other files.
    """
    report = file.parent / REPORT_NAME
    is_shard = SHARD.fullmatch(file.name) and report.is_file()
    return read_json(report)["options"][name] if is_shard else None


def tokenizer_of_shard(file: Path) -> str | None:
    """The tokenizer of a shard of `elmokit prepare`; None for other files."""
    return option_of_shard(file, "tokenizer")


def read_texts(file: Path, column: str | None = None) -> Iterator[str]:
    """Stream the lines of a text file, or the texts in a column of a table: one for each line or
    row, in order.

    Args:
        file: Text (plain, .gz or .zst), or a table as in `read_records`.
        column: The column of a table; None: "text". If one is given, a file with another suffix
            than a table's is TSV.

    Yields:
        The texts, without line breaks; an empty one for a blank line, and for a row whose cell is
        empty.

    Raises:
        ValueError, FileNotFoundError: As `read_lines` and `read_column`.

    Warns:
        UserWarning: Cells are empty.
    """
    if column is None and not is_table(file):
        yield from read_lines(file)
        return
    count = first = 0
    for number, text in read_column(file, column or COLUMN):
        count, first = count + (not text), first or (0 if text else number)
        yield text.replace("\n", " ")
    if count:
        others = f" (the first of {count})" if count > 1 else ""
        warnings.warn(
            f"{row_of(file, first)}{others}: no text in the column {column or COLUMN!r}: it is "
            f"read as an empty text",
            stacklevel=1,
        )


def _refuse_records(file: Path) -> None:
    """ValueError for a file whose lines are not text, but records of another format."""
    # The suffix .fa is also used for text in Persian.
    are_proteins = is_fasta(file) and next(beginning(read_lines(file)), "").startswith(">")
    if is_table(file) or are_proteins or is_conllu(file) or is_tagged(file):
        raise ValueError(
            f"{file} holds records (a table, JSON, Parquet, annotated words or FASTA), not lines "
            "of text: write its sentences to a text file, one per line (embed, encode, predict, "
            "score and prepare read tables; embed proteins with --fasta)"
        )


def line_tokenizer(
    name: str | None, tokenize: bool = True, language: str | None = None
) -> Tokenizer:
    """The tokenizer for text that a model is to read.

    Args:
        name: The tokenizer that the model records; None if it records none: then text is split at
            white space.
        tokenize: Whether the text is raw.
        language: Code of the language whose rules split paragraphs into sentences; None: the
            tokenizer's own rules.

    Returns:
        The tokenizer; for tokenized text the one that splits at white space.

    Raises:
        ValueError: A language is given for tokenized text, or without a tokenizer, or is unknown.
    """
    if language is not None and (not tokenize or name is None):
        raise ValueError(
            f"language {language!r} is for raw text that a model's tokenizer splits: omit it, or "
            f"split the text first, with `elmokit prepare --language {language}`"
        )
    if not tokenize or name is None:
        return get_tokenizer(TOKENIZED)
    return get_tokenizer(name) if language is None else tokenizer_for(name, language)


def check_language(language: str | None, files: Sequence[Path]) -> None:
    """ValueError if a language is given, but no file is raw text that its rules could split."""
    if language is not None and all(map(tokenizer_of_shard, files)):
        raise ValueError("`elmokit prepare` has split all of the text already: omit the language")


def file_tokenizers(
    files: Sequence[Path],
    name: str | None,
    tokenize: bool = True,
    language: str | None = None,
    of_model: str | None = None,
    read: Callable[[Path], Iterator[str]] | None = None,
) -> list[Tokenizer]:
    """The tokenizer for the lines of each file: `line_tokenizer`, or for files of `elmokit prepare`
    whitespace-1.

    Args:
        files: Text files.
        name: As in `line_tokenizer`.
        tokenize: As in `line_tokenizer`.
        language: As in `line_tokenizer`.
        of_model: The language that the model records, for raw text where no other is given.
        read: Reads the texts of a file; None: its lines, and tables and other records are refused.

    Returns:
        A tokenizer for each file.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: The language is not one for this text, the tokenizer's library is not installed,
            or a file is not UTF-8, or holds records instead of lines of text.

    Warns:
        UserWarning: There are no rules for sentences of the language; a file looks raw but is read
        as tokenized text,
            is in a script without rules or decomposed, or is a shard of another tokenizer.
    """
    shards = [tokenizer_of_shard(file) for file in files]
    tokenized = get_tokenizer(TOKENIZED)
    # The tokenizer of a model may need a library that is not installed, so it is loaded only for
    # raw text.
    rules = language or (of_model if tokenize and name not in (None, TOKENIZED) else None)
    raw = tokenized if all(shards) else line_tokenizer(name, tokenize, rules)
    if (missing := missing_rules(raw, language)) is not None:
        warnings.warn(missing, stacklevel=1)
    for file, shard in zip(files, shards, strict=True):
        doubt = None
        if shard is None:
            if read is None or not is_table(file):
                _refuse_records(file)
            lines = list(beginning((read or read_lines)(file)))
            doubt = doubt_of(lines, raw)
            if raw is tokenized and (example := attached_mark(map(str.split, lines))):
                doubt = (
                    f"is read as tokenized text, but looks raw, as in {example!r}: tokenize it "
                    "(--tokenize, tokenize=True in Python, if the model records a tokenizer; or "
                    "`elmokit prepare`)"
                )
        elif tokenize and name not in (None, shard):
            doubt = f"was tokenized with {shard}, the model's training text with {name}"
        if doubt is not None:
            warnings.warn(
                f"{file} {doubt}", stacklevel=1
            )  # from here, so that a file that is read twice warns once
            break
    return [tokenized if shard else raw for shard in shards]


def read_sentences(file: Path, tokenizer: Tokenizer) -> Iterator[list[str]]:
    """Stream the sentences of a file.

    Args:
        file: Text file (plain, .gz or .zst).
        tokenizer: Splits a line into its sentences, and these into words; whitespace-1 if the text
            is tokenized.

    Yields:
        The words of each sentence; none is empty.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: It is not UTF-8 (the message names the line), is a pipe, or cannot be
            decompressed.
    """
    for line in read_lines(file):
        yield from tokenizer.split_paragraph(line)


def tokenized_files(
    files: Sequence[Path],
    directory: Path,
    name: str | None,
    tokenize: bool = True,
    language: str | None = None,
    of_model: str | None = None,
) -> list[Path]:
    """The files, with tokenized copies in place of raw ones: one sentence per line, in the order of
    the text.

    Args:
        files: Text files.
        directory: Directory for the copies. Those of an earlier call are reused if the files have
            not changed.
        name: As in `line_tokenizer`.
        tokenize: As in `line_tokenizer`.
        language: As in `line_tokenizer`.
        of_model: As in `file_tokenizers`.

    Returns:
        A file for each of `files`.

    Raises:
        ValueError: A file has no sentences, or is not UTF-8; the message names the line.
    """
    return [
        file if tokenizer.name == TOKENIZED else _tokenized_copy(file, tokenizer, directory)
        for file, tokenizer in zip(
            files, file_tokenizers(files, name, tokenize, language, of_model), strict=True
        )
    ]


def _tokenized_copy(file: Path, tokenizer: Tokenizer, directory: Path) -> Path:
    status = file.stat()
    source = (
        str(file.absolute()),
        status.st_size,
        status.st_mtime_ns,
        tokenizer.name,
        tokenizer.language,
    )
    name = blake2b(repr(source).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    copy = directory / f"{name}.txt.zst"
    if not copy.exists():
        sentences = ProgressBar(
            read_sentences(file, tokenizer), f"tokenize {file.name}", unit=" sentences"
        )
        words: list[str] = []
        with atomic_path(copy) as partial, create_bytes(partial) as stream:
            for words in sentences:
                stream.write(f"{' '.join(words)}\n".encode())
            if not words:
                raise ValueError(f"{file} has no sentences: remove it from the corpus")
    return copy
