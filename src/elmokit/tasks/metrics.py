"""Metrics of predicted labels and tag sequences: accuracy, confusion, and span F1 as computed by conlleval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

Tags = Sequence[str]
SPAN_PREFIXES = ("B", "I", "E", "S")


class Span(NamedTuple):
    """Tokens from `start` to `end` (exclusive), and the type of the span."""

    start: int
    end: int
    type: str


@dataclass(frozen=True)
class F1Score:
    """Precision, recall and F1, from 0 to 1, 0 if undefined; and the number of correct answers that there are."""

    precision: float
    recall: float
    f1: float
    support: int

    @classmethod
    def of_counts(cls, correct: int, predicted: int, gold: int) -> F1Score:
        """From the number of answers that are predicted correctly, that are predicted, and that there are."""
        f1 = 2 * correct / max(predicted + gold, 1)
        return cls(correct / max(predicted, 1), correct / max(gold, 1), f1, gold)


Confusion = dict[str, dict[str, int]]  # counts by correct label (outer key) and predicted label


def confusion_counts(gold: Iterable[str], predicted: Iterable[str]) -> Confusion:
    """Count pairs of labels: correct labels in alphabetical order, for each the predicted ones, most frequent first."""
    counts: dict[str, Counter[str]] = {}
    for correct_label, predicted_label in zip(gold, predicted, strict=True):
        counts.setdefault(correct_label, Counter())[predicted_label] += 1
    return {label: dict(row.most_common()) for label, row in sorted(counts.items())}


def score_by_label(confusion: Mapping[str, Mapping[str, int]]) -> dict[str, F1Score]:
    """Precision, recall and F1 of each label that is correct or predicted somewhere, in alphabetical order."""
    predicted: Counter[str] = Counter()
    for row in confusion.values():
        predicted.update(row)
    return {
        label: F1Score.of_counts(
            confusion.get(label, {}).get(label, 0), predicted[label], sum(confusion.get(label, {}).values())
        )
        for label in sorted(confusion.keys() | predicted.keys())
    }


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


def _span_counts(gold: Iterable[Tags], predicted: Iterable[Tags]) -> dict[str, list[int]]:
    """Number of correct, predicted and gold spans of each type; correct: start, end and type agree."""
    counts: dict[str, list[int]] = {}
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_spans, predicted_spans = spans(gold_tags), spans(predicted_tags)
        for column, of_column in enumerate((gold_spans & predicted_spans, predicted_spans, gold_spans)):
            for span in of_column:
                counts.setdefault(span.type, [0, 0, 0])[column] += 1
    return counts


def span_score(gold: Iterable[Tags], predicted: Iterable[Tags]) -> F1Score:
    """Precision, recall and F1 over the spans of all sentences."""
    counts = _span_counts(gold, predicted).values()
    return F1Score.of_counts(*(sum(row[column] for row in counts) for column in range(3)))


def score_by_type(gold: Iterable[Tags], predicted: Iterable[Tags]) -> dict[str, F1Score]:
    """`span_score` of the spans of each type, by type in alphabetical order."""
    return {type: F1Score.of_counts(*counts) for type, counts in sorted(_span_counts(gold, predicted).items())}


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


def span_types(tags: Iterable[str]) -> set[str]:
    """The types of spans that tags of any scheme mark."""
    return {tag.partition("-")[2] for tag in tags if tag != "O"}


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
