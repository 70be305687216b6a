"""Word-sense disambiguation by nearest sense centroid or by nearest uses, for every layer, with the
usual baselines.

The centroid of a sense is the mean contextual vector of its uses in the training text; a use is
assigned the sense of its lemma with the nearest centroid by cosine (Melamud et al., 2016; Peters et
al., 2018, section 5.3). It is called "1NN" in the papers on CoarseWSD-20 and in table 5 of the ELMo
paper. Instead, the k most similar training uses may vote: single uses can represent a sense that is
used in several ways, and a frequent sense has more of the votes where a use is similar to nothing
in particular.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elmokit.analysis.report import Report, table
from elmokit.analysis.sense_corpora import (
    DATA_SUFFIX,
    SenseInstance,
    SenseSentence,
    coarse_wsd_folders,
    read_coarse_wsd,
    read_first_senses,
    read_raganato,
    read_semcor,
)
from elmokit.analysis.uses import all_layers, unit_vectors
from elmokit.embed import Embedder, layer_names, resolve_embedder
from elmokit.fs import suffixes_of
from elmokit.progress import ProgressBar
from elmokit.settings import StatePolicy

ALL, MEAN = "ALL", "mean"  # names of the rows of all test sets, and of the mean of all words
MOST_FREQUENT, FIRST_SENSE = "most frequent", "first sense"
TIE = 1e-6  # smaller differences between cosines are rounding errors


# --- Senses of the training text ------------------------------------------------------------------


def instance_vectors(
    sentences: Iterable[SenseSentence], embedder: Embedder, state: StatePolicy | None = None
) -> Iterator[tuple[SenseInstance, np.ndarray]]:
    """Yield every instance with its vectors, (L+1, 2D), averaged over its words; `state` as in
    `all_layers`.
    """
    for sentence, layers in all_layers(sentences, lambda sentence: sentence.words, embedder, state):
        for instance in sentence.instances:
            yield instance, layers[:, instance.start : instance.end].mean(axis=1)


@dataclass(frozen=True, eq=False)
class LemmaSenses:
    """What represents the senses of a lemma: their centroids, or the training uses.

    Attributes:
        names: Names of the senses, the most frequent first.
        vectors: Unit vectors of N centroids or uses, (L+1, N, 2D).
        has_sense: Whether each of them is of a sense, (N, senses).
        neighbors: k, the number of them that vote; 1 for centroids.
    """

    names: list[str]
    vectors: np.ndarray
    has_sense: np.ndarray
    neighbors: int

    def nearest(self, vectors: np.ndarray) -> list[str]:
        """The sense with most votes among the k nearest by cosine, for each layer of `vectors`,
        (L+1, 2D).

        Those as near as the k-th vote too; in the context-independent token layer, these are all
        uses of a word form. Equal votes go to the most frequent sense.
        """
        cosines = np.matmul(self.vectors, unit_vectors(vectors)[:, :, None])[:, :, 0]
        k = min(self.neighbors, cosines.shape[1])
        least = np.partition(cosines, -k, axis=1)[:, -k, None] - TIE
        votes = (cosines >= least).astype(np.int64) @ self.has_sense
        return [self.names[number] for number in votes.argmax(axis=1)]


def lemma_senses(
    sentences: Iterable[SenseSentence],
    embedder: Embedder,
    neighbors: int | None = None,
    state: StatePolicy | None = None,
) -> dict[str, LemmaSenses]:
    """Compute the senses of every lemma in a training text, which is streamed.

    Args:
        sentences: The training text. A use annotated with several senses counts for each of them.
        embedder: The model.
        neighbors: The number of uses that vote, which holds the vectors of all uses in memory;
            None: one sum for each sense is held, and the nearest centroid decides.
        state: Initial state of a sentence, as in `all_layers`.

    Returns:
        The senses by lemma.
    """
    counts = defaultdict[str, Counter[str]](Counter)
    sums = defaultdict[str, dict[tuple[tuple[str, ...], int], np.ndarray]](
        dict
    )  # by lemma, senses and number
    for instance, vectors in instance_vectors(sentences, embedder, state):
        counts[instance.lemma].update(instance.senses)
        of_lemma = sums[instance.lemma]
        keys = (
            [(instance.senses, len(of_lemma))]
            if neighbors
            else [((name,), 0) for name in instance.senses]
        )
        for key in keys:
            of_lemma[key] = of_lemma.get(key, 0) + vectors
    found = {}
    for lemma, count in counts.items():
        names = sorted(count, key=lambda name, count=count: (-count[name], name))
        of_lemma = sums.pop(lemma)  # which frees them
        vectors = unit_vectors(np.stack(list(of_lemma.values()), axis=1))
        has_sense = np.array([[name in senses for name in names] for senses, _ in of_lemma])
        found[lemma] = LemmaSenses(names, vectors, has_sense, neighbors or 1)
    return found


# --- Scores ---------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class SenseReport(Report):
    """Word-sense disambiguation scores.

    Attributes:
        f1: F1 in percent, by test set and method; a method is a layer or a baseline.
        instances: Number of instances, by test set.
        senses: Number of senses in the training text of the lemmas of the test sets.
        unseen: Number of instances whose lemma does not occur in the training text.
        state: Initial LSTM state of a sentence.
        fingerprint: Fingerprint of the model's weights.
        neighbors: Number of training uses that vote for a sense; None if the nearest centroid
            decides.
    """

    f1: dict[str, dict[str, float]]
    instances: dict[str, int]
    senses: int
    unseen: int
    state: str
    fingerprint: str
    neighbors: int | None = None

    def __str__(self) -> str:
        rows = [
            [name, str(self.instances[name]), *(f"{f1:.2f}" for f1 in of_set.values())]
            for name, of_set in self.f1.items()
        ]
        decides = (
            "nearest centroid" if self.neighbors is None else f"nearest uses: {self.neighbors}"
        )
        senses = f"{self.senses} senses of the tested lemmas in the training text"
        note = f"F1 in percent; {decides}; state {self.state}; {senses}"
        if self.unseen:
            note += f"; {self.unseen} uses of lemmas absent from the training text"
        return table(["", "uses", *next(iter(self.f1.values()))], rows, note)


Answered = tuple[Iterable[str], Mapping[str, str | None], Sequence[str]]


def f1_scores(instances: Iterable[Answered]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """F1 in percent, by test set and method; and the number of instances of each set.

    F1 is defined as in Raganato et al. (2017): 2 PR / (P + R), where unanswered instances lower the
    recall but not the precision. If all instances are answered, it equals the accuracy.

    Args:
        instances: The test sets of an instance, the answer of each method (None if it has none),
            the correct senses.
    """
    count, answered, correct = (
        Counter[str](),
        Counter[tuple[str, str]](),
        Counter[tuple[str, str]](),
    )
    for sets, answers, senses in instances:
        for name in sets:
            count[name] += 1
            for method, answer in answers.items():
                answered[name, method] += answer is not None
                correct[name, method] += answer in senses
    f1: dict[str, dict[str, float]] = {name: {} for name in count}
    for name, method in correct:
        f1[name][method] = 200 * correct[name, method] / (answered[name, method] + count[name])
    return f1, dict(count)


# --- Data sets ------------------------------------------------------------------------------------


def _test_files(path: Path) -> list[Path]:
    """The file; or of a directory its ALL.data.xml, or if it has none, every NAME.data.xml."""
    inside = sorted(path.glob(f"*{DATA_SUFFIX}")) if path.is_dir() else [path]
    return [file for file in inside if file.name == ALL + DATA_SUFFIX] or inside


def _training_sentences(
    path: str | Path, tests: Sequence[Path], keep_all: bool
) -> Iterator[SenseSentence]:
    """Without the instances of lemmas that no test set has, and without sentences that then have
    none.
    """
    lemmas = {
        each.lemma
        for file in tests
        for sentence in read_raganato(file)
        for each in sentence.instances
    }
    sentences = read_semcor(path) if suffixes_of(path).kind == ".jsonl" else read_raganato(path)
    for sentence in ProgressBar(sentences, desc="train", unit=" sentences", unit_scale=True):
        instances = tuple(instance for instance in sentence.instances if instance.lemma in lemmas)
        if instances or keep_all:
            yield sentence._replace(instances=instances)


def wsd(
    data: Sequence[str | Path],
    training: str | Path | None = None,
    first_senses: str | Path | None = None,
    model: Embedder | str | Path | None = None,
    state: StatePolicy | None = None,
    neighbors: int | None = None,
) -> SenseReport:
    """Score CoarseWSD-20, by words and their unweighted mean, or test sets of Raganato et al.
    (2017), each and pooled.

    The latter are table 5 of Peters et al. (2018), for every layer. A use whose lemma does not
    occur in the training text is assigned WordNet's first sense. Baselines: the most frequent sense
    in the training text, with the same back-off, and WordNet's first sense.

    Args:
        data: CoarseWSD folders, or a directory of such folders. Or test sets NAME.data.xml, with
            NAME.gold.key.txt in the same directory; or directories, which stand for their
            ALL.data.xml if they have one, otherwise for every NAME.data.xml.
        training: SemCor, as NAME.data.xml or as JSON lines. CoarseWSD brings its own training
            sentences.
        first_senses: WordNet's index.sense, or the directory with it; without it, uses of unseen
            lemmas are unanswered.
        model: An `Embedder`, or a model as it takes one.
        state: Initial state of a sentence: "zeros", "warm", or "carry" (the final state of the
            sentence before); the model's policy by default.
        neighbors: A use gets the sense with most votes among this many nearest training uses, whose
            vectors are all held in memory; None: the sense whose centroid, the mean vector of its
            training uses, is nearest.

    Returns:
        F1 in percent of every layer and baseline.

    Raises:
        ValueError: A file is malformed, test sets lack a training text, or that has none of their
            lemmas.
        FileNotFoundError: A file is missing.
    """
    folders = [folder for path in data for folder in coarse_wsd_folders(path)]
    if not folders and training is None:
        raise ValueError(
            "all-words test sets need a training text: give SemCor as XML or JSON lines"
        )
    embedder = resolve_embedder(model)
    policy = state or embedder.model.state_policy
    firsts = read_first_senses(first_senses) if first_senses is not None else {}
    # A training text, and its test sets with their names.
    parts = [
        (
            read_coarse_wsd(folder, "train"),
            [(folder.resolve().name, read_coarse_wsd(folder, "test"))],
        )
        for folder in folders
    ]
    if not folders and training is not None:
        files = [file for path in map(Path, data) for file in _test_files(path)]
        tests = [(file.name.removesuffix(DATA_SUFFIX), read_raganato(file)) for file in files]
        # Carried state depends on every sentence, with instances or without.
        parts = [(_training_sentences(training, files, keep_all=policy == "carry"), tests)]

    answered: list[Answered] = []
    num_senses = unseen = 0
    for training_sentences, tests in ProgressBar(
        parts, desc="wsd", unit=" words", disable=not folders
    ):
        known = lemma_senses(training_sentences, embedder, neighbors, state)
        if not known:
            raise ValueError(f"{training} has no lemma of the test sets NAME{DATA_SUFFIX}")
        num_senses += sum(len(senses.names) for senses in known.values())
        for name, sentences in tests:
            for instance, vectors in instance_vectors(sentences, embedder, state):
                senses, first = known.get(instance.lemma), firsts.get(instance.lemma)
                unseen += senses is None
                by_layer = senses.nearest(vectors) if senses else [first] * embedder.num_layers
                answers = dict(zip(layer_names(embedder.num_layers), by_layer, strict=True))
                answers[MOST_FREQUENT] = senses.names[0] if senses else first
                if first_senses is not None:
                    answers[FIRST_SENSE] = first
                fields = instance.name.split(".")  # in ALL, SET.DOCUMENT.SENTENCE.TOKEN
                pooled = [ALL, fields[0] if len(fields) == 4 else name]
                answered.append(
                    ([name] if folders else dict.fromkeys(pooled), answers, instance.senses)
                )
    f1, instances = f1_scores(answered)
    if not folders and len(f1) == 2:  # ALL equals the only test set
        del f1[ALL], instances[ALL]
    elif folders and len(f1) > 1:
        methods = next(iter(f1.values()))
        mean = {
            method: sum(of_word[method] for of_word in f1.values()) / len(f1) for method in methods
        }
        f1, instances = {MEAN: mean, **f1}, {MEAN: sum(instances.values()), **instances}
    return SenseReport(f1, instances, num_senses, unseen, policy, embedder.fingerprint(), neighbors)
