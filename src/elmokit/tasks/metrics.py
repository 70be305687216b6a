"""Metrics of predicted tag sequences: accuracy, and span F1 as computed by conlleval."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

Tags = Sequence[str]
SPAN_PREFIXES = ("B", "I", "E", "S")


class Span(NamedTuple):
    """Tokens from `start` to `end` (exclusive), and the type of the span."""

    start: int
    end: int
    type: str


class SpanScore(NamedTuple):
    """Precision, recall and F1 of spans, from 0 to 1; 0 if undefined."""

    precision: float
    recall: float
    f1: float


def accuracy(gold: Iterable[Tags], predicted: Iterable[Tags]) -> float:
    """Fraction of tokens with the correct tag over all sentences, from 0 to 1; 0 if there are no tokens."""
    correct, total = 0, 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        correct += sum(left == right for left, right in zip(gold_tags, predicted_tags, strict=True))
        total += len(gold_tags)
    return correct / max(total, 1)


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


def span_score(gold: Iterable[Tags], predicted: Iterable[Tags]) -> SpanScore:
    """Precision, recall and F1 over the spans of all sentences; a span is correct if start, end and type agree."""
    correct, num_predicted, num_gold = 0, 0, 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_spans, predicted_spans = spans(gold_tags), spans(predicted_tags)
        correct += len(gold_spans & predicted_spans)
        num_predicted += len(predicted_spans)
        num_gold += len(gold_spans)
    f1 = 2 * correct / max(num_predicted + num_gold, 1)
    return SpanScore(correct / max(num_predicted, 1), correct / max(num_gold, 1), f1)


def span_scheme(sequences: Iterable[Tags]) -> str | None:
    """The scheme of tags that mark spans, "IOB1", "IOB2" or "BIOES"; None for other tags, such as parts of speech."""
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


def to_bioes(tags: Tags) -> list[str]:
    """The same spans as BIOES tags; spans are read as conlleval does, from IOB1, IOB2 or BIOES."""
    converted = ["O"] * len(tags)
    for span in spans(tags):
        inside = ["I"] * (span.end - span.start)
        inside[-1] = "E"
        inside[0] = "B" if len(inside) > 1 else "S"
        converted[span.start : span.end] = [f"{prefix}-{span.type}" for prefix in inside]
    return converted


def from_spans(spans_to_tag: Iterable[Span], length: int, scheme: str) -> list[str]:
    """Spans that do not overlap as the tags of a sentence, in the scheme "IOB1", "IOB2" or "BIOES"."""
    tags = ["O"] * length
    previous = Span(-1, -1, "")
    for span in sorted(spans_to_tag):
        begins = scheme != "IOB1" or (previous.end == span.start and previous.type == span.type)
        tags[span.start : span.end] = [f"I-{span.type}"] * (span.end - span.start)
        if begins:
            tags[span.start] = f"B-{span.type}"
        previous = span
    return to_bioes(tags) if scheme == "BIOES" else tags


def score_by_type(gold: Sequence[Tags], predicted: Sequence[Tags]) -> dict[str, SpanScore]:
    """`span_score` of the spans of each type, by type in alphabetical order."""
    counts: dict[str, list[int]] = {}
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_spans, predicted_spans = spans(gold_tags), spans(predicted_tags)
        for column, column_spans in enumerate((gold_spans & predicted_spans, predicted_spans, gold_spans)):
            for span in column_spans:
                counts.setdefault(span.type, [0, 0, 0])[column] += 1
    return {
        type: SpanScore(
            correct / max(num_predicted, 1), correct / max(num_gold, 1), 2 * correct / max(num_predicted + num_gold, 1)
        )
        for type, (correct, num_predicted, num_gold) in sorted(counts.items())
    }
