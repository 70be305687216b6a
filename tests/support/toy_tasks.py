"""Tiny training sets for every task, which its network learns in seconds."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.data.readers import TaggedSentence
from elmokit.tasks import FitConfig
from elmokit.tasks.classification import ClassificationConfig, ClassificationTask, LabelledText
from elmokit.tasks.coreference import CorefDocument, CoreferenceConfig, CoreferenceTask
from elmokit.tasks.fitting.task import Task, find_task
from elmokit.tasks.pairs import PairsConfig, PairsTask, SentencePair
from elmokit.tasks.reading import Question, ReadingConfig, ReadingTask, words_of_answer
from elmokit.tasks.roles import PredicateFrame, RolesConfig, RolesTask
from elmokit.tasks.tagging import TaggingConfig, TaggingTask
from elmokit.text.tokenizer import word_offsets

TranslationTask = find_task(
    f"{Path(__file__).parents[2] / 'examples/tasks/translation.py'}:TranslationTask"
)
translation = sys.modules[TranslationTask.__module__]

# Sentences of three and of four words, so that batches are padded.
NAMES = ("Ann", "Bob", "Eve")
VERBS = ("sees", "likes")
THINGS = ("red dogs", "blue cats", "owls")


@dataclass(frozen=True)
class ToyTask:
    """A task with a tiny network, its examples, and settings with which it memorizes them."""

    task: Task
    examples: Sequence[Any]
    config: FitConfig
    text: Any  # what `predict` takes


def _sentences(count: int) -> list[tuple[str, str, str]]:
    """Name, verb, thing."""
    random = np.random.default_rng(0)
    return [
        tuple(str(random.choice(words)) for words in (NAMES, VERBS, THINGS)) for _ in range(count)
    ]  # type: ignore


def _tagged(name: str, verb: str, thing: str) -> TaggedSentence:
    words = (name, verb, *thing.split())
    return TaggedSentence(words, ("B-PER", "O", "B-THING", "I-THING")[: len(words)])


def _frame(name: str, verb: str, thing: str) -> PredicateFrame:
    words = (name, verb, *thing.split())
    return PredicateFrame(words, 1, ("B-ARG0", "B-V", "B-ARG1", "I-ARG1")[: len(words)])


def _pair(name: str, verb: str, thing: str) -> SentencePair:
    first = (name, verb, *thing.split())
    second = (NAMES[0], verb, *thing.split())
    return SentencePair(
        first, second, "same" if first == second else "other", float(first == second)
    )


def _question(name: str, verb: str, thing: str) -> Question:
    text = f"Today {name} {verb} {thing} ."
    passage = tuple(text.split())
    offsets = word_offsets(text, passage)
    begin = text.index(thing)
    span = words_of_answer(offsets, begin, begin + len(thing))
    return Question("q", ("What", "is", "there", "?"), passage, text, offsets, (thing,), span)


def _document(name: str, verb: str, thing: str) -> CorefDocument:
    first = (name, verb, *thing.split())
    she = len(first)
    them = len(first) + 2
    clusters = (((0, 1), (she, she + 1)), ((2, she), (them, them + 1)))
    return CorefDocument(name, (first, ("She", verb, "them")), clusters)


def _parallel(name: str, verb: str, thing: str) -> Any:
    return translation.ParallelSentence(
        (name, verb, *thing.split()), (*thing.upper().split(), verb, name)
    )


def toy_tasks() -> dict[str, ToyTask]:
    """One for each task of elmokit, and one for a task of one's own, by its name."""
    rows = _sentences(24)
    fast = FitConfig(
        max_epochs=40, patience=8, halve_after=40, batch_size=8, learning_rate=0.01, device="cpu"
    )
    small = {"hidden_dim": 16, "dropout": 0.0}
    tasks = [
        ToyTask(
            TaggingTask(TaggingConfig(**small)),
            [_tagged(*row) for row in rows],
            fast,
            "Ann sees red dogs",
        ),
        ToyTask(
            ClassificationTask(
                ClassificationConfig(encoder_dim=16, integrator_dim=16, maxout_dim=16, dropout=0.0)
            ),
            [LabelledText((name, verb, *thing.split()), thing) for name, verb, thing in rows],
            fast,
            "Ann sees red dogs",
        ),
        ToyTask(
            PairsTask(PairsConfig(**small)),
            [_pair(*row) for row in rows],
            fast,
            ("Ann sees", "Bob sees"),
        ),
        ToyTask(
            RolesTask(RolesConfig(predicate_dim=8, num_layers=2, **small)),
            [_frame(*row) for row in rows],
            fast,
            ("Ann sees red dogs", 1),
        ),
        ToyTask(
            ReadingTask(ReadingConfig(**small)),
            [_question(*row) for row in rows],
            fast,
            ("What is there?", "Today Ann sees red dogs ."),
        ),
        ToyTask(
            CoreferenceTask(
                CoreferenceConfig(
                    span_dim=16, feature_dim=4, max_span_words=3, mentions_per_word=0.8, **small
                )
            ),
            [_document(*row) for row in rows[:6]],
            FitConfig(
                max_epochs=30,
                patience=8,
                halve_after=30,
                batch_size=1,
                learning_rate=0.01,
                device="cpu",
            ),
            ["Ann sees red dogs", "She sees them"],
        ),
        ToyTask(
            TranslationTask(translation.TranslationConfig(target_dim=16, min_count=1, **small)),
            [_parallel(*row) for row in rows],
            fast,
            "Ann sees red dogs",
        ),
    ]
    return {toy.task.name: toy for toy in tasks}
