"""Text files as every verb reads them: raw, so that a tokenizer splits the lines, or tokenized already.

A file is raw unless `elmokit prepare` wrote it or the caller says that it is tokenized. Text that does not look like
what it is taken for is reported, since the results would be wrong without a sign of it.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path

from elmokit.fs.atomic import atomic_path, create_bytes
from elmokit.fs.reading import read_lines
from elmokit.progress import ProgressBar
from elmokit.text.tokenizer import Tokenizer
from elmokit.text.tokenizers import get_tokenizer, tokenizer_for

TOKENIZED = "whitespace-1"  # splits tokenized text into its words

# --- Raw or tokenized ------------------------------------------------------------------------------------------------

SHARD = re.compile(r"shard-\d{5}\.txt(?:\.gz|\.zst)?")


def tokenizer_of_shard(file: Path) -> str | None:
    """The tokenizer by which `elmokit prepare` wrote a file, as corpus.json beside it says; None for other files."""
    report = file.parent / "corpus.json"
    if not SHARD.fullmatch(file.name) or not report.is_file():
        return None
    try:
        name = json.loads(report.read_text(encoding="utf-8"))["options"]["tokenizer"]
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{report} is damaged ({error!r}): prepare the corpus again") from None
    if not isinstance(name, str):
        raise ValueError(f"{report} is damaged (its tokenizer is {name!r}): prepare the corpus again")
    return name


def line_tokenizer(name: str | None, tokenize: bool = True, language: str | None = None) -> Tokenizer:
    """The tokenizer of text for a model.

    Args:
        name: The tokenizer that the model records; None if it records none, so that text must be tokenized.
        tokenize: Whether the text is raw.
        language: Code of the language whose rules split paragraphs into sentences; None: the tokenizer's own rules.

    Returns:
        The tokenizer; for tokenized text the one that splits at white space.
    """
    if not tokenize or name is None:
        return get_tokenizer(TOKENIZED)
    return get_tokenizer(name) if language is None else tokenizer_for(name, language)


def file_tokenizers(
    files: Sequence[Path], tokenizer: Tokenizer, *, by_line: bool = False, long_lines: bool = False
) -> list[Tokenizer]:
    """The tokenizer for the lines of each file: `tokenizer`, or for files of `elmokit prepare` whitespace-1.

    Args:
        files: Text files.
        tokenizer: From `line_tokenizer`.
        by_line: Every line is used as one sentence. Otherwise raw lines are split into sentences.
        long_lines: Lines may be longer than sentences are.

    Warns:
        UserWarning: The first file that does not look like what it is taken for; or shards of another tokenizer.
    """
    tokenizers, warned = [], False
    for file in files:
        written_with = tokenizer_of_shard(file)
        tokenizers.append(tokenizer if written_with is None else get_tokenizer(TOKENIZED))
        if warned:
            continue
        if written_with not in (None, tokenizer.name) and tokenizer.name != TOKENIZED:
            doubts = [f"{file} was tokenized with {written_with}, the model's training text with {tokenizer.name}"]
        elif written_with is None:
            is_by_line = by_line or tokenizer.name == TOKENIZED
            doubts = [f"{file} {doubt}" for doubt in _doubts(file, tokenizer, is_by_line and not long_lines)]
        else:
            doubts = []
        for doubt in doubts:
            warned = True
            warnings.warn(doubt, stacklevel=3)
    return tokenizers


def read_sentences(file: Path, tokenizer: Tokenizer) -> Iterator[list[str]]:
    """Stream the tokenized sentences of a file, of which a line may have several (one if the text is tokenized)."""
    for line in read_lines(file):
        for sentence in tokenizer.split_sentences(line):
            if words := tokenizer.tokenize(sentence):
                yield words


def tokenized_files(files: Sequence[Path], tokenizer: Tokenizer, directory: Path) -> list[Path]:
    """The files, with tokenized copies in place of raw ones: one sentence per line, in the order of the text.

    Args:
        files: Text files.
        tokenizer: From `line_tokenizer`.
        directory: Directory for the copies. Those of an earlier call are used again where the files are the same.

    Returns:
        As many files.

    Raises:
        ValueError: A file has no sentences, or is not UTF-8; the message names the line.
    """
    return [
        file if splits.name == TOKENIZED else _tokenized_copy(file, splits, directory)
        for file, splits in zip(files, file_tokenizers(files, tokenizer), strict=True)
    ]


def _tokenized_copy(file: Path, tokenizer: Tokenizer, directory: Path) -> Path:
    status = file.stat()
    source = (str(file.absolute()), status.st_size, status.st_mtime_ns, tokenizer.name)
    name = blake2b(repr(source).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    copy = directory / f"{name}.txt.zst"
    if not copy.exists():
        sentences = ProgressBar(read_sentences(file, tokenizer), f"tokenize {file.name}", unit=" sentences")
        words: list[str] = []
        with atomic_path(copy) as partial, create_bytes(partial) as stream:
            for words in sentences:
                stream.write(f"{' '.join(words)}\n".encode())
            if not words:
                raise ValueError(f"{file} has no sentences: remove it from the corpus")
    return copy


# --- Text that does not look like what it is taken for ---------------------------------------------------------------

SAMPLE_LINES, SAMPLE_CHARACTERS = 1_000, 1 << 20
# A comma, period, ... that is attached to a word, or between the words of a script without spaces: raw text.
ATTACHED = re.compile(
    r".*[^\W\d_]{2}[,;!?][\"'\u201d\u2019)]*|.*\w[\u3002\uff0c\uff01\uff1f\u3001\uff1b]\w.*|[^\x00-\x7f]{25,}"
)
ATTACHED_AT_END = re.compile(r".*[^\W\d_]{2}[.!?\u3002\uff01\uff1f][\"'\u201d\u2019)]*")
SEPARATE = frozenset(",.\u3001\u3002\uff0c")  # as words of their own: tokenized text
MARK_SHARE = 0.02
# Sentences are seldom longer; a tenth of longer ones is a text whose lines are paragraphs or documents.
LONG_LINE_WORDS, LONG_LINE_SHARE = 150, 0.1
UNKNOWN_SHARE = 0.01  # of letters of scripts without rules
# A quarter of the words of English text, and few of those of other languages in its script.
ENGLISH_WORDS = frozenset(
    "the of and to a in is that it for was with on as he she they you are this be at by i".split()  # noqa: SIM905
)
ENGLISH_SHARE, ENGLISH_SAMPLE = 0.08, 200


def _doubts(file: Path, tokenizer: Tokenizer, lines_are_sentences: bool) -> Iterator[str]:
    """What speaks against reading a file with this tokenizer, from a look at its beginning."""
    lines = list(_beginning(file))
    words = [line.split() for line in lines]
    if tokenizer.name == TOKENIZED:
        if example := attached_mark(words):
            yield (
                f"is read as tokenized text, whose words are separated by spaces, but looks raw, as in {example!r}: "
                "tokenize it (with --tokenize, tokenize=True in Python, if the model records a tokenizer; or with "
                "`elmokit prepare`)"
            )
    elif _are_marks_separate(words):
        yield (
            "is read as raw text, but looks tokenized, with spaces before its commas and periods: if it is, say so "
            "with --no-tokenize (tokenize=False in Python)"
        )
    if lines_are_sentences and _are_long(words):
        yield (
            f"has lines of more than {LONG_LINE_WORDS} words, each of which is read as one sentence: split it into "
            "sentences, one per line, as `elmokit prepare` does"
        )
    if doubt := language_doubt(lines, tokenizer):
        yield doubt


def _beginning(file: Path) -> Iterator[str]:
    characters = 0
    for line in islice(filter(str.strip, read_lines(file)), SAMPLE_LINES):
        yield line[:SAMPLE_CHARACTERS]
        characters += len(line)
        if characters >= SAMPLE_CHARACTERS:
            return


def attached_mark(lines: Iterable[Sequence[str]]) -> str | None:
    """A word with an attached mark, if at least two and at least 2 % of the words have one."""
    total, marked = 0, []
    for words in lines:
        total += len(words)
        marked += [word for word in words[:-1] if ATTACHED.fullmatch(word[-60:])]
        marked += [word for word in words[-1:] if ATTACHED_AT_END.fullmatch(word) or ATTACHED.fullmatch(word[-60:])]
    return marked[0][:60] if len(marked) >= max(2, MARK_SHARE * total) else None


def _are_marks_separate(lines: Sequence[Sequence[str]]) -> bool:
    total = sum(map(len, lines))
    separate = sum(word in SEPARATE for words in lines for word in words)
    return separate >= max(2, MARK_SHARE * total) and attached_mark(lines) is None


def _are_long(lines: Sequence[Sequence[str]]) -> bool:
    long = sum(len(words) > LONG_LINE_WORDS for words in lines)
    return long > LONG_LINE_SHARE * len(lines)


def language_doubt(lines: Sequence[str], tokenizer: Tokenizer) -> str | None:
    """Say whether text is in a script, or for english-1 probably a language, for which a tokenizer has no rules."""
    unknown, characters = sum(map(tokenizer.count_unknown, lines)), sum(map(len, lines))
    if unknown >= max(2, UNKNOWN_SHARE * characters):
        return f"has {unknown / characters:.0%} letters of scripts for which {tokenizer.name} has no rules: {ADVICE}"
    if tokenizer.name != "english-1":
        return None
    words = [word for word in chain.from_iterable(map(str.split, lines)) if word.isalpha()]
    english = sum(word.lower() in ENGLISH_WORDS for word in words)
    if len(words) >= ENGLISH_SAMPLE and english < ENGLISH_SHARE * len(words):
        return f"does not look like English, whose rules {tokenizer.name} follows: {ADVICE}"
    return None


ADVICE = (
    "use a model of its language; where text is prepared or a model is trained, choose the rules with --language or "
    "--tokenizer"
)
