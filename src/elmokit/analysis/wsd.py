"""Word-sense disambiguation by the nearest mean of a sense, for every layer, beside the usual baselines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from elmokit.analysis.sense_centroids import instance_vectors, sense_centroids
from elmokit.analysis.sense_report import SenseReport, Tallies
from elmokit.config import StatePolicy
from elmokit.data.coarse_wsd import coarse_wsd_folders, read_coarse_wsd
from elmokit.data.raganato import DATA_SUFFIX, read_raganato
from elmokit.data.semcor import read_semcor
from elmokit.data.sense_tagged import SenseInstance, SenseSentence
from elmokit.data.wordnet import read_first_senses
from elmokit.embed.embedder import Embedder, resolve_embedder

ALL, MEAN = "ALL", "mean"
MOST_FREQUENT, FIRST_SENSE = "most frequent", "first sense"
JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")


def _by_layer(answers: Sequence[str | None]) -> dict[str, str | None]:
    return {f"layer {number}": answer for number, answer in enumerate(answers)}


# --- CoarseWSD-20 --------------------------------------------------------------------------------------------------


def coarse_wsd(
    directory: str | Path,
    model: Embedder | str | Path | None = None,
    state: StatePolicy | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> SenseReport:
    """Score each word of CoarseWSD-20 (Loureiro et al., 2021), and their unweighted mean.

    Args:
        directory: The folder of a word, or one that holds such folders.
        model: An embedder, or a model as `Embedder.load` takes it.
        state: The initial LSTM state of a sentence, as in `Embedder.embed`; the model's own policy when not given.
        device: Where to compute, where `model` is no embedder yet.
        dtype: The number type to compute in, where `model` is no embedder yet (`Embedder.load`'s dtype).

    Returns:
        F1 in percent of every layer, and of the sense that is most frequent in training; here it is the accuracy.

    Raises:
        ValueError: There is no such folder, or something in one is not in the layout.
    """
    folders = coarse_wsd_folders(directory)
    if not folders:
        raise ValueError(f"{directory} holds no folder of CoarseWSD (with train.data.txt, train.gold.txt, ...)")
    embedder, tallies, num_senses = resolve_embedder(model, device, dtype), Tallies(), 0
    for folder in tqdm(folders, desc="wsd", unit=" words", disable=None):
        ((word, senses),) = sense_centroids(read_coarse_wsd(folder, "train"), embedder, state).items()
        num_senses += len(senses.names)
        for instance, vectors in instance_vectors(read_coarse_wsd(folder, "test"), embedder, state):
            answers = _by_layer(senses.nearest(vectors)) | {MOST_FREQUENT: senses.names[0]}
            tallies.add([word], answers, instance.senses)
    f1, instances = tallies.f1(), tallies.instances()
    if len(f1) > 1:
        methods = next(iter(f1.values()))
        mean = {method: sum(of_word[method] for of_word in f1.values()) / len(f1) for method in methods}
        f1, instances = {MEAN: mean, **f1}, {MEAN: sum(instances.values()), **instances}
    started = state or embedder.model.state_policy
    return SenseReport(f1, instances, num_senses, 0, started, embedder.fingerprint())


# --- All words -----------------------------------------------------------------------------------------------------


def _test_files(paths: Sequence[str | Path]) -> list[Path]:
    """The files that are named, and of a directory ALL.data.xml, or where it has none every NAME.data.xml."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(path.glob(f"*{DATA_SUFFIX}")) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"{path} holds neither folders of CoarseWSD nor test sets named NAME{DATA_SUFFIX}")
        found += [file for file in inside if file.name == ALL + DATA_SUFFIX] or inside
    return found


def _set_of(instance: SenseInstance, file: Path) -> str:
    """The test set of an instance: ALL puts it in front, SET.DOCUMENT.SENTENCE.TOKEN; in a set by itself it is not."""
    parts = instance.name.split(".")
    return parts[0] if len(parts) == 4 else file.name.removesuffix(DATA_SUFFIX)


def _read_training(path: str | Path) -> Iterator[SenseSentence]:
    is_jsonl = Path(path).name.endswith(JSONL_SUFFIXES)
    sentences = read_semcor(path) if is_jsonl else read_raganato(path)
    return iter(tqdm(sentences, desc="train", unit=" sentences", unit_scale=True, disable=None))


def _about(lemmas: set[str], sentences: Iterable[SenseSentence], every: bool) -> Iterator[SenseSentence]:
    """The sentences with the instances of these lemmas alone; where not `every` one is wanted, those that have some."""
    for sentence in sentences:
        instances = tuple(instance for instance in sentence.instances if instance.lemma in lemmas)
        if instances or every:
            yield sentence._replace(instances=instances)


def all_words_wsd(
    tests: Sequence[str | Path],
    training: str | Path,
    first_senses: str | Path | None = None,
    model: Embedder | str | Path | None = None,
    state: StatePolicy | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> SenseReport:
    """Score test sets of Raganato et al. (2017), each and together: table 5 of Peters et al. (2018), for every layer.

    A use gets the sense of its lemma whose training vectors have the nearest mean, and where the training text does
    not show its lemma, the first sense of WordNet. Baselines: the sense that is most frequent in training, with the
    same back-off, and the first sense of WordNet.

    Args:
        tests: Files NAME.data.xml with NAME.gold.key.txt beside them, or directories: of one that has ALL.data.xml that
            file, of others all.
        training: SemCor, as another NAME.data.xml or as JSON lines (`elmokit.data.semcor`).
        first_senses: WordNet's index.sense, or the directory that holds it; without it a use of an unseen lemma gets
            no answer.
        model: An embedder, or a model as `Embedder.load` takes it.
        state: The initial LSTM state of a sentence, as in `Embedder.embed` ("carry": that after the sentence before);
            the model's own policy when not given.
        device: Where to compute, where `model` is no embedder yet.
        dtype: The number type to compute in, where `model` is no embedder yet (`Embedder.load`'s dtype).

    Returns:
        F1 in percent of every layer and baseline.

    Raises:
        ValueError: Something is not in its layout, or no lemma of the tests is in the training text.
        FileNotFoundError: A file is missing.
    """
    files = _test_files(tests)
    lemmas = {instance.lemma for file in files for sentence in read_raganato(file) for instance in sentence.instances}
    firsts = read_first_senses(first_senses) if first_senses is not None else {}
    embedder, tallies, unseen = resolve_embedder(model, device, dtype), Tallies(), 0
    started = state or embedder.model.state_policy
    centroids = sense_centroids(_about(lemmas, _read_training(training), started == "carry"), embedder, state)
    if not centroids:
        raise ValueError(f"{training} shows no lemma of the test sets: is it of the same language and WordNet?")
    for file in files:
        sentences = tqdm(read_raganato(file), desc=file.name, unit=" sentences", disable=None)
        for instance, vectors in instance_vectors(sentences, embedder, state):
            senses, first = centroids.get(instance.lemma), firsts.get(instance.lemma)
            unseen += senses is None
            answers = _by_layer(senses.nearest(vectors) if senses else [first] * embedder.num_layers)
            answers[MOST_FREQUENT] = senses.names[0] if senses else first
            if first_senses is not None:
                answers[FIRST_SENSE] = first
            tallies.add(dict.fromkeys((ALL, _set_of(instance, file))), answers, instance.senses)
    f1, instances = tallies.f1(), tallies.instances()
    if len(f1) == 2:  # ALL is the same as the only set
        f1.pop(ALL)
    num_senses = sum(len(senses.names) for senses in centroids.values())
    return SenseReport(f1, instances, num_senses, unseen, started, embedder.fingerprint())


def wsd(
    data: Sequence[str | Path],
    training: str | Path | None = None,
    first_senses: str | Path | None = None,
    model: Embedder | str | Path | None = None,
    state: StatePolicy | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> SenseReport:
    """`coarse_wsd` of a directory that holds folders of CoarseWSD, `all_words_wsd` of other data.

    ValueError where CoarseWSD comes with other data, or other data without training text.
    """
    if not data:
        raise ValueError("there is nothing to evaluate: name a directory of CoarseWSD, or test sets NAME.data.xml")
    model_options = {"model": model, "state": state, "device": device, "dtype": dtype}
    if any(coarse_wsd_folders(path) for path in data):
        if len(data) > 1 or training is not None or first_senses is not None:
            raise ValueError("a directory of CoarseWSD is evaluated by itself: it brings its own training sentences")
        return coarse_wsd(data[0], **model_options)
    if training is None:
        raise ValueError("test sets of all words need training text: SemCor as XML or JSON lines")
    return all_words_wsd(data, training, first_senses, **model_options)
