"""Metrics of predicted labels and tag sequences: accuracy, confusion, and span F1 as computed by conlleval."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple, NoReturn, Protocol

Tags = Sequence[str]
SPAN_PREFIXES = ("B", "I", "E", "S")
FOREIGN_SPAN_TAG = re.compile(r"[LUM]-.")  # of BILOU and BMES
MISSPELLED_SPAN_TAG = re.compile(r"[BIESLUM]_.|[bieslum][-_].")  # B_PER, b-per
NEARLY_ALL = 0.9  # if at least this share of tags marks spans, the others are taken for mistakes


class Span(NamedTuple):
    """Tokens from `start` to `end` (exclusive), and the type of the span."""

    start: int
    end: int
    type: str


@dataclass(frozen=True)
class F1Score:
    """Precision, recall and F1, from 0 to 1, 0 if undefined; and the number of gold answers."""

    precision: float
    recall: float
    f1: float
    support: int

    @classmethod
    def of_counts(cls, correct: int, predicted: int, gold: int) -> F1Score:
        """From the numbers of correct predictions, of predictions, and of gold answers."""
        f1 = 2 * correct / max(predicted + gold, 1)
        return cls(correct / max(predicted, 1), correct / max(gold, 1), f1, gold)


Confusion = dict[str, dict[str, int]]  # counts by correct label (outer key) and predicted label


def check_label(label: object, of: str) -> None:
    """ValueError if a label is missing or not a string; `of` names its example in the message."""
    if label is None:
        raise ValueError(f"{of} has no label")
    if not isinstance(label, str):
        raise ValueError(f"the label of {of} must be a string, not {label!r}")


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


class Typed(Protocol):
    """An answer that has a type, such as a span."""

    @property
    def type(self) -> str: ...


def counts_by_type(gold: Iterable[Set[Typed]], predicted: Iterable[Set[Typed]]) -> dict[str, list[int]]:
    """Number of correct, predicted and gold answers of each type; an answer is correct if an equal one is in `gold`.

    Args:
        gold: The correct answers of each example.
        predicted: The predicted answers of each example.
    """
    counts: dict[str, list[int]] = {}
    for of_gold, of_predicted in zip(gold, predicted, strict=True):
        for column, answers in enumerate((of_gold & of_predicted, of_predicted, of_gold)):
            for answer in answers:
                counts.setdefault(answer.type, [0, 0, 0])[column] += 1
    return counts


def total_score(counts: Mapping[str, Sequence[int]]) -> F1Score:
    """Precision, recall and F1 over all types, from `counts_by_type`."""
    return F1Score.of_counts(*(sum(row[column] for row in counts.values()) for column in range(3)))


def score_of_each(counts: Mapping[str, Sequence[int]]) -> dict[str, F1Score]:
    """Precision, recall and F1 of each type, from `counts_by_type`, in alphabetical order."""
    return {type: F1Score.of_counts(*of_type) for type, of_type in sorted(counts.items())}


def span_score(gold: Iterable[Tags], predicted: Iterable[Tags]) -> F1Score:
    """Precision, recall and F1 over the spans of all sentences; correct: start, end and type agree."""
    return total_score(counts_by_type(map(spans, gold), map(spans, predicted)))


def score_by_type(gold: Iterable[Tags], predicted: Iterable[Tags]) -> dict[str, F1Score]:
    """`span_score` of the spans of each type, by type in alphabetical order."""
    return score_of_each(counts_by_type(map(spans, gold), map(spans, predicted)))


def span_scheme(sequences: Iterable[Tags]) -> str | None:
    """The scheme of tags that mark spans, "IOB1", "IOB2" or "BIOES"; None for other tags, such as parts of speech.

    Tags without a type (B, I, E and S), where there are no others but O, mark spans whose type is "".

    Raises:
        ValueError: Nearly all tags mark spans, but some are of another scheme, or of none.
    """
    sequences = list(sequences)
    # Tags without a type, which conlleval reads too: all spans are then of one type.
    of_one_kind = {"B"} <= set(chain.from_iterable(sequences)) - {"O"} <= set(SPAN_PREFIXES)
    counts: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for tags in sequences:
        for previous, tag in pairwise(["O", *tags]):
            prefix, _, type = tag.partition("-")
            if prefix in SPAN_PREFIXES and (type or of_one_kind):
                counts[prefix] += 1
                # Only after a span of the same type must IOB1 mark a beginning; IOB2 and BIOES mark all of them.
                counts[f"{prefix} not after its type"] += previous == "O" or previous.partition("-")[2] != type
            elif tag != "O":
                others[tag] += 1
    marking = sum(counts[prefix] for prefix in SPAN_PREFIXES)
    foreign = Counter(
        {tag: others[tag] for tag in others if FOREIGN_SPAN_TAG.match(tag) or MISSPELLED_SPAN_TAG.match(tag)}
    )
    like_spans = marking + foreign.total()
    if not like_spans or like_spans < NEARLY_ALL * (marking + others.total() - others["o"]):  # o: a misspelled O
        return None
    if others:
        _raise_for_other_tags(foreign or others)
    # The majority decides, so that a few odd tags do not change the scheme of a file.
    if 2 * (counts["E"] + counts["S"]) > counts["B"] + counts["S"]:
        return "BIOES"
    return "IOB1" if counts["I not after its type"] > counts["B not after its type"] else "IOB2"


def check_marks_spans(tags: Tags) -> None:
    """ValueError for a tag of a scheme other than IOB1, IOB2 and BIOES, or of none."""
    if others := [tag for tag in tags if tag != "O" and tag.partition("-")[0] not in SPAN_PREFIXES]:
        _raise_for_other_tags(Counter(others))


def _raise_for_other_tags(others: Counter[str]) -> NoReturn:
    ((tag, _),) = others.most_common(1)
    if tag == "o":
        raise ValueError("the tag 'o' is not read: write it as O")
    if MISSPELLED_SPAN_TAG.match(tag):
        raise ValueError(f"tags like {tag} are not read: write it as {tag[0].upper()}-{tag[2:]}")
    if FOREIGN_SPAN_TAG.match(tag):
        scheme = "BMES" if tag[0] == "M" else "BILOU"
        raise ValueError(f"tags like {tag} are {scheme}, which is not read: convert them to BIOES")
    raise ValueError(f"the tag {tag!r} marks no span, as nearly all others do: it must be O, or as in B-PER")


def span_types(tags: Iterable[str]) -> set[str]:
    """The types of spans that tags of any scheme mark."""
    return {tag.partition("-")[2] for tag in tags if tag != "O"}


def _tag(prefix: str, type: str) -> str:
    return f"{prefix}-{type}" if type else prefix


def to_bioes(tags: Tags) -> list[str]:
    """The same spans as BIOES tags; spans are read as conlleval does, from IOB1, IOB2 or BIOES."""
    converted = ["O"] * len(tags)
    for span in spans(tags):
        inside = ["I"] * (span.end - span.start)
        inside[-1] = "E"
        inside[0] = "B" if len(inside) > 1 else "S"
        converted[span.start : span.end] = [_tag(prefix, span.type) for prefix in inside]
    return converted


def from_spans(spans_to_tag: Iterable[Span], length: int, scheme: str) -> list[str]:
    """The tags of a sentence of `length` words from spans that do not overlap, in "IOB1", "IOB2" or "BIOES"."""
    tags = ["O"] * length
    previous = Span(-1, -1, "")
    for span in sorted(spans_to_tag):
        begins = scheme != "IOB1" or (previous.end == span.start and previous.type == span.type)
        tags[span.start : span.end] = [_tag("I", span.type)] * (span.end - span.start)
        if begins:
            tags[span.start] = _tag("B", span.type)
        previous = span
    return to_bioes(tags) if scheme == "BIOES" else tags
