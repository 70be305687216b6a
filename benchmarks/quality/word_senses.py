"""Word-sense disambiguation by the nearest sense centroid, or by a vote of the nearest uses.

The centroid of a sense is the mean vector of its uses in the training text; a use gets the sense of
its lemma with the nearest centroid by cosine (Melamud et al., 2016; Peters et al., 2018, table 5,
where it is called 1NN). With `neighbors`, the most similar training uses vote instead. The baseline
is the most frequent sense of the lemma in the training text.

`coarse_wsd` reads CoarseWSD-20 (Loureiro et al., 2021), which has a folder for each word:
classes_map.txt, a JSON object of the names of classes; SPLIT.data.txt, with the position of the
word, a tab and a sentence on each line; SPLIT.gold.txt, with the class of each line.

`all_words` reads a test set of Raganato et al. (2017), NAME.data.xml with NAME.gold.key.txt, and
SemCor as JSON lines with the senses of WordNet 3.0, of which `tok` are the tokens of a use:

    {"tokens": ["The", "Fulton_County_Grand_Jury", "said", ...],
     "instances": [{"tok": [2], "lemma": "say", "pos": "VB", "lexkeys": ["2:32:00::"]}, ...]}

A sense key of WordNet is LEMMA%TYPE:FILE:ID:HEAD:HEAD_ID, where TYPE is a digit of PARTS_OF_SPEECH.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, tee
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import iterparse

import numpy as np

from elmokit.analysis.uses import unit_vectors
from elmokit.embed import Embedder
from elmokit.fs import read_lines
from elmokit.progress import ProgressBar

DATA_SUFFIX, KEY_SUFFIX = ".data.xml", ".gold.key.txt"
NAME_TAG = "NNP"  # names have the sense of their type in SemCor (person, ...): no uses of that word
PARTS_OF_SPEECH = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
PARTS_OF_SPEECH |= {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}
MOST_FREQUENT, FIRST_SENSE = "most frequent", "first sense"
TIE = 1e-6  # smaller differences between cosines are rounding errors


class Instance(NamedTuple):
    """A labelled use.

    Attributes:
        lemma: The entry that the senses belong to: "play%n", or in CoarseWSD-20 the word.
        start: Index of its first word in the sentence.
        stop: Index after its last word.
        senses: The correct senses, any of which counts as a correct answer.
        test_set: The test set that it is from.
    """

    lemma: str
    start: int
    stop: int
    senses: tuple[str, ...]
    test_set: str = ""


class Sentence(NamedTuple):
    """A tokenized sentence and its labelled uses."""

    words: tuple[str, ...]
    instances: tuple[Instance, ...]


# --- Readers --------------------------------------------------------------------------------------


def split_token(token: str) -> list[str]:
    """The words of a token that joins several, such as "primary_election"."""
    return [word for word in re.split(r"[_\s]+", token) if word] or [token]


def lemma_of_key(key: str) -> str:
    """The lemma of a sense key: "play%1:10:01::" -> "play%n"."""
    lemma, _, rest = key.rpartition("%")
    return f"{lemma}%{PARTS_OF_SPEECH[rest[0]]}"


def read_first_senses(path: Path) -> dict[str, str]:
    """The first sense of every lemma, from WordNet's index.sense or the directory with it."""
    first_senses = {}
    for line in read_lines(path / "index.sense" if path.is_dir() else path):
        key, _, number, _ = line.split()
        if number == "1":
            first_senses[lemma_of_key(key)] = key
    return first_senses


def read_coarse_wsd(folder: Path, split: str) -> Iterator[Sentence]:
    """Stream the sentences of a word; `split` is "train" or "test"."""
    classes = json.loads("\n".join(read_lines(folder / "classes_map.txt")))
    data, gold = folder / f"{split}.data.txt", folder / f"{split}.gold.txt"
    for line, label in zip(read_lines(data), read_lines(gold), strict=True):
        position, text = line.split("\t")
        # At spaces alone, as positions count: tokens such as "4\u00a01/2" have other white space.
        words = tuple(filter(None, text.split(" ")))
        start, sense = int(position), classes[label.strip()]
        yield Sentence(words, (Instance(folder.name, start, start + 1, (sense,), folder.name),))


def read_raganato(path: Path) -> Iterator[Sentence]:
    """Stream the sentences of NAME.data.xml."""
    name = path.name.removesuffix(DATA_SUFFIX)
    key_lines = map(str.split, read_lines(path.with_name(name + KEY_SUFFIX)))
    keys = {fields[0]: tuple(fields[1:]) for fields in key_lines if fields}
    for _, element in iterparse(path):
        if element.tag != "sentence":
            continue
        words: list[str] = []
        instances = []
        for token in element:
            start = len(words)
            words += split_token(token.text or "")
            if token.tag == "instance":
                lemma = f"{token.attrib['lemma'].lower()}%{PARTS_OF_SPEECH[token.attrib['pos']]}"
                identifier = token.attrib["id"]  # in ALL, SET.DOCUMENT.SENTENCE.TOKEN
                test_set = identifier.split(".")[0] if identifier.count(".") == 3 else name
                instances.append(Instance(lemma, start, len(words), keys[identifier], test_set))
        yield Sentence(tuple(words), tuple(instances))
        element.clear()  # which frees its memory


def read_semcor(path: Path) -> Iterator[Sentence]:
    """Stream the sentences of SemCor, with all labelled uses except names."""
    for record in map(json.loads, read_lines(path)):
        words: list[str] = []
        starts = [0]  # of each token's first word, and at last the number of words
        for token in record["tokens"]:
            words += split_token(token)
            starts.append(len(words))
        instances = []
        for use in record["instances"]:
            if use["pos"] != NAME_TAG:
                lexkeys = ";".join(use["lexkeys"]).split(";")
                senses = tuple(f"{use['lemma'].lower()}%{lexkey}" for lexkey in lexkeys)
                start, stop = starts[use["tok"][0]], starts[use["tok"][-1] + 1]
                instances.append(Instance(lemma_of_key(senses[0]), start, stop, senses))
        yield Sentence(tuple(words), tuple(instances))


# --- Senses of the training text ------------------------------------------------------------------


def instance_vectors(
    sentences: Iterable[Sentence], embedder: Embedder, state: str
) -> Iterator[tuple[Instance, np.ndarray]]:
    """Yield every labelled use with the mean vectors of its words, and that of its text at the top
    layer, (L+2, 2D).
    """
    sentences, same = tee(sentences)
    batches = embedder.embed_stream((sentence.words for sentence in sentences), "all", state)
    # The vectors first: a batch of sentences is read before there are any.
    for layers, sentence in zip(chain.from_iterable(batches), same, strict=False):
        for instance in sentence.instances:
            words = layers[:, instance.start : instance.stop].mean(axis=1)
            yield instance, np.concatenate([words, layers[-1:].mean(axis=1)])


def use_cosines(cosines: np.ndarray) -> np.ndarray:
    """The cosines (L+2, ...) of `instance_vectors`, with those of uses in place of the texts."""
    return np.concatenate([cosines[:-1], cosines[-2:].mean(axis=0, keepdims=True)])


def names_of(rows: Iterable[Any]) -> dict[str, Any]:
    """L+1 layers and "use", by name."""
    *layers, use = rows
    return {f"layer {number}": layer for number, layer in enumerate(layers)} | {"use": use}


@dataclass(frozen=True, eq=False)
class LemmaSenses:
    """What represents the senses of a lemma: their centroids, or the training uses.

    Attributes:
        names: Names of the senses, the most frequent first.
        vectors: Unit vectors of N centroids or uses, (L+2, N, 2D), as of `instance_vectors`.
        has_sense: Whether each of them is of a sense, (N, senses).
        neighbors: The number of them that vote; 1 for centroids.
    """

    names: list[str]
    vectors: np.ndarray
    has_sense: np.ndarray
    neighbors: int

    def nearest(self, vectors: np.ndarray) -> list[str]:
        """The sense with most votes among the nearest by cosine, for each layer and for uses, from
        (L+2, 2D).

        Those as near as the last that votes do too: in the token layer, all uses of a word form.
        Equal votes go to the most frequent sense.
        """
        cosines = use_cosines(np.matmul(self.vectors, unit_vectors(vectors)[:, :, None])[:, :, 0])
        k = min(self.neighbors, cosines.shape[1])
        least = np.partition(cosines, -k, axis=1)[:, -k, None] - TIE
        votes = (cosines >= least).astype(np.int64) @ self.has_sense
        return [self.names[number] for number in votes.argmax(axis=1)]


def lemma_senses(
    sentences: Iterable[Sentence], embedder: Embedder, neighbors: int | None, state: str
) -> dict[str, LemmaSenses]:
    """The senses of every lemma in a training text, which is streamed.

    A use with several senses counts for each of them. With `neighbors`, memory holds the vectors of
    all uses; without, a sum for each sense.
    """
    counts = defaultdict[str, Counter[str]](Counter)
    sums = defaultdict[str, dict[Any, np.ndarray]](dict)  # by lemma, then by senses and number
    for instance, vectors in instance_vectors(sentences, embedder, state):
        counts[instance.lemma].update(instance.senses)
        of_lemma = sums[instance.lemma]
        if neighbors:
            of_lemma[instance.senses, len(of_lemma)] = vectors
        else:
            for sense in instance.senses:
                of_lemma[(sense,), 0] = of_lemma.get(((sense,), 0), 0) + vectors
    known = {}
    for lemma, count in counts.items():
        names = sorted(count, key=lambda name, count=count: (-count[name], name))
        of_lemma = sums.pop(lemma)  # which frees them
        vectors = unit_vectors(np.stack(list(of_lemma.values()), axis=1))
        has_sense = np.array([[name in senses for name in names] for senses, _ in of_lemma])
        known[lemma] = LemmaSenses(names, vectors, has_sense, neighbors or 1)
    return known


# --- Scores ---------------------------------------------------------------------------------------


class Tally:
    """Counts the answers of each method, a layer or a baseline, by test set."""

    def __init__(self) -> None:
        self.instances = Counter[str]()
        self.answered, self.correct = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        self.senses = self.unseen = 0  # of the training text; uses of lemmas that it lacks

    def add(self, name: str, answers: dict[str, str | None], senses: tuple[str, ...]) -> None:
        """Count the answer of each method, None if it has none, to a use in a test set."""
        self.instances[name] += 1
        for method, answer in answers.items():
            self.answered[name, method] += answer is not None
            self.correct[name, method] += answer in senses

    def f1(self) -> dict[str, dict[str, float]]:
        """F1 in percent by test set and method, as Raganato et al. (2017) define it.

        It is 2 PR / (P + R): an unanswered use lowers the recall but not the precision.
        """
        f1: dict[str, dict[str, float]] = {name: {} for name in self.instances}
        for (name, method), correct in self.correct.items():
            f1[name][method] = 200 * correct / (self.answered[name, method] + self.instances[name])
        return f1

    def answer(
        self,
        test: Iterable[Sentence],
        known: dict[str, LemmaSenses],
        embedder: Embedder,
        state: str,
        first_senses: dict[str, str] | None = None,
        pool: str | None = None,
    ) -> None:
        """Answer all uses of a test text, and count the answers, also under the name of `pool`.

        A use of an unseen lemma gets its first sense in WordNet, if that is given.
        """
        self.senses += sum(len(senses.names) for senses in known.values())
        for instance, vectors in instance_vectors(test, embedder, state):
            senses, first = known.get(instance.lemma), (first_senses or {}).get(instance.lemma)
            self.unseen += senses is None
            answers = names_of(senses.nearest(vectors) if senses else [first] * len(vectors))
            answers[MOST_FREQUENT] = senses.names[0] if senses else first
            if first_senses is not None:
                answers[FIRST_SENSE] = first
            for name in dict.fromkeys(filter(None, (pool, instance.test_set))):
                self.add(name, answers, instance.senses)


def coarse_wsd(
    directory: Path, embedder: Embedder, neighbors: int | None = None, state: str = "zeros"
) -> dict[str, Any]:
    """F1 of the words of CoarseWSD-20, and their unweighted mean."""
    tally = Tally()
    for file in ProgressBar(sorted(directory.glob("*/train.data.txt")), desc="wsd", unit=" words"):
        known = lemma_senses(read_coarse_wsd(file.parent, "train"), embedder, neighbors, state)
        tally.answer(read_coarse_wsd(file.parent, "test"), known, embedder, state)
    f1, instances = tally.f1(), tally.instances
    methods = next(iter(f1.values()))
    mean = {name: float(np.mean([word[name] for word in f1.values()])) for name in methods}
    f1, instances = {"mean": mean, **f1}, {"mean": instances.total(), **instances}
    return {"f1": f1, "instances": instances, "senses": tally.senses, "neighbors": neighbors}


def all_words(
    test: Path,
    training: Path,
    embedder: Embedder,
    first_senses: Path | None = None,
    neighbors: int | None = None,
    state: str = "zeros",
) -> dict[str, Any]:
    """F1 of an all-words test set; of a directory, its ALL.data.xml, and each set in that.

    Args:
        test: NAME.data.xml, or a directory with ALL.data.xml.
        training: SemCor.
        embedder: The model.
        first_senses: WordNet's index.sense, or the directory with it.
        neighbors: The number of training uses that vote; None: the nearest centroid decides.
        state: Initial state of a sentence.
    """
    sentences = list(read_raganato(test / "ALL.data.xml" if test.is_dir() else test))
    lemmas = {instance.lemma for sentence in sentences for instance in sentence.instances}

    def of_tested_lemmas() -> Iterator[Sentence]:
        semcor = ProgressBar(read_semcor(training), desc="train", unit=" sentences")
        for words, instances in semcor:
            tested = tuple(instance for instance in instances if instance.lemma in lemmas)
            if tested or state == "carry":  # which depends on every sentence
                yield Sentence(words, tested)

    known = lemma_senses(of_tested_lemmas(), embedder, neighbors, state)
    firsts = None if first_senses is None else read_first_senses(first_senses)
    tally = Tally()
    tally.answer(sentences, known, embedder, state, firsts, "ALL" if test.is_dir() else None)
    counts = {"instances": tally.instances, "senses": tally.senses, "unseen": tally.unseen}
    return {"f1": tally.f1(), **counts, "neighbors": neighbors}
