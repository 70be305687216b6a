"""Words of a training set, and batches of sentences, empty ones among them."""

import pytest

from elmokit.tasks.classification import ClassificationTask, labelled_phrases
from elmokit.tasks.word_batches import Sentences, WordTable
from elmokit.tasks.word_encoder import CHARACTERS


def test_a_sentence_that_examples_share_counts_once() -> None:
    passage, question = ["a", "rare", "passage"], ["a", "question"]
    table = WordTable.of([passage, question, passage, question])
    assert table.words[: table.num_frequent] == ("a",)
    assert set(table.words[table.num_frequent :]) == {"rare", "passage", "question"}


def test_the_phrases_of_a_tree_do_not_count_again() -> None:
    trees = ("(3 (2 It) (4 works))", "(1 (1 (2 It) (0 fails)) (2 .))")
    phrases = [phrase for tree in trees for phrase in labelled_phrases(tree)]
    table = WordTable.of(ClassificationTask().counted_sentences(phrases))
    assert table.words == ("It", ".", "fails", "works") and table.num_frequent == 1


def test_characters_of_a_batch_of_empty_sentences_are_wide_enough_for_the_filters() -> None:
    sentences = Sentences([[], ["word"]], WordTable.of([["word"]]), character_cnns=[CHARACTERS])
    characters = sentences.batch([[]]).characters
    assert characters is not None and characters.shape == (0, CHARACTERS.widest_filter)


def test_batch_of_a_sentence_that_was_not_encoded_says_what_a_task_must_do() -> None:
    sentences = Sentences([["known"]], WordTable.of([["known"]]))
    with pytest.raises(ValueError, match=r"not encoded, \('other',\): the `sentences` of a task yield all"):
        sentences.batch([["other"]])
