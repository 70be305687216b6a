"""Tags that depend on neighbours, the network by its formulas, schemes of spans, files."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import log_softmax
from task_oracles import GivenWords, TaggingOracle, random_network, random_words, sentences_of

from elmokit.data.readers import TaggedFile, TaggedSentence
from elmokit.tasks import FitConfig, WordsConfig
from elmokit.tasks.fitting import fit
from elmokit.tasks.fitting.model import load_task_model, predict_file
from elmokit.tasks.tagging import (
    Span,
    Tagging,
    TaggingBatch,
    TaggingConfig,
    TaggingNetwork,
    TaggingTask,
    check_scheme,
    from_spans,
    span_scheme,
    span_scores,
    spans,
    to_bioes,
)

# The tag of "x" depends on the word before it: A after an upper-case word, else B.
WORDS = ["Alpha", "Beta", "gamma", "delta", "x"]


def make_sentences(count: int, seed: int) -> list[TaggedSentence]:
    random = np.random.default_rng(seed)
    sentences = []
    for _ in range(count):
        words = tuple(random.choice(WORDS, size=random.integers(1, 9)).tolist())
        before = ("", *words)
        tags = tuple(
            ("A" if before[i][:1].isupper() else "B")
            if word == "x"
            else ("UP" if word[0].isupper() else "LOW")
            for i, word in enumerate(words)
        )
        sentences.append(TaggedSentence(words, tags))
    return sentences


TRAIN = make_sentences(120, 1)
DEV = make_sentences(30, 2)
QUICK = FitConfig(max_epochs=12, batch_size=16, learning_rate=1e-2, device="cpu")
SMALL = TaggingConfig(hidden_dim=16, dropout=0.1)
WITHOUT_ELMO = WordsConfig(elmo="none", word_dim=16, word_dropout=0.1)


def test_network_and_loss_equal_the_formulas() -> None:
    network = random_network(
        TaggingNetwork, TaggingConfig(hidden_dim=4, num_layers=2), GivenWords(), 3, None
    )
    words = random_words([4, 1, 3])
    tags = torch.tensor([[0, 1, 2, 1], [2, 0, 0, 0], [1, -1, 0, 0]])
    batch, oracle = TaggingBatch(words, tags), TaggingOracle(network)  # type: ignore[arg-type]
    losses: list[float] = []
    for row, sentence, numbers in zip(
        network(batch), sentences_of(words), tags.tolist(), strict=True
    ):
        expected = oracle.scores(sentence, num_layers=2)
        np.testing.assert_allclose(row[: len(expected)], expected, rtol=1e-9)
        losses += [
            -scores[tag]
            for scores, tag in zip(log_softmax(expected), numbers, strict=False)
            if tag >= 0
        ]
    assert network.loss(batch).item() == pytest.approx(np.mean(losses))


@pytest.mark.parametrize("scheme", ["IOB2", "BIOES"])
def test_predictions_are_in_the_scheme_of_the_training_set(scheme: str) -> None:
    tags = {
        "IOB2": ("B-X", "I-X", "B-X", "O", "B-Y"),
        "BIOES": ("B-X", "E-X", "S-X", "O", "S-Y"),
    }[scheme]
    data = [TaggedSentence(("a", "b", "c", "d", "e"), tags)]
    task = TaggingTask(labels=TaggingTask().learn(data))
    numbers = [task.labels["tags"].index(tag) for tag in to_bioes(tags)]
    (found,) = task.predictions(data, [(numbers, [0.9, 0.8, 0.7, 0.6, 0.5])])
    assert found.tags == tags
    assert task.score(data, [found]).values["f1"] == 1.0
    assert [(span.start, span.end, span.type) for span in found.spans] == sorted(spans(tags))
    assert [span.score for span in found.spans] == [0.8, 0.7, 0.5]  # the lowest of each
    assert [(span.text, span.start_char, span.end_char) for span in found.spans] == [
        ("a b", 0, 3),
        ("c", 4, 5),
        ("e", 8, 9),
    ]
    of_text = TaggedSentence(("a", "b", "c", "d", "e"), text="a b,c (d)e")
    (found,) = task.predictions([of_text], [(numbers, [1.0] * 5)])
    assert [(span.text, span.start_char) for span in found.spans] == [
        ("a b", 0),
        ("c", 4),
        ("e", 9),
    ]


# --- Files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", ["softmax", "crf"])
def test_a_tagger_learns_tags_that_depend_on_the_word_before_from_files(
    decoder: Any, tmp_path: Path
) -> None:
    files = [tmp_path / f"{name}.txt" for name in ("train", "dev")]
    for file, sentences in zip(files, (TRAIN, DEV), strict=True):
        blocks = ("".join(map("{} {}\n".format, each.words, each.tags)) for each in sentences)
        file.write_text("\n".join(blocks))
    task = TaggingTask(replace(SMALL, decoder=decoder))
    _, report = fit(task, *files, words=WITHOUT_ELMO, config=QUICK, output=tmp_path / "tagger")
    assert report.dev["accuracy"] > 0.95
    loaded = load_task_model(tmp_path / "tagger", device="cpu")
    assert predict_file(loaded, files[1], tmp_path / "out.txt").examples == len(DEV)
    predicted = list(TaggedFile.of(tmp_path / "out.txt").sentences())
    assert [sentence.words for sentence in predicted] == [sentence.words for sentence in DEV]
    tags = [[tag for sentence in each for tag in sentence.tags] for each in (DEV, predicted)]
    right = np.mean([gold == found for gold, found in zip(*tags, strict=True)])
    assert right == pytest.approx(report.dev["accuracy"])


@pytest.mark.parametrize("words", [["王", "芳", "在", "广", "州"], ["王芳", "在", "广州"]])
def test_text_is_split_into_characters_where_the_examples_are(
    words: list[str], tmp_path: Path
) -> None:
    sentences = [TaggedSentence(tuple(words), ("O",) * len(words))] * 4
    once = FitConfig(max_epochs=1, device="cpu")
    given = {"model": "zh-small", "config": once, "output": tmp_path / "fitted"}
    fit(TaggingTask(SMALL), sentences, sentences, **given)
    (found,) = load_task_model(tmp_path / "fitted").predict(["王芳在广州"])
    assert list(found.words) == words


def test_accuracy_is_that_of_seqeval_in_any_scheme_of_the_file() -> None:
    """As when a training set in IOB2 comes with a test set in IOB1."""
    task = TaggingTask(labels={"tags": ["B-X", "E-X", "O", "S-X"], "scheme": "IOB2"})
    words = ("Ann", "Lee", "sings")
    seqeval = pytest.importorskip("seqeval.metrics")
    for gold, same in (("B-X I-X O", "B-X I-X O"), ("I-X I-X B-X", "B-X I-X B-X")):
        for predicted in ("B-X O O", "B-X I-X B-X"):
            tagging = Tagging(words, tuple(predicted.split()), (1.0,) * 3)
            found = task.score([TaggedSentence(words, tuple(gold.split()))], [tagging])
            assert found.values["accuracy"] == seqeval.accuracy_score(
                [same.split()], [predicted.split()]
            )


@pytest.mark.parametrize(
    "tags, expected",
    [
        ("O O", []),
        ("B-X I-X O B-X", [(0, 2, "X"), (3, 4, "X")]),
        ("B-X B-X I-X", [(0, 1, "X"), (1, 3, "X")]),
        ("I-X I-X B-X I-Y", [(0, 2, "X"), (2, 3, "X"), (3, 4, "Y")]),  # IOB1
        ("B-X I-Y I-Y", [(0, 1, "X"), (1, 3, "Y")]),  # inconsistent: a new type starts a span
        ("S-X B-X I-X E-X S-Y", [(0, 1, "X"), (1, 4, "X"), (4, 5, "Y")]),  # BIOES
        ("B-X M-X E-X B-Y E-Y", [(0, 3, "X"), (3, 5, "Y")]),  # BMES
        ("E-X E-X I-X", [(0, 1, "X"), (1, 2, "X"), (2, 3, "X")]),
        ("B-C-A I-C-A", [(0, 2, "C-A")]),
    ],
)
def test_spans_equal_those_of_conlleval(tags, expected):
    assert spans(tags.split()) == {Span(*span) for span in expected}


@pytest.mark.parametrize(
    "tags, scheme",
    [
        ("B-X I-X O", "IOB2"),
        ("O I-X I-X B-X", "IOB2"),
        ("B-X I-Y", "IOB2"),
        ("I-X O I-Y", "IOB2"),
        # the last two: spans of one kind
        ("B-X E-X S-X", "BIOES"),
        ("B I O B", "IOB2"),
        ("B E S O", "BIOES"),
        ("NOUN VERB", None),
        ("O O", None),
        ("B-X M-X E-X S-X", "BMES"),
        ("B M E S", "BMES"),  # characters of words
        # parts of speech in PROIEL's and in Perseus' treebanks
        ("S- V- I- N-", None),
        ("l-s---fn- n-s---fn-", None),
    ],
)
def test_span_scheme_recognizes_iob1_iob2_bioes_and_bmes(tags, scheme):
    assert span_scheme([tags.split()]) == scheme


@pytest.mark.parametrize(
    "tags",
    [
        "B-PER I-PER L-PER O U-LOC O U-LOC U-LOC",
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
    tags = [f"{prefix}-{type}" for prefix in prefixes if prefix != "O" for type in ("X", "Y")] + [
        "O"
    ]
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


@pytest.mark.parametrize("scheme", ["IOB2", "BIOES", "BMES"])
def test_from_spans_round_trips_in_every_scheme(scheme: str) -> None:
    draw = random.Random(1)
    for _ in range(200):
        tags = random_tags(draw)
        converted = from_spans(spans(tags), len(tags), scheme)
        assert spans(converted) == spans(tags)
        assert spans(to_bioes(tags)) == spans(tags)
        assert span_scheme([converted]) in (scheme, "BIOES" if scheme == "BMES" else None, None)
