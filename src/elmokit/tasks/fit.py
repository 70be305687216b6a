"""Training a tagger on sentences or files, and tagging files with it."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from elmokit.checkpoints import loading
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.data.readers import Layout, TaggedSentence, read_tagged, write_predictions
from elmokit.data.streams import sentence_batches
from elmokit.tasks.config import ColumnsConfig, FitConfig, TaggerConfig
from elmokit.tasks.data import TaskData, TaskFiles, layout_of
from elmokit.tasks.examples import Examples, TaskVocab
from elmokit.tasks.trained import BATCH_WORDS, TrainedTagger, load_task_model, make_examples
from elmokit.tasks.training import FitReport, fit_examples

__all__ = [
    "ColumnsConfig",
    "FitConfig",
    "FitReport",
    "TaggerConfig",
    "TaskData",
    "TaskFiles",
    "fit",
    "fit_files",
    "load_task_model",
    "predict_files",
]

REPORT = "report.json"


def _check_free(output: Path, overwrite: bool) -> None:
    """FileExistsError if `output` may not be written; checked before training, not after it."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not overwrite:
        raise FileExistsError(f"{output} exists: remove it, choose another name, or set overwrite")
    if not (output / REPORT).is_file():
        raise FileExistsError(f"{output} is not a tagger, so it is not overwritten: choose another name")


def _check_set(name: str, sentences: Sequence[TaggedSentence]) -> None:
    if not any(sentence.words for sentence in sentences):
        raise ValueError(f"the {name} set has no words: check the file and its format")
    for number, sentence in enumerate(sentences, start=1):
        if len(sentence.words) != len(sentence.tags):
            counts = f"{len(sentence.words)} words and {len(sentence.tags)} tags"
            raise ValueError(f"sentence {number} of the {name} set has {counts}: give one tag for each word")


def _check(data: TaskData) -> None:
    for name, sentences in (("training", data.train), ("development", data.dev), ("test", data.test)):
        if sentences is not None:
            _check_set(name, sentences)


def _pretrained(model: loading.ModelSource, tagger: TaggerConfig) -> Pretrained | None:
    if not tagger.elmo:
        if model is not None:
            raise ValueError("a tagger without ELMo has no use for a model: omit the model, or set elmo")
        return None
    pretrained = loading.resolve_model(model)
    return replace(pretrained, bilm=copy.deepcopy(pretrained.bilm)) if tagger.finetune else pretrained


def _name_of(model: loading.ModelSource) -> str | None:
    """The name or path of the biLM to record with the tagger; paths are absolute. None for a model in memory."""
    if isinstance(model, Pretrained):
        return None
    if model is None:
        return loading.DEFAULT_MODEL
    return str(Path(model).resolve()) if Path(model).exists() else str(model)


def fit(
    data: TaskData | TaskFiles,
    output: str | Path | None = None,
    *,
    model: loading.ModelSource = None,
    tagger: TaggerConfig | None = None,
    config: FitConfig | None = None,
    overwrite: bool = False,
) -> tuple[TrainedTagger, FitReport]:
    """Train a tagger, with early stopping on the development set.

    Args:
        data: Training and development sentences, and optionally test sentences to score; or the files with them.
        output: Directory for the tagger and report.json; by default the tagger is not saved.
        model: The biLM: a path or name, as for `elmokit.load`, the bundled English model by default; or a loaded
            model, which is saved with the tagger. It is not modified: with `finetune`, a copy is trained.
        tagger: The input features and the network.
        config: The training.
        overwrite: Replace an existing tagger in `output`.

    Returns:
        The tagger with the weights of its best epoch, and the scores.

    Raises:
        ValueError: A set has no words or lacks tags, or the settings do not fit the model.
        FileNotFoundError: The model does not exist.
        FileExistsError: `output` exists and may not be overwritten.
    """
    tagger, config = tagger or TaggerConfig(), config or FitConfig()
    if output is not None:
        _check_free(Path(output), overwrite)
    data = data.read() if isinstance(data, TaskFiles) else data
    _check(data)
    pretrained = _pretrained(model, tagger)
    vocab = TaskVocab.of(data.train)

    def examples(sentences: Sequence[TaggedSentence]) -> Examples:
        return make_examples(sentences, vocab, tagger, pretrained, config.device)

    test = None if data.test is None else examples(data.test)
    bilm = None if pretrained is None else pretrained.bilm
    network, report = fit_examples(examples(data.train), examples(data.dev), test, bilm, tagger, config)
    trained = TrainedTagger(network, vocab, pretrained, data.tag_column)
    if output is not None:
        trained.save(output, _name_of(model), overwrite, {REPORT: report.to_json()})
    return trained, report


def fit_files(
    files: TaskFiles,
    output: str | Path,
    *,
    model: str | Path | None = None,
    tagger: TaggerConfig | None = None,
    config: FitConfig | None = None,
    overwrite: bool = False,
) -> FitReport:
    """Train a tagger on files of tagged sentences, which are read into memory, and save it.

    Args:
        files: The files and their columns.
        output: Directory for the tagger and report.json.
        model: As in `fit`.
        tagger: As in `fit`.
        config: As in `fit`.
        overwrite: As in `fit`.

    Returns:
        The scores.

    Raises:
        ValueError: As in `fit`, or a file is malformed.
        FileNotFoundError: A file or the model does not exist.
        FileExistsError: As in `fit`.
    """
    _check_free(Path(output), overwrite)
    _, report = fit(files, output, model=model, tagger=tagger, config=config, overwrite=overwrite)
    return report


def _check_output(file: Path, output: Path, overwrite: bool) -> None:
    if output.exists() and (output.is_dir() or output.samefile(file)):
        raise ValueError(f"{output} is {'a directory' if output.is_dir() else 'the input'}: choose another output")
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} exists: remove it, choose another name, or set overwrite")


def _predictions(trained: TrainedTagger, file: str | Path, layout: Layout) -> Iterator[tuple[str, ...]]:
    """Stream the predicted tags of a file's sentences, in order."""
    words = (sentence.words for sentence in read_tagged(file, layout, with_tags=False))
    with tqdm(desc="predict", unit=" sentences", unit_scale=True, disable=None) as progress:
        for sentences in sentence_batches(words, BATCH_WORDS):
            yield from trained.predict(sentences)
            progress.update(len(sentences))


def predict_files(
    tagger: str | Path,
    file: str | Path,
    output: str | Path,
    *,
    model: str | Path | None = None,
    columns: ColumnsConfig | None = None,
    device: str | None = None,
    overwrite: bool = False,
) -> tuple[int, int]:
    """Tag a file, and write it in the same format. The file is streamed.

    Args:
        tagger: Directory of the tagger.
        file: Sentences with one token per line.
        output: File for the tagged sentences. CoNLL-U files get the tags in the column that the tagger was trained on
            (or that of `columns`), other files in a new last column.
        model: The biLM, if it is no longer at the path that the tagger recorded.
        columns: Format and columns of the file.
        device: Device to compute on; a GPU by default if there is one.
        overwrite: Replace `output` if it exists.

    Returns:
        The number of sentences and the number of tokens.

    Raises:
        ValueError: The file is malformed, or `output` is the input or a directory.
        FileNotFoundError: The tagger, its biLM or the file does not exist.
        FileExistsError: `output` exists, and `overwrite` is not set.
    """
    _check_output(Path(file), Path(output), overwrite)
    columns = columns or ColumnsConfig()
    layout = layout_of(file, columns)
    trained = load_task_model(tagger, model, device)
    if layout.conllu and columns.tag_column is None:
        layout = layout_of(file, replace(columns, tag_column=trained.tag_column))
    return write_predictions(file, _predictions(trained, file, layout), output, layout)
