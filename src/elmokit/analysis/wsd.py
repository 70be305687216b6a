"""Word-sense disambiguation by nearest sense centroid or by nearest uses, for every layer, with the usual baselines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from elmokit.analysis.sense_centroids import LemmaSenses, instance_vectors, sense_centroids
from elmokit.analysis.sense_neighbors import LemmaUses, lemma_uses
from elmokit.analysis.sense_report import SenseReport, Tallies
from elmokit.data.coarse_wsd import coarse_wsd_folders, read_coarse_wsd
from elmokit.data.raganato import DATA_SUFFIX, read_raganato
from elmokit.data.semcor import read_semcor
from elmokit.data.sense_tagged import SenseInstance, SenseSentence
from elmokit.data.wordnet import read_first_senses
from elmokit.embed.embedder import Embedder, resolve_embedder
from elmokit.embed.outputs import layer_names
from elmokit.fs.reading import suffixes_of
from elmokit.progress import ProgressBar
from elmokit.settings import StatePolicy

ALL, MEAN = "ALL", "mean"
MOST_FREQUENT, FIRST_SENSE = "most frequent", "first sense"


def _by_layer(answers: Sequence[str | None]) -> dict[str, str | None]:
    return dict(zip(layer_names(len(answers)), answers, strict=True))


def _check_neighbors(neighbors: int | None) -> None:
    if neighbors is not None and (not isinstance(neighbors, int) or neighbors < 1):
        raise ValueError(f"neighbors must be an integer from 1, not {neighbors}: it is the number of uses that vote")


def _classifiers(
    sentences: Iterable[SenseSentence], embedder: Embedder, state: StatePolicy | None, neighbors: int | None
) -> Mapping[str, LemmaSenses | LemmaUses]:
    """The senses of every lemma in a training text; `neighbors` as in `coarse_wsd`."""
    if neighbors is None:
        return sense_centroids(sentences, embedder, state)
    return lemma_uses(sentences, embedder, neighbors, state)


# --- CoarseWSD-20 --------------------------------------------------------------------------------------------------


def coarse_wsd(
    directory: str | Path,
    model: Embedder | str | Path | None = None,
    state: StatePolicy | None = None,
    device: str | None = None,
    dtype: str | None = None,
    neighbors: int | None = None,
) -> SenseReport:
    """Score each word of CoarseWSD-20 (Loureiro et al., 2021), and their unweighted mean.

    Args:
        directory: The folder of one word, or a directory of such folders.
        model: An `Embedder`, or a model as `Embedder.load` accepts it.
        state: Initial state of a sentence, as in `Embedder.embed`; the model's policy by default.
        device: Device to compute on; ignored if `model` is an `Embedder`.
        dtype: Number type to compute in, as for `Embedder.load`; ignored if `model` is an `Embedder`.
        neighbors: A use gets the sense with most votes among this many nearest training uses; None: the sense whose
            centroid, the mean vector of its training uses, is nearest.

    Returns:
        F1 in percent of every layer and of the most-frequent-sense baseline. As every instance is answered, F1 is the
        accuracy.

    Raises:
        ValueError: The directory has no CoarseWSD folder, a file is malformed, one of several words is "mean", which
            is the name of the mean's row, or `neighbors` is below 1.
    """
    _check_neighbors(neighbors)
    folders = coarse_wsd_folders(directory)
    if not folders:
        raise ValueError(f"{directory} has no CoarseWSD folder (with train.data.txt, train.gold.txt, ...)")
    if len(folders) > 1 and any(folder.resolve().name == MEAN for folder in folders):
        raise ValueError(f"{directory} has a word {MEAN!r}, the name of the row of means: evaluate that word alone")
    embedder, tallies, num_senses = resolve_embedder(model, device, dtype), Tallies(), 0
    for folder in ProgressBar(folders, desc="wsd", unit=" words"):
        ((word, senses),) = _classifiers(read_coarse_wsd(folder, "train"), embedder, state, neighbors).items()
        num_senses += len(senses.names)
        for instance, vectors in instance_vectors(read_coarse_wsd(folder, "test"), embedder, state):
            answers = _by_layer(senses.nearest(vectors)) | {MOST_FREQUENT: senses.names[0]}
            tallies.add([word], answers, instance.senses)
    f1, instances = tallies.f1(), tallies.instances()
    if len(f1) > 1:
        methods = next(iter(f1.values()))
        mean = {method: sum(of_word[method] for of_word in f1.values()) / len(f1) for method in methods}
        f1, instances = {MEAN: mean, **f1}, {MEAN: sum(instances.values()), **instances}
    initial_state = state or embedder.model.state_policy
    return SenseReport(f1, instances, num_senses, 0, initial_state, embedder.fingerprint(), neighbors)


# --- All words -----------------------------------------------------------------------------------------------------


def _check_list(paths: Sequence[str | Path]) -> None:
    """ValueError for a single path: iterating over a string would give its letters."""
    if isinstance(paths, str | Path):
        raise ValueError("give a list of files: [path]")


def _test_files(paths: Sequence[str | Path]) -> list[Path]:
    """Expand directories: to ALL.data.xml if they have it, otherwise to every NAME.data.xml. ValueError for repeats."""
    test_files: list[Path] = []
    given_by: dict[Path, Path] = {}
    for path in map(Path, paths):
        inside = sorted(path.glob(f"*{DATA_SUFFIX}")) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path} has neither CoarseWSD folders nor test sets named NAME{DATA_SUFFIX}")
        for file in [file for file in inside if file.name == ALL + DATA_SUFFIX] or inside:
            if first := given_by.get(file.resolve()):
                place = "first" if path.is_dir() and not first.is_dir() else "second"
                raise ValueError(f"the test set {file} is given twice, as {first} and as {path}: omit the {place}")
            given_by[file.resolve()] = path
            test_files.append(file)
    return test_files


def _set_of(instance: SenseInstance, file: Path) -> str:
    """The test set of an instance: in ALL, the first field of its name (SET.DOCUMENT.SENTENCE.TOKEN)."""
    fields = instance.name.split(".")
    return fields[0] if len(fields) == 4 else file.name.removesuffix(DATA_SUFFIX)


def _lemmas_and_sets(files: Iterable[Path]) -> tuple[set[str], set[str]]:
    """The lemmas and the names of the test sets. ValueError for an instance that would be counted twice."""
    lemmas, file_of = set[str](), dict[tuple[str, str], Path]()
    for file in files:
        for instance in (instance for sentence in read_raganato(file) for instance in sentence.instances):
            lemmas.add(instance.lemma)
            name = _set_of(instance, file)
            use = name, instance.name.removeprefix(f"{name}.")  # a prefix that only ALL has
            first = file_of.setdefault(use, file)
            if first != file:
                omitted = first if file.name == ALL + DATA_SUFFIX else file
                raise ValueError(
                    f"the instance {use[1]} of the test set {name} is in {first} and in {file}: omit {omitted}, or "
                    "rename it if it is another test set"
                )
    return lemmas, {name for name, _ in file_of}


def _read_training(path: str | Path) -> Iterator[SenseSentence]:
    sentences = read_semcor(path) if suffixes_of(path).kind == ".jsonl" else read_raganato(path)
    return iter(ProgressBar(sentences, desc="train", unit=" sentences", unit_scale=True))


def _only_lemmas(lemmas: set[str], sentences: Iterable[SenseSentence], keep_all: bool) -> Iterator[SenseSentence]:
    """Remove the instances of other lemmas, and sentences without instances unless `keep_all`."""
    for sentence in sentences:
        instances = tuple(instance for instance in sentence.instances if instance.lemma in lemmas)
        if instances or keep_all:
            yield sentence._replace(instances=instances)


def all_words_wsd(
    tests: Sequence[str | Path],
    training: str | Path,
    first_senses: str | Path | None = None,
    model: Embedder | str | Path | None = None,
    state: StatePolicy | None = None,
    device: str | None = None,
    dtype: str | None = None,
    neighbors: int | None = None,
) -> SenseReport:
    """Score the test sets of Raganato et al. (2017), each and pooled: table 5 of Peters et al. (2018), for every layer.

    A use is assigned the sense of its lemma with the nearest training centroid (the paper's "1-nearest neighbor"), or
    the choice of the nearest uses (`neighbors`). If its lemma does not occur in the training text, it is assigned
    WordNet's first sense. Baselines: the most frequent sense in the training text, with the same back-off, and
    WordNet's first sense.

    Args:
        tests: Files NAME.data.xml, with NAME.gold.key.txt in the same directory; or directories, which stand for their
            ALL.data.xml if they have one, otherwise for every NAME.data.xml.
        training: SemCor, as NAME.data.xml or as JSON lines (`elmokit.data.semcor`).
        first_senses: WordNet's index.sense, or the directory with it; without it, uses of unseen lemmas are unanswered.
        model: An `Embedder`, or a model as `Embedder.load` accepts it.
        state: Initial state of a sentence: "zeros", "warm", or "carry" (the final state of the sentence before);
            the model's policy by default.
        device: Device to compute on; ignored if `model` is an `Embedder`.
        dtype: Number type to compute in, as for `Embedder.load`; ignored if `model` is an `Embedder`.
        neighbors: As in `coarse_wsd`. With a number, the vectors of all training uses are held in memory.

    Returns:
        F1 in percent of every layer and baseline.

    Raises:
        ValueError: `tests` is a single path, or has a test set or an instance twice; a file is malformed; one of
            several test sets is called ALL, which is the name of the row of all of them; the training text has none of
            the lemmas of the test sets; or `neighbors` is below 1.
        FileNotFoundError: A file is missing.
    """
    _check_list(tests)
    _check_neighbors(neighbors)
    files = _test_files(tests)
    lemmas, sets = _lemmas_and_sets(files)
    if ALL in sets and len(sets) > 1:
        raise ValueError(
            f"a test set is called {ALL}, the name of the row of all sets together: rename it, or score it alone"
        )
    firsts = read_first_senses(first_senses) if first_senses is not None else {}
    embedder, tallies, unseen = resolve_embedder(model, device, dtype), Tallies(), 0
    initial_state = state or embedder.model.state_policy
    # Carried state depends on every sentence, with instances or without.
    training_sentences = _only_lemmas(lemmas, _read_training(training), keep_all=initial_state == "carry")
    known = _classifiers(training_sentences, embedder, state, neighbors)
    if not known:
        raise ValueError(
            f"{training} has no lemma of the test sets: check that both are of the same language and WordNet version"
        )
    for file in files:
        sentences = ProgressBar(read_raganato(file), desc=file.name, unit=" sentences")
        for instance, vectors in instance_vectors(sentences, embedder, state):
            senses, first = known.get(instance.lemma), firsts.get(instance.lemma)
            unseen += senses is None
            answers = _by_layer(senses.nearest(vectors) if senses else [first] * embedder.num_layers)
            answers[MOST_FREQUENT] = senses.names[0] if senses else first
            if first_senses is not None:
                answers[FIRST_SENSE] = first
            tallies.add(dict.fromkeys((ALL, _set_of(instance, file))), answers, instance.senses)
    f1, instances = tallies.f1(), tallies.instances()
    if len(f1) == 2:  # ALL equals the only test set
        del f1[ALL], instances[ALL]
    num_senses = sum(len(senses.names) for senses in known.values())
    return SenseReport(f1, instances, num_senses, unseen, initial_state, embedder.fingerprint(), neighbors)


def wsd(
    data: Sequence[str | Path],
    training: str | Path | None = None,
    first_senses: str | Path | None = None,
    model: Embedder | str | Path | None = None,
    state: StatePolicy | None = None,
    device: str | None = None,
    dtype: str | None = None,
    neighbors: int | None = None,
) -> SenseReport:
    """Run `coarse_wsd` on a directory with CoarseWSD folders, and `all_words_wsd` on other data.

    Args:
        data: One directory with CoarseWSD folders, or all-words test sets as in `all_words_wsd`.
        training: Training text of all-words test sets.
        first_senses: As in `all_words_wsd`.
        model: As in `all_words_wsd`.
        state: As in `all_words_wsd`.
        device: As in `all_words_wsd`.
        dtype: As in `all_words_wsd`.
        neighbors: As in `all_words_wsd`.

    Returns:
        F1 in percent of every layer and baseline.

    Raises:
        ValueError: `data` is a single path, CoarseWSD is combined with other data, or all-words test sets lack a
            training text or are refused by `all_words_wsd`.
        FileNotFoundError: A file is missing.
    """
    _check_list(data)
    if not data:
        raise ValueError("there is nothing to evaluate: give a CoarseWSD directory, or test sets NAME.data.xml")
    for path in data:
        if not Path(path).exists():
            raise FileNotFoundError(f"{path} does not exist")
    options = {"model": model, "state": state, "device": device, "dtype": dtype, "neighbors": neighbors}
    if any(coarse_wsd_folders(path) for path in data):
        if len(data) > 1 or training is not None or first_senses is not None:
            raise ValueError("CoarseWSD brings its own training sentences: give its directory and no other data")
        return coarse_wsd(data[0], **options)
    if training is None:
        raise ValueError(
            "all-words test sets need a training text: give SemCor as XML or JSON lines (a directory of CoarseWSD has "
            "folders of words, with train.data.txt and test.data.txt, and needs none)"
        )
    return all_words_wsd(data, training, first_senses, **options)
