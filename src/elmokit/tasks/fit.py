"""From tagged sentences, or files of them, to a trained tagger on disk; and from there to tagged files."""

import copy
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from elmokit.data.readers import Layout, TaggedSentence, read_tagged, write_predictions
from elmokit.io import checkpoint
from elmokit.io.pretrained import Pretrained
from elmokit.tasks.examples import Examples, Lexicon
from elmokit.tasks.settings import FitConfig, TaggerConfig
from elmokit.tasks.trained import TrainedTagger, load_tagger, make_examples
from elmokit.tasks.training import FitReport, fit_examples

__all__ = ["FitConfig", "FitReport", "TaggerConfig", "fit", "fit_files", "load_tagger", "predict_files"]

REPORT = "report.json"
# A file to be tagged is read and tagged so many sentences at a time.
SENTENCES_AT_ONCE = 2000


def fit(
    train: Sequence[TaggedSentence],
    dev: Sequence[TaggedSentence],
    output: str | Path | None = None,
    *,
    test: Sequence[TaggedSentence] | None = None,
    model: Pretrained | str | Path | None = None,
    tagger: TaggerConfig | None = None,
    config: FitConfig | None = None,
    tag_column: str | int | None = None,
    overwrite: bool = False,
) -> tuple[TrainedTagger, FitReport]:
    """Train a tagger on `train`, stop by `dev`, score it on `test`; save it and report.json in the directory `output`.

    `model` is the biLM whose layers it reads: a name or path, the bundled English model if None, or one in memory, kept
    with the tagger. It is left as it is; where the tagger's settings say finetune, a copy is trained.
    """
    tagger, config = tagger or TaggerConfig(), config or FitConfig()
    if output is not None:
        _check_free(Path(output), overwrite)
    for name, sentences in (("training", train), ("development", dev), ("test", test)):
        if sentences is not None:
            _check(name, sentences)
    pretrained = _pretrained(model, tagger)
    lexicon = Lexicon.of(train)

    def examples(sentences: Sequence[TaggedSentence]) -> Examples:
        return make_examples(sentences, lexicon, tagger, pretrained, config.device)

    test_examples = None if test is None else examples(test)
    bilm = None if pretrained is None else pretrained.bilm
    network, report = fit_examples(examples(train), examples(dev), test_examples, bilm, tagger, config)
    trained = TrainedTagger(network, lexicon, pretrained, tag_column)
    if output is not None:
        trained.save(output, _name_of(model), overwrite, {REPORT: report.to_json()})
    return trained, report


def _check_free(output: Path, overwrite: bool) -> None:
    """Whether `output` may be written is asked before the training, not after it."""
    if output.exists() and not overwrite and (output.is_file() or any(output.iterdir())):
        raise FileExistsError(f"{output} exists: remove it, choose another name, or ask to overwrite it")


def _check(name: str, sentences: Sequence[TaggedSentence]) -> None:
    if not any(sentence.words for sentence in sentences):
        raise ValueError(f"the {name} set holds no words: check the file and its format")
    for number, sentence in enumerate(sentences, start=1):
        if len(sentence.words) != len(sentence.tags):
            counts = f"{len(sentence.words)} words and {len(sentence.tags)} tags"
            raise ValueError(f"sentence {number} of the {name} set has {counts}: give one tag for each word")


def _pretrained(model: Pretrained | str | Path | None, tagger: TaggerConfig) -> Pretrained | None:
    if not tagger.elmo:
        return None
    pretrained = model if isinstance(model, Pretrained) else checkpoint.load(model)
    if tagger.finetune:
        pretrained = copy.copy(pretrained)
        pretrained.bilm = copy.deepcopy(pretrained.bilm)
    return pretrained


def _name_of(model: Pretrained | str | Path | None) -> str | None:
    """How a tagger's directory names its biLM: a path in full, so that it holds wherever the tagger is used from."""
    if isinstance(model, Pretrained):
        return None
    if model is None:
        return checkpoint.DEFAULT_MODEL
    return str(Path(model).resolve()) if Path(model).exists() else str(model)


def fit_files(
    train: str | Path,
    dev: str | Path,
    output: str | Path,
    test: str | Path | None = None,
    model: str | Path | None = None,
    *,
    format: str | None = None,
    word_column: int = 0,
    tag_column: str | int | None = None,
    tagger: TaggerConfig | None = None,
    config: FitConfig | None = None,
    overwrite: bool = False,
) -> FitReport:
    """Fit a tagger on files of tagged sentences (see `Layout.of` for their format and columns) and save it."""

    def read(path: str | Path) -> list[TaggedSentence]:
        return list(read_tagged(path, Layout.of(path, format, word_column, tag_column)))

    _, report = fit(
        read(train),
        read(dev),
        output,
        test=None if test is None else read(test),
        model=model,
        tagger=tagger,
        config=config,
        tag_column=tag_column,
        overwrite=overwrite,
    )
    return report


def predict_files(
    tagger: str | Path,
    file: str | Path,
    output: str | Path,
    *,
    model: str | Path | None = None,
    format: str | None = None,
    word_column: int = 0,
    tag_column: str | int | None = None,
    device: str | None = None,
) -> tuple[int, int]:
    """Tag a file with the tagger of a directory, into `output` in the same layout; the numbers of sentences and tokens.

    CoNLL-U gets the tags in the column that the tagger learned (or `tag_column`), other files in a new last column.
    `model` says where the biLM lies now, if it was moved.
    """
    trained = load_tagger(tagger, model, device)
    layout = Layout.of(file, format, word_column, tag_column)
    if layout.conllu and tag_column is None:
        layout = Layout.of(file, "conllu", tag_column=trained.tag_column)

    def predictions() -> Iterator[tuple[str, ...]]:
        sentences = read_tagged(file, layout, with_tags=False)
        while some := list(islice(sentences, SENTENCES_AT_ONCE)):
            yield from trained.predict([sentence.words for sentence in some])

    return write_predictions(file, predictions(), output, layout)
