"""Brackets of roles as tags, reversal of padded sentences, and the network by its formulas."""

from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import log_softmax
from task_oracles import GivenWords, RolesOracle, random_network, random_words, sentences_of

from elmokit.tasks.roles import (
    Frame,
    PredicateFrame,
    RolesBatch,
    RolesConfig,
    RolesNetwork,
    RolesTask,
)

ROWS = [
    "doc 0 0 Bush NNP * - - (ARG0*) *",
    "doc 0 1 nominated VBD * nominate nominate.01 (V*) *",
    "doc 0 2 two CD * - - (ARG1* (ARG0*",
    "doc 0 3 people NNS * - - * *)",
    "doc 0 4 to TO * - - * *",
    "doc 0 5 serve VB * serve serve.01 *) (V*)",
]


def test_read_yields_an_example_per_predicate(tmp_path: Path) -> None:
    (tmp_path / "srl.conll").write_text("\n".join(["#begin document (doc);", *ROWS, ""]))
    first, second = RolesTask().read(tmp_path / "srl.conll")
    assert (first.predicate, second.predicate) == (1, 5)
    assert first.tags == ("B-ARG0", "B-V", "B-ARG1", "I-ARG1", "I-ARG1", "I-ARG1")
    assert second.tags == ("O", "O", "B-ARG0", "I-ARG0", "O", "B-V")
    unanswered = RolesTask().read(tmp_path / "srl.conll", "predict")
    assert [frame.tags for frame in unanswered] == [(), ()]


CONLL_2012 = [
    "doc 0 0 Bush NNP (TOP(S* - - - spk (PERSON) (ARG0*) * (7)",
    "doc 0 1 nominated VBD * nominate 01 1 spk * (V*) * -",
    "doc 0 2 two CD * - - - spk * (ARG1* (ARG0* (3",
    "doc 0 3 people NNS * - - - spk * *) *) 3)",
    "doc 0 4 to TO * - - - spk * * * -",
    "doc 0 5 serve VB *)) serve 01 1 spk * * (V*) -",
]


def test_read_leaves_out_the_column_of_coreference_in_conll_2012(tmp_path: Path) -> None:
    (tmp_path / "srl.conll").write_text("\n".join(CONLL_2012))
    first, second = RolesTask(RolesConfig(role_column=11)).read(tmp_path / "srl.conll")
    assert first.tags == ("B-ARG0", "B-V", "B-ARG1", "I-ARG1", "O", "O")
    assert second.tags == ("O", "O", "B-ARG0", "I-ARG0", "O", "B-V")


@pytest.mark.parametrize(
    "gold, predicted, correct, excess, missed",
    [
        # Counted by the rules of CoNLL-2005 (load_SE_tagging and discriminate_args of srl-eval.pl).
        ("B-A1 B-V B-C-A1 O B-C-V", "B-A1 B-V O O O", 0, 1, 1),
        ("B-A1 B-V B-C-A1 O B-C-V", "B-A1 B-V B-C-A1 O O", 1, 0, 0),
        ("B-A1 B-V B-C-A1 B-A2 B-C-A1", "B-A1 B-V B-C-A1 B-A2 O", 1, 1, 1),
        ("B-A1 B-V B-A1 B-C-A1 O", "B-A1 B-V B-A1 B-C-A1 O", 2, 0, 0),  # continues the last A1
        ("O B-V B-A1 I-A1 O", "O B-V B-C-A1 I-C-A1 O", 1, 0, 0),  # continues nothing
        ("B-A1 B-V B-A1 O O", "B-A1 B-V B-C-A1 O O", 0, 1, 2),
        ("B-A0 B-V B-A1 O O", "B-A0 B-V O O O", 1, 0, 1),  # the predicate itself does not count
    ],
)
def test_score_joins_the_phrases_of_discontinuous_arguments(
    gold: str, predicted: str, correct: int, excess: int, missed: int
) -> None:
    words = ("a", "b", "c", "d", "e")
    examples = [PredicateFrame(words, 1, tuple(gold.split()))]
    frames = [Frame(words, 1, (), tuple(predicted.split()))]
    scores = RolesTask().score(examples, frames)
    assert scores.values["precision"] == correct / (correct + excess)
    assert scores.values["recall"] == correct / (correct + missed)
    assert sum(score.support for score in scores.by_label.values()) == correct + missed
    assert not scores.by_label.keys() & {"V", "C-V", "C-A1"}


def test_network_and_loss_equal_the_formulas() -> None:
    config = RolesConfig(hidden_dim=4, num_layers=3, predicate_dim=2)
    network = random_network(RolesNetwork, config, GivenWords(), ["B-A0", "B-V", "I-A0", "O"])
    words = random_words([4, 1, 3])
    places = [2, 0, 0]
    is_predicate = torch.zeros(3, 4, dtype=torch.int64)
    is_predicate[[0, 1, 2], places] = 1
    batch = RolesBatch(words, is_predicate, is_predicate)  # type: ignore[arg-type]
    oracle = RolesOracle(network)
    losses = list[float]()
    for row, sentence, place in zip(network(batch), sentences_of(words), places, strict=True):
        expected = oracle.scores(sentence, place, num_layers=3)
        np.testing.assert_allclose(row[: len(expected)], expected, rtol=1e-9)
        losses += [-scores[int(word == place)] for word, scores in enumerate(log_softmax(expected))]
    assert network.loss(batch).item() == pytest.approx(np.mean(losses))
