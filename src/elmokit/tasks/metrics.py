"""Scores of predicted tag sequences: accuracy, and F1 of spans as conlleval counts them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

Tags = Sequence[str]
SPAN_PREFIXES = ("B", "I", "E", "S")


class Span(NamedTuple):
    """Tokens `start` up to, without, `end`."""

    start: int
    end: int
    type: str


class SpanScore(NamedTuple):
    """Precision, recall and F1 of spans, in 0..1; a ratio of nothing to nothing is 0."""

    precision: float
    recall: float
    f1: float


def accuracy(gold: Iterable[Tags], predicted: Iterable[Tags]) -> float:
    """Share of tokens with the right tag, in 0..1, over all sentences; 0 where there is no token."""
    correct, total = 0, 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        correct += sum(left == right for left, right in zip(gold_tags, predicted_tags, strict=True))
        total += len(gold_tags)
    return correct / max(total, 1)


def spans(tags: Tags) -> set[Span]:
    """The spans that a tag sequence marks, read as conlleval does: IOB1, IOB2 and BIOES alike, broken ones too."""
    found = set()
    start, previous, previous_type = 0, "O", ""
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, type = tag.partition("-")
        other = type != previous_type
        if previous != "O" and (previous in ("E", "S") or prefix in ("O", "B", "S") or other):
            found.add(Span(start, position, previous_type))
        if prefix != "O" and (previous in ("O", "E", "S") or prefix in ("B", "S") or other):
            start = position
        previous, previous_type = prefix, type
    return found


def span_score(gold: Iterable[Tags], predicted: Iterable[Tags]) -> SpanScore:
    """Precision, recall and F1 of the spans of all sentences together; a span counts if start, end and type agree."""
    right, marked, true = 0, 0, 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_spans, predicted_spans = spans(gold_tags), spans(predicted_tags)
        right += len(gold_spans & predicted_spans)
        marked += len(predicted_spans)
        true += len(gold_spans)
    return SpanScore(right / max(marked, 1), right / max(true, 1), 2 * right / max(marked + true, 1))


def span_scheme(sequences: Iterable[Tags]) -> str | None:
    """ "IOB1", "IOB2" or "BIOES" where the tags mark spans in that scheme, None where they do not (parts of speech)."""
    prefixes, opens_with_inside = set(), False
    for tags in sequences:
        for previous, tag in pairwise(["O", *tags]):
            prefix, dash, type = tag.partition("-")
            if tag != "O" and not (prefix in SPAN_PREFIXES and dash):
                return None
            prefixes.add(prefix)
            opens_with_inside |= prefix == "I" and (previous == "O" or previous.partition("-")[2] != type)
    if not prefixes - {"O"}:
        return None
    if prefixes & {"E", "S"}:
        return "BIOES"
    return "IOB1" if opens_with_inside else "IOB2"
