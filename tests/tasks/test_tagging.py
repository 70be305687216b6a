"""Taggers: tags that depend on neighbours, the network by its formulas, schemes of spans, files in and out."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import log_softmax
from task_oracles import GivenWords, TaggingOracle, random_network, random_words, sentences_of

from elmokit.data.readers import Layout, TaggedSentence, read_tagged
from elmokit.tasks.config import FitConfig, WordsConfig
from elmokit.tasks.fitting.fit import fit
from elmokit.tasks.fitting.model import load_task_model, predict_file
from elmokit.tasks.spans import spans
from elmokit.tasks.tagging import Tagging, TaggingBatch, TaggingConfig, TaggingNetwork, TaggingTask

# The tag of "x" depends on the word before it: A after an upper-case word, else B.
WORDS = ["Alpha", "Beta", "gamma", "delta", "x"]


def make_sentences(count: int, seed: int) -> list[TaggedSentence]:
    random = np.random.default_rng(seed)
    sentences = []
    for _ in range(count):
        words = tuple(random.choice(WORDS, size=random.integers(1, 9)).tolist())
        before = ("", *words)
        tags = tuple(
            ("A" if before[i][:1].isupper() else "B") if word == "x" else ("UP" if word[0].isupper() else "LOW")
            for i, word in enumerate(words)
        )
        sentences.append(TaggedSentence(words, tags))
    return sentences


TRAIN, DEV = make_sentences(120, 1), make_sentences(30, 2)
QUICK = FitConfig(max_epochs=12, batch_size=16, learning_rate=1e-2, device="cpu")
SMALL = TaggingConfig(hidden_dim=16, dropout=0.1)
WITHOUT_ELMO = WordsConfig(elmo="none", word_dim=16, word_dropout=0.1)


@pytest.mark.parametrize("decoder", ["softmax", "crf"])
def test_tagger_learns_tags_that_depend_on_the_word_before(decoder: str) -> None:
    task = TaggingTask(replace(SMALL, decoder=decoder))
    _, report = fit(task, TRAIN, DEV, DEV[:10], words=WITHOUT_ELMO, config=QUICK)
    assert report.dev["accuracy"] > 0.95
    assert report.test is not None and report.confusion is not None
    assert sum(sum(row.values()) for row in report.confusion.values()) == sum(len(s.words) for s in DEV[:10])


def test_network_and_loss_equal_the_formulas() -> None:
    network = random_network(TaggingNetwork, TaggingConfig(hidden_dim=4, num_layers=2), GivenWords(), 3, None)
    words, tags = random_words([4, 1, 3]), torch.tensor([[0, 1, 2, 1], [2, 0, 0, 0], [1, -1, 0, 0]])
    batch, oracle = TaggingBatch(words, tags), TaggingOracle(network)  # type: ignore[arg-type]
    losses: list[float] = []
    for row, sentence, numbers in zip(network(batch), sentences_of(words), tags.tolist(), strict=True):
        expected = oracle.scores(sentence, num_layers=2)
        np.testing.assert_allclose(row[: len(expected)], expected, rtol=1e-9)
        losses += [-scores[tag] for scores, tag in zip(log_softmax(expected), numbers, strict=False) if tag >= 0]
    assert network.loss(batch).item() == pytest.approx(np.mean(losses))


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES"])
def test_predictions_are_in_the_scheme_of_the_training_set(scheme: str) -> None:
    tags = {
        "IOB1": ("I-X", "I-X", "B-X", "O", "I-Y"),
        "IOB2": ("B-X", "I-X", "B-X", "O", "B-Y"),
        "BIOES": ("B-X", "E-X", "S-X", "O", "S-Y"),
    }[scheme]
    data = [TaggedSentence(("a", "b", "c", "d", "e"), tags)]
    config = replace(QUICK, max_epochs=40, patience=40, halve_after=40)
    words = replace(WITHOUT_ELMO, rare_word_dropout=0.0)
    model, report = fit(TaggingTask(SMALL), data * 4, data, words=words, config=config)
    assert report.dev["f1"] == 1.0
    (found,) = model.predict([["a", "b", "c", "d", "e"]])
    assert found.tags == tags
    assert {(span.start, span.end, span.type) for span in found.spans} == spans(tags)
    assert all(0 < span.score <= 1 for span in found.spans)


def test_accuracy_does_not_depend_on_the_scheme_of_the_file() -> None:
    """As when a training set in IOB2 comes with a test set in IOB1."""
    task = TaggingTask(labels={"tags": ["B-X", "E-X", "O", "S-X"], "scheme": "IOB2"})
    gold = [TaggedSentence(("a", "b", "c"), ("I-X", "I-X", "B-X"))]
    predicted = [Tagging(("a", "b", "c"), ("B-X", "I-X", "B-X"), (1.0, 1.0, 1.0))]
    assert task.score(gold, predicted)["accuracy"] == task.score(gold, predicted)["f1"] == 1.0


def test_crf_decodes_only_valid_sequences() -> None:
    """Whatever the scores: those of an output layer of large random weights are best for sequences that are not."""
    random = np.random.default_rng(0)
    noise = [
        TaggedSentence(tuple(random.choice(WORDS, size=6).tolist()), ("B-X", "I-X", "O", "B-Y", "I-Y", "O"))
        for _ in range(20)
    ]
    model, _ = fit(TaggingTask(SMALL), noise, noise, words=WITHOUT_ELMO, config=replace(QUICK, max_epochs=1))
    torch.nn.init.normal_(model.network.output.weight, std=5, generator=torch.Generator().manual_seed(0))
    batch = model.example_set(noise).batch(np.arange(20), torch.device("cpu"))

    def is_valid(numbers: list[int]) -> bool:
        tags = [model.task.labels["tags"][number] for number in numbers]
        for before, tag in zip(["O", *tags], [*tags, "O"], strict=True):
            opened = before[:2] in ("B-", "I-")
            if (tag[:2] in ("I-", "E-")) != opened or (opened and tag[2:] != before[2:]):
                return False
        return True

    with torch.no_grad():
        best = model.network.forward(batch).argmax(dim=-1).tolist()
    assert not any(is_valid(tags) for tags in best)
    assert all(is_valid(tags) for tags, _ in model.network.decode(batch))


# --- Files -----------------------------------------------------------------------------------------------------------


def write_columns(path: Path, sentences: list[TaggedSentence]) -> None:
    text = "-DOCSTART- -X-\n\n" + "\n".join(
        "".join(f"{word} {tag}\n" for word, tag in zip(s.words, s.tags, strict=True)) for s in sentences
    )
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def write_conllu(path: Path, sentences: list[TaggedSentence]) -> None:
    lines = []
    for sentence in sentences:
        lines.append("# a comment")
        for number, (word, tag) in enumerate(zip(sentence.words, sentence.tags, strict=True), start=1):
            lines.append("\t".join([str(number), word, "_", "_", tag, *"_____"]))
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize("write, suffix, column", [(write_columns, ".txt.gz", None), (write_conllu, ".conllu", "xpos")])
def test_fit_and_predict_file_round_trip(
    write: Callable[[Path, list[TaggedSentence]], None], suffix: str, column: str | None, tmp_path: Path
) -> None:
    files = [tmp_path / f"{name}{suffix}" for name in ("train", "dev")]
    for file, sentences in zip(files, (TRAIN, DEV), strict=True):
        write(file, sentences)
    task = TaggingTask(replace(SMALL, tag_column=column))
    _, report = fit(task, *files, words=WITHOUT_ELMO, config=QUICK, output=tmp_path / "tagger")
    loaded = load_task_model(tmp_path / "tagger", device="cpu")
    assert predict_file(loaded, files[1], tmp_path / f"out{suffix}").examples == len(DEV)
    layout = Layout.of(files[1], None, 0, column)
    predicted = list(read_tagged(tmp_path / f"out{suffix}", layout))
    assert [sentence.words for sentence in predicted] == [sentence.words for sentence in DEV]
    right = sum(a == b for s, p in zip(DEV, predicted, strict=True) for a, b in zip(s.tags, p.tags, strict=True))
    assert right / sum(len(s.words) for s in DEV) == pytest.approx(report.dev["accuracy"])


def test_accuracy_is_that_of_seqeval() -> None:
    gold, predicted = ["B-PER", "I-PER", "O"], ["B-PER", "O", "O"]
    task = TaggingTask(labels={"tags": ["B-PER", "E-PER", "O", "S-PER"], "scheme": "IOB2"})
    words = ("Ann", "Lee", "sings")
    found = task.score([TaggedSentence(words, tuple(gold))], [Tagging(words, tuple(predicted), (1.0,) * 3)])
    assert found["accuracy"] == pytest.approx(2 / 3)
    seqeval = pytest.importorskip("seqeval.metrics")
    assert found["accuracy"] == seqeval.accuracy_score([gold], [predicted])


def test_a_tagger_of_any_column_predicts_files_of_words_alone(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("Dogs\nbark\n")
    conllu = tmp_path / "words.conllu"
    conllu.write_text("".join(f"{n}\t{word}" + "\t_" * 8 + "\n" for n, word in ((1, "Dogs"), (2, "bark"))))
    numbered = TaggingTask(TaggingConfig(tag_column="3"), {"tags": ["NNS", "VBP"], "scheme": None})
    (sentence,) = numbered.read(conllu, with_answers=False)
    numbered.write([Tagging(sentence.words, ("NNS", "VBP"), (1.0, 1.0))], tmp_path / "out.conllu", conllu)
    assert [line.split("\t")[3] for line in (tmp_path / "out.conllu").read_text().split("\n") if line] == ["NNS", "VBP"]
    for config in (TaggingConfig(tag_column="xpos"), TaggingConfig(word_column=1)):
        task = TaggingTask(config, {"tags": ["NNS", "VBP"], "scheme": None})
        (sentence,) = task.read(tmp_path / "words.txt", with_answers=False)
        assert sentence.words == ("Dogs", "bark")
        task.write(
            [Tagging(sentence.words, ("NNS", "VBP"), (1.0, 1.0))], tmp_path / "out.txt", tmp_path / "words.txt", True
        )
        assert (tmp_path / "out.txt").read_text() == "Dogs NNS\nbark VBP\n"
