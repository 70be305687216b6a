"""Raw text to the tokenized shards that pretraining reads."""

import hashlib
import json
import math
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from multiprocessing import cpu_count, get_context
from pathlib import Path

from tqdm import tqdm

from elmokit.fs.atomic import atomic_directory, create_bytes
from elmokit.fs.reading import read_lines
from elmokit.text.characters import MAX_CHARACTERS, count_truncated
from elmokit.text.tokenizers import get_tokenizer

try:
    import resource
except ImportError:  # Windows, which does not say how many files may be open
    resource = None

REPORT_NAME = "corpus.json"
SUFFIX_OF = {"zst": ".txt.zst", "gz": ".txt.gz", "none": ".txt"}

# A text without blank lines, or a long book, is dealt to the shards in pieces, each as if it were a document.
PIECE_LINES = 1_000
PIECE_CHARACTERS = 250_000
# What one process tokenizes at a time.
CHUNK_CHARACTERS = 1_000_000
# A shard holds about this much text where the number of shards is left open; more, where there would be too many.
SHARD_BYTES = 16_000_000
COMPRESSION_RATIO = 3
DEFAULT_MOST_SHARDS = 256
# All shards are open at once. The system limits the number of open files, and other files are open too.
OTHER_OPEN_FILES = 64
WINDOWS_OPEN_FILES = 512


@dataclass(frozen=True)
class PrepareOptions:
    """What decides the content of the shards: equal options give equal bytes."""

    input_bytes: dict[str, int]  # path -> size on disk
    tokenizer: str
    num_shards: int
    seed: int
    compression: str


@dataclass
class PrepareReport:
    """What went in and came out; kept beside the shards."""

    options: PrepareOptions
    documents: int = 0
    sentences: int = 0
    words: int = 0
    long_words: int = 0  # whose bytes a character CNN cannot all see
    empty_lines: int = 0
    words_per_input: dict[str, int] = field(default_factory=dict)
    already_done: bool = False  # this call found it finished and did nothing


@dataclass(frozen=True)
class Document:
    """A document, or a piece of a long one: its raw lines and the input they are from."""

    source: str
    lines: list[str]


@dataclass(frozen=True)
class TokenizedDocument:
    """A document as text of one sentence a line, with its counts."""

    source: str
    text: str
    sentences: int
    words: int
    long_words: int


def read_documents(path: str, report: PrepareReport) -> Iterator[Document]:
    """The documents of one file, which blank lines divide; blank lines are counted into the report."""
    lines: list[str] = []
    characters = 0
    for line in read_lines(path):
        blank = not line.strip()
        report.empty_lines += blank
        if not blank:
            lines.append(line)
            characters += len(line)
        if lines and (blank or len(lines) == PIECE_LINES or characters >= PIECE_CHARACTERS):
            yield Document(path, lines)
            lines, characters = [], 0
    if lines:
        yield Document(path, lines)


def tokenize_document(document: Document, tokenizer_name: str) -> TokenizedDocument:
    """Split a document into sentences and tokens. No sentence reaches across a line."""
    tokenizer = get_tokenizer(tokenizer_name)
    sentences = [tokenizer.tokenize(text) for line in document.lines for text in tokenizer.split_sentences(line)]
    return TokenizedDocument(
        source=document.source,
        text="".join(f"{' '.join(tokens)}\n" for tokens in sentences if tokens),
        sentences=sum(1 for tokens in sentences if tokens),
        words=sum(map(len, sentences)),
        long_words=sum(count_truncated(tokens, MAX_CHARACTERS) for tokens in sentences),
    )


def _tokenize_chunk(documents: list[Document], tokenizer_name: str) -> list[TokenizedDocument]:
    return [tokenize_document(document, tokenizer_name) for document in documents]


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


def tokenize_documents(
    documents: Iterable[Document], tokenizer_name: str, processes: int
) -> Iterator[TokenizedDocument]:
    """Tokenize a stream of documents on several processes; the order is kept, and only a few chunks are in memory."""
    if processes == 1:
        for chunk in _chunks(documents):
            yield from _tokenize_chunk(chunk, tokenizer_name)
        return
    # "spawn", because a forked copy of a process that has run torch may hang.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting: deque[Future[list[TokenizedDocument]]] = deque()
        for chunk in _chunks(documents):
            waiting.append(pool.submit(_tokenize_chunk, chunk, tokenizer_name))
            if len(waiting) > 2 * processes:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def shard_of(document_number: int, num_shards: int, seed: int) -> int:
    """The shard of a document: a hash, so that every shard is a sample of all inputs."""
    digest = hashlib.blake2b(f"{seed}:{document_number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % num_shards


def _write_shards(report: PrepareReport, directory: Path, processes: int) -> None:
    options = report.options
    words_per_input: Counter[str] = Counter(dict.fromkeys(options.input_bytes, 0))
    documents = (document for path in options.input_bytes for document in read_documents(path, report))
    with ExitStack() as stack:
        suffix = SUFFIX_OF[options.compression]
        names = [f"shard-{index:05d}{suffix}" for index in range(options.num_shards)]
        shards = [stack.enter_context(create_bytes(directory / name)) for name in names]
        bar = stack.enter_context(
            tqdm(unit=" words", unit_scale=True, desc="prepare", dynamic_ncols=True, disable=None)
        )
        for document in tokenize_documents(documents, options.tokenizer, processes):
            shards[shard_of(report.documents, options.num_shards, options.seed)].write(document.text.encode())
            report.documents += 1
            report.sentences += document.sentences
            report.words += document.words
            report.long_words += document.long_words
            words_per_input[document.source] += document.words
            bar.update(document.words)
    report.words_per_input = dict(words_per_input)


def _check_inputs(inputs: Sequence[str | Path]) -> dict[str, int]:
    """Sizes of the inputs; what can be known to be wrong before the work starts is said now."""
    paths = [str(path) for path in inputs]
    if not paths:
        raise ValueError("there is no input: name at least one text file")
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]} is given more than once: name each input once")
    for path in paths:
        if not any(line.strip() for line in read_lines(path)):
            raise ValueError(f"{path} is empty: leave it out, or check how it was made")
    return {path: Path(path).stat().st_size for path in paths}


def most_shards() -> int:
    """How many shards this process may have open at once."""
    if resource is None:
        return WINDOWS_OPEN_FILES - OTHER_OPEN_FILES
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(1, limit - OTHER_OPEN_FILES)


def _default_num_shards(input_bytes: dict[str, int]) -> int:
    text_bytes = sum(
        size * (COMPRESSION_RATIO if path.endswith((".gz", ".zst")) else 1) for path, size in input_bytes.items()
    )
    return max(1, min(math.ceil(text_bytes / SHARD_BYTES), DEFAULT_MOST_SHARDS, most_shards()))


def read_report(directory: str | Path) -> PrepareReport:
    """The report of a finished corpus directory."""
    values = json.loads((Path(directory) / REPORT_NAME).read_text(encoding="utf-8"))
    return PrepareReport(**{**values, "options": PrepareOptions(**values["options"])})


def _finished_report(output: Path, options: PrepareOptions) -> PrepareReport | None:
    """The report of an earlier run with the same options; None where there was none; ValueError where they differ."""
    if not (output / REPORT_NAME).exists():
        return None
    report = read_report(output)
    old, new = asdict(report.options), asdict(options)
    different = [name for name in new if old[name] != new[name]]
    if different:
        raise ValueError(
            f"{output} holds a corpus made with other {', '.join(different)}: remove it or choose another output"
        )
    report.already_done = True
    return report


def prepare(
    inputs: Sequence[str | Path],
    output: str | Path,
    tokenizer: str = "english-1",
    num_shards: int | None = None,
    processes: int | None = None,
    seed: int = 0,
    compression: str = "zst",
) -> PrepareReport:
    """Split raw text into tokenized shards, `output`/shard-NNNNN.txt.zst, one sentence a line, and report.

    Inputs are UTF-8 text (plain, .gz, .zst) of one paragraph a line, with blank lines between documents. A document's
    sentences stay together and in order; its shard is a hash of its number. The bytes written do not depend on
    `processes`. The directory appears when complete; where it is complete already, nothing is done.
    ValueError for an empty input, invalid UTF-8 or a corpus of other options; OSError for an unwritable output.
    """
    if compression not in SUFFIX_OF:
        raise ValueError(f"compression is {compression!r}: choose one of {', '.join(SUFFIX_OF)}")
    if num_shards is not None and not 1 <= num_shards <= most_shards():
        raise ValueError(
            f"num_shards is {num_shards}: choose 1 to {most_shards()}, as many files as may be open at once here "
            "(`ulimit -n` says and raises the limit)"
        )
    processes = processes or cpu_count()
    if processes < 1:
        raise ValueError(f"processes is {processes}: at least 1 is needed")
    tokenizer = get_tokenizer(tokenizer).name  # an unknown one is told of now
    output = Path(output)
    input_bytes = _check_inputs(inputs)
    options = PrepareOptions(input_bytes, tokenizer, num_shards or _default_num_shards(input_bytes), seed, compression)
    finished = _finished_report(output, options)
    if finished is not None:
        return finished

    report = PrepareReport(options)
    with atomic_directory(output) as directory:
        _write_shards(report, directory, processes)
        text = json.dumps(asdict(report), indent=2, ensure_ascii=False)
        (directory / REPORT_NAME).write_text(text + "\n", encoding="utf-8")
    return report
