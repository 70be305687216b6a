"""From tagged sentences, or files of them, to a trained tagger on disk; and from there to tagged files."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from elmokit.checkpoints import loading
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.data.readers import Layout, TaggedSentence, read_tagged, write_predictions
from elmokit.data.streams import blocks_of
from elmokit.tasks.config import Columns, FitConfig, TaggerConfig
from elmokit.tasks.data import TaskData, TaskFiles, layout_of
from elmokit.tasks.examples import Examples, Lexicon
from elmokit.tasks.trained import WORDS_AT_ONCE, TrainedTagger, load_task_model, make_examples
from elmokit.tasks.training import FitReport, fit_examples

__all__ = [
    "Columns",
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
    """Whether `output` may be written is asked before the training, not after it."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not overwrite:
        raise FileExistsError(f"{output} exists: remove it, choose another name, or ask to overwrite it")
    if not (output / REPORT).is_file():
        raise FileExistsError(f"{output} holds no tagger, so it is not overwritten: choose another name")


def _check_set(name: str, sentences: Sequence[TaggedSentence]) -> None:
    if not any(sentence.words for sentence in sentences):
        raise ValueError(f"the {name} set holds no words: check the file and its format")
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
            raise ValueError("a tagger without ELMo reads no model: leave the model out, or switch elmo on")
        return None
    pretrained = loading.resolve_model(model)
    return replace(pretrained, bilm=copy.deepcopy(pretrained.bilm)) if tagger.finetune else pretrained


def _name_of(model: loading.ModelSource) -> str | None:
    """How a tagger's directory names its biLM: a path in full, so that it holds wherever the tagger is used from."""
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
    """Train a tagger on the biLM's layers; equal data and settings give equal taggers.

    Args:
        data: Tagged sentences, or the files that hold them: `train` is learned, `dev` decides when to stop, `test` is
            scored at the end.
        output: Directory to save the tagger in, with report.json.
        model: The biLM whose layers the tagger reads: a loaded model, which is saved with the tagger, or whatever
            `elmokit.load` takes, which is found again by its name. It is not changed: `tagger.finetune` trains a copy.
        tagger: The network.
        config: How it is trained.
        overwrite: Replace a tagger in `output`.

    Returns:
        The tagger, and its scores and losses.

    Raises:
        ValueError: The data or the settings make no sense.
        FileExistsError: `output` exists.
    """
    tagger, config = tagger or TaggerConfig(), config or FitConfig()
    if output is not None:
        _check_free(Path(output), overwrite)
    data = data.read() if isinstance(data, TaskFiles) else data
    _check(data)
    pretrained = _pretrained(model, tagger)
    lexicon = Lexicon.of(data.train)

    def examples(sentences: Sequence[TaggedSentence]) -> Examples:
        return make_examples(sentences, lexicon, tagger, pretrained, config.device)

    test = None if data.test is None else examples(data.test)
    bilm = None if pretrained is None else pretrained.bilm
    network, report = fit_examples(examples(data.train), examples(data.dev), test, bilm, tagger, config)
    trained = TrainedTagger(network, lexicon, pretrained, data.tag_column)
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
    """Fit a tagger on files of tagged sentences, which are read into memory, and save it."""
    _check_free(Path(output), overwrite)
    _, report = fit(files, output, model=model, tagger=tagger, config=config, overwrite=overwrite)
    return report


def _check_output(file: Path, output: Path, overwrite: bool) -> None:
    if output.exists() and (output.is_dir() or output.samefile(file)):
        raise ValueError(f"{output} is {'a directory' if output.is_dir() else 'the input'}: choose another output")
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output} exists: remove it, choose another name, or ask to overwrite it")


def _predictions(trained: TrainedTagger, file: str | Path, layout: Layout) -> Iterator[tuple[str, ...]]:
    """The tags of a file's sentences, in order; a part of the file is in memory at a time."""
    words = (sentence.words for sentence in read_tagged(file, layout, with_tags=False))
    with tqdm(desc="predict", unit=" sentences", unit_scale=True, disable=None) as progress:
        for sentences in blocks_of(words, WORDS_AT_ONCE):
            yield from trained.predict(sentences)
            progress.update(len(sentences))


def predict_files(
    tagger: str | Path,
    file: str | Path,
    output: str | Path,
    *,
    model: str | Path | None = None,
    columns: Columns | None = None,
    device: str | None = None,
    overwrite: bool = False,
) -> tuple[int, int]:
    """Tag a file with the tagger of a directory, into `output` in the same layout; the numbers of sentences and tokens.

    CoNLL-U gets the tags in the column that the tagger learned (or that of `columns`), other files in a new last
    column. `model` says where the biLM lies now, if it was moved. FileExistsError for an output that is there already,
    unless `overwrite` says to replace it.
    """
    _check_output(Path(file), Path(output), overwrite)
    columns = columns or Columns()
    layout = layout_of(file, columns)
    trained = load_task_model(tagger, model, device)
    if layout.conllu and columns.tag_column is None:
        layout = layout_of(file, replace(columns, tag_column=trained.tag_column))
    return write_predictions(file, _predictions(trained, file, layout), output, layout)
