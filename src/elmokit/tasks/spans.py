"""Spans in tag sequences, in the schemes IOB1, IOB2 and BIOES, and their scores as computed by conlleval."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from itertools import chain, pairwise
from typing import Any, NamedTuple

from elmokit.tasks.fitting.report import F1Score

Tags = Sequence[str]
SPAN_PREFIXES = ("B", "I", "E", "S")
FOREIGN_SPAN_TAG = re.compile(r"[LUM]-.|[BIESLUM]_.|[bieslum][-_].")  # of BILOU and BMES; B_PER, b-per
NEARLY_ALL = 0.9  # if at least this share of tags marks spans, the others are taken for mistakes


class Span(NamedTuple):
    """Tokens from `start` to `end` (exclusive), and the type of the span."""

    start: int
    end: int
    type: str


def spans(tags: Tags) -> set[Span]:
    """The spans of a tag sequence as conlleval reads it: IOB1, IOB2 or BIOES, even if inconsistent."""
    result = set()
    start, previous, previous_type = 0, "O", ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, type = tag.partition("-")
        other = type != previous_type
        if previous != "O" and (previous in ("E", "S") or prefix in ("O", "B", "S") or other):
            result.add(Span(start, position, previous_type))
        if prefix != "O" and (previous in ("O", "E", "S") or prefix in ("B", "S") or other):
            start = position
        previous, previous_type = prefix, type
    return result


# --- Scores ----------------------------------------------------------------------------------------------------------


def accuracy(gold: Iterable[Tags], predicted: Iterable[Tags]) -> float:
    """Fraction of tokens with the correct tag over all sentences, from 0 to 1; 0 if there are no tokens."""
    pairs = (zip(*tags, strict=True) for tags in zip(gold, predicted, strict=True))
    correct = [left == right for left, right in chain.from_iterable(pairs)]
    return sum(correct) / max(len(correct), 1)


def typed_scores(gold: Iterable[Set[Any]], predicted: Iterable[Set[Any]]) -> tuple[F1Score, dict[str, F1Score]]:
    """Scores over all answers, and over those of each `type`, in alphabetical order.

    Args:
        gold: The correct answers of each example; a predicted one is correct if an equal one is among them.
        predicted: The predicted answers of each example.
    """
    counts: dict[str, list[int]] = {}  # of correct, predicted and gold answers
    for of_gold, of_predicted in zip(gold, predicted, strict=True):
        for column, answers in enumerate((of_gold & of_predicted, of_predicted, of_gold)):
            for answer in answers:
                counts.setdefault(answer.type, [0, 0, 0])[column] += 1
    total = F1Score.from_counts(*(sum(row[column] for row in counts.values()) for column in range(3)))
    return total, {type: F1Score.from_counts(*row) for type, row in sorted(counts.items())}


def span_scores(gold: Iterable[Tags], predicted: Iterable[Tags]) -> tuple[F1Score, dict[str, F1Score]]:
    """`typed_scores` of the spans of all sentences; correct: start, end and type agree."""
    return typed_scores(map(spans, gold), map(spans, predicted))


# --- Schemes ---------------------------------------------------------------------------------------------------------


def check_scheme(tags: Iterable[str]) -> None:
    """ValueError for a tag of a scheme other than IOB1, IOB2 and BIOES, or of none."""
    if others := [tag for tag in tags if tag != "O" and tag.partition("-")[0] not in SPAN_PREFIXES]:
        raise ValueError(
            f"the tag {others[0]!r} is not read: mark spans as in B-PER, by IOB1, IOB2 or BIOES, others by O"
        )


def span_scheme(sequences: Iterable[Tags]) -> str | None:
    """The scheme of tags that mark spans, "IOB1", "IOB2" or "BIOES"; None for other tags, such as parts of speech.

    Tags without a type (B, I, E and S), where there are no others but O, mark spans whose type is "".

    Raises:
        ValueError: Nearly all tags mark spans, or all but one of them do, and the others are not O.
    """
    sequences = list(sequences)
    tags = Counter(chain.from_iterable(sequences))
    del tags["O"]
    have_no_type = {"B"} <= tags.keys() <= set(SPAN_PREFIXES)
    marking = {
        tag for tag in tags if tag.partition("-")[0] in SPAN_PREFIXES and (tag.partition("-")[2] or have_no_type)
    }
    like_spans = sum(count for tag, count in tags.items() if tag in marking or FOREIGN_SPAN_TAG.match(tag))
    others = tags.keys() - marking
    is_outside = len(others) == 1 and not others <= {*SPAN_PREFIXES}  # another way to write O, such as 0 or _
    if not like_spans or (like_spans < NEARLY_ALL * tags.total() and not (marking and is_outside)):
        return None
    check_scheme(others)
    # The majority decides, so that a few odd tags do not change the scheme of a file.
    prefixes = Counter(tag[0] for tag in tags.elements())
    if 2 * (prefixes["E"] + prefixes["S"]) > prefixes["B"] + prefixes["S"]:
        return "BIOES"
    # Only after a span of the same type must IOB1 mark a beginning; IOB2 and BIOES mark all of them.
    pairs = chain.from_iterable(pairwise(["O", *sequence]) for sequence in sequences)
    begins = Counter(tag[0] for previous, tag in pairs if previous == "O" or previous[1:] != tag[1:])
    return "IOB1" if begins["I"] > begins["B"] else "IOB2"


def span_types(tags: Iterable[str]) -> set[str]:
    """The types of spans that tags of any scheme mark."""
    return {tag.partition("-")[2] for tag in tags if tag != "O"}


def _tag(prefix: str, type: str) -> str:
    return f"{prefix}-{type}" if type else prefix


def to_bioes(tags: Tags) -> list[str]:
    """The same spans as BIOES tags; spans are read as conlleval does, from IOB1, IOB2 or BIOES."""
    return from_spans(spans(tags), len(tags), "BIOES")


def from_spans(spans_to_tag: Iterable[Span], length: int, scheme: str) -> list[str]:
    """The tags of a sentence of `length` words from spans that do not overlap, in "IOB1", "IOB2" or "BIOES"."""
    tags = ["O"] * length
    previous = Span(-1, -1, "")
    for span in sorted(spans_to_tag):
        prefixes = ["I"] * (span.end - span.start)
        if scheme != "IOB1" or (previous.end == span.start and previous.type == span.type):
            prefixes[0] = "B"
        if scheme == "BIOES":
            prefixes[-1] = "E" if len(prefixes) > 1 else "S"
        tags[span.start : span.end] = [_tag(prefix, span.type) for prefix in prefixes]
        previous = span
    return tags
