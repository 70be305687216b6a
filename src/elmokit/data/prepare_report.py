"""What decides the content of a prepared corpus, and what was kept and left out; as JSON beside the shards."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

REPORT_NAME = "corpus.json"

DropDuplicates = Literal["near", "exact", "none"]
Reason = Literal["excluded", "exact_duplicate", "near_duplicate", "repeated_paragraph", "empty"]


@dataclass(frozen=True)
class PrepareOptions:
    """What decides the content of the shards: equal options give equal bytes."""

    input_bytes: dict[str, int]  # path -> size on disk
    exclude_bytes: dict[str, int]
    text_field: str
    tokenizer: str
    language: str | None  # whose rules found the sentences; None: the tokenizer's own
    drop_duplicates: DropDuplicates
    similarity: float
    drop_paragraphs: bool
    num_shards: int
    seed: int
    compression: str


@dataclass
class DropCount:
    """What was left out for one reason: whole documents, paragraphs of documents that were kept, words of both."""

    documents: int = 0
    paragraphs: int = 0
    words: int = 0


def no_drops() -> dict[Reason, DropCount]:
    """Zero for every reason."""
    return {reason: DropCount() for reason in get_args(Reason)}


@dataclass
class PrepareReport:
    """What was kept and what was left out; beside the shards as corpus.json."""

    options: PrepareOptions
    documents: int = 0
    sentences: int = 0
    words: int = 0
    long_words: int = 0  # whose bytes a character CNN cannot all see
    characters: int = 0  # of all documents, those left out too
    unknown_letters: int = 0  # of them, of scripts that the tokenizer has no rules for
    words_per_input: dict[str, int] = field(default_factory=dict)
    dropped: dict[Reason, DropCount] = field(
        default_factory=lambda: {reason: DropCount() for reason in get_args(Reason)}
    )
    already_done: bool = False  # this call found it finished and did nothing

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "PrepareReport":
        """The report that `asdict` made the values of."""
        dropped = {reason: DropCount(**count) for reason, count in values["dropped"].items()}
        return cls(**{**values, "options": PrepareOptions(**values["options"]), "dropped": dropped})


def json_bytes(values: Any, indent: int | None = 2) -> bytes:
    """JSON as it is written to files.

    A path that is not UTF-8 has surrogates, which become the escapes that JSON has for them.
    """
    return (json.dumps(values, indent=indent, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def read_report(directory: str | Path) -> PrepareReport:
    """The report of a finished corpus directory. ValueError where it is damaged or of another version."""
    path = Path(directory) / REPORT_NAME
    try:
        return PrepareReport.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no report of this version of elmokit ({type(error).__name__}: {error}): "
            "prepare the corpus again, with another output or after removing this one"
        ) from None
