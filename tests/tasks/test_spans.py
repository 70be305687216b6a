"""Scores of tag sequences, against hand-made cases and seqeval."""

import random

import pytest

from elmokit.tasks.spans import Span, accuracy, check_scheme, from_spans, span_scheme, span_scores, spans, to_bioes


@pytest.mark.parametrize(
    "tags, expected",
    [
        ("O O", []),
        ("B-X I-X O B-X", [(0, 2, "X"), (3, 4, "X")]),
        ("I-X I-X B-X I-Y", [(0, 2, "X"), (2, 3, "X"), (3, 4, "Y")]),  # IOB1
        ("B-X B-X I-X", [(0, 1, "X"), (1, 3, "X")]),
        ("B-X I-Y I-Y", [(0, 1, "X"), (1, 3, "Y")]),  # inconsistent: a new type starts a span
        ("S-X B-X I-X E-X S-Y", [(0, 1, "X"), (1, 4, "X"), (4, 5, "Y")]),  # BIOES
        ("E-X E-X I-X", [(0, 1, "X"), (1, 2, "X"), (2, 3, "X")]),
        ("B-C-A I-C-A", [(0, 2, "C-A")]),
    ],
)
def test_spans_equal_those_of_conlleval(tags, expected):
    assert spans(tags.split()) == {Span(*span) for span in expected}


def test_accuracy_counts_tokens() -> None:
    assert accuracy([["A", "B"], ["A", "A"]], [["A", "A"], ["A", "A"]]) == 3 / 4


@pytest.mark.parametrize(
    "tags, scheme",
    [
        ("NOUN VERB", None),
        ("O O", None),
        ("B-X I-X O", "IOB2"),
        ("O I-X I-X B-X", "IOB1"),
        ("B-X I-Y", "IOB2"),
        ("I-X O I-Y", "IOB1"),
        ("S- V- I- N-", None),  # parts of speech in PROIEL's treebanks
        ("B-X E-X S-X", "BIOES"),
        ("B-X S", None),
        ("B-X N V N", None),
        ("B I O B", "IOB2"),  # spans of one kind
        ("B E S O", "BIOES"),
        ("B M E S", None),  # segments of words
    ],
)
def test_span_scheme_recognizes_iob1_iob2_and_bioes(tags, scheme):
    assert span_scheme([tags.split()]) == scheme


@pytest.mark.parametrize("scheme, odd", [("IOB2", "O I-X"), ("IOB1", "O B-X"), ("IOB2", "S-X"), ("BIOES", "I-X O")])
def test_span_scheme_is_kept_when_one_sentence_has_another(scheme: str, odd: str) -> None:
    tags = {"IOB1": "I-X I-X O I-Y", "IOB2": "B-X I-X O B-Y", "BIOES": "B-X E-X O S-Y"}[scheme]
    assert span_scheme([*[tags.split()] * 100, odd.split()]) == scheme


@pytest.mark.parametrize(
    "tags",
    [
        "B-PER I-PER L-PER O U-LOC O U-LOC U-LOC",
        "B-PER M-PER E-PER O",
        "B_PER I_PER O B_LOC",
        "b-per i-per O b-loc b-loc",
        "B-PER E-PER O S-LOC " * 10 + "X",
        "B-PER I-PER 0 0 0 B-LOC 0 0",
        "B-PER I-PER _ _ _ O O",
    ],
)
def test_tags_of_other_schemes_are_refused(tags: str) -> None:
    for check in (check_scheme, lambda tags: span_scheme([tags])):
        with pytest.raises(ValueError, match="IOB2"):
            check(tags.split())


def random_tags(draw: random.Random, prefixes: str = "BIOES") -> list[str]:
    """Any sequence of tags, valid or not."""
    tags = [f"{prefix}-{type}" for prefix in prefixes if prefix != "O" for type in ("X", "Y")] + ["O"]
    return [draw.choice(tags) for _ in range(draw.randint(1, 12))]


@pytest.mark.parametrize("prefixes", ["BIO", "BIOES"])
def test_span_score_equals_seqeval_on_any_sequence(prefixes: str) -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    draw = random.Random(0)
    gold = [random_tags(draw, prefixes) for _ in range(300)]
    predicted = [[draw.choice(random_tags(draw, prefixes)) for _ in tags] for tags in gold]
    found, by_type = span_scores(gold, predicted)
    assert found.precision == pytest.approx(seqeval.precision_score(gold, predicted))
    assert found.recall == pytest.approx(seqeval.recall_score(gold, predicted))
    assert found.f1 == pytest.approx(seqeval.f1_score(gold, predicted))
    report = seqeval.classification_report(gold, predicted, output_dict=True)
    assert {type: score.f1 for type, score in by_type.items()} == pytest.approx(
        {type: report[type]["f1-score"] for type in ("X", "Y")}
    )


def test_spans_of_one_kind_have_tags_without_a_type() -> None:
    tags = ["B", "I", "O", "B"]
    assert to_bioes(tags) == ["B", "E", "O", "S"]
    assert from_spans(spans(tags), 4, "IOB2") == tags
    assert span_scores([tags], [["B", "O", "O", "B"]])[0].f1 == 0.5
    f1 = pytest.importorskip("seqeval.metrics").f1_score
    assert f1([tags], [["B", "O", "O", "B"]]) == pytest.approx(0.5)


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES"])
def test_from_spans_round_trips_in_every_scheme(scheme: str) -> None:
    draw = random.Random(1)
    for _ in range(200):
        tags = random_tags(draw)
        converted = from_spans(spans(tags), len(tags), scheme)
        assert spans(converted) == spans(tags)
        assert spans(to_bioes(tags)) == spans(tags)
        assert span_scheme([converted]) in ((scheme, "IOB2", None) if scheme == "IOB1" else (scheme, None))
