"""Fine-tuning a pretrained biLM on text of a domain, with held-out perplexities before and after."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from elmokit.checkpoints.loading import load, save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.data.corpus import CorpusReport, check_corpus, find_files
from elmokit.data.text_files import check_language, tokenized_files, tokenizer_of_shard
from elmokit.fs.atomic import write_json
from elmokit.fs.lock import only_one_in
from elmokit.lm.evaluate import evaluate
from elmokit.lm.measures import Measure
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.runtime import own_random_state, pytorch_threads
from elmokit.text.tokenizers import TOKENIZED
from elmokit.text.vocab import Vocab
from elmokit.train.config import FinetuneConfig, PretrainConfig
from elmokit.train.loop import CHECKPOINTS, train
from elmokit.train.pretrain import (
    TEXT,
    check_run_directory,
    corpus_tokenizer,
    note_heldout_in_corpus,
    print_statistics,
    total_steps,
)
from elmokit.train.processes import is_one_of_several
from elmokit.train.snapshots import latest_snapshot, read_snapshot
from elmokit.train.trainer import Trainer
from elmokit.train.vocabulary import FULL_SOFTMAX, WordSample, vocabulary

EVALUATION_ROWS = 32
REPORT = "report.json"


@dataclass(frozen=True)
class Change:
    """Perplexity, or pseudo-perplexity, of a held-out text before and after fine-tuning.

    `percent` is its relative change: of a perplexity, that of the mean of both directions.
    """

    before: Measure
    after: Measure
    percent: float


def _measure_of(changes: dict[str, Change]) -> str:
    """The name of the measure: perplexity or pseudo-perplexity."""
    return next((change.before.measure for change in changes.values()), "perplexity")


@dataclass(frozen=True)
class FinetuneReport:
    """The directory of the fine-tuned model, and by path the change of every held-out text's perplexity."""

    model: Path
    changes: dict[str, Change]

    def __str__(self) -> str:
        """The model's directory, and a table with one row per text."""
        measure = _measure_of(self.changes)
        width = max(map(len, [measure, *self.changes]))
        lines = [f"model: {self.model}"]
        if self.changes:
            lines.append(f"{measure:{width}}{'before':>12}{'after':>12}{'change':>12}{'unknown':>12}")
        for name, change in self.changes.items():
            before, after, unknown = change.before.value, change.after.value, 100 * change.after.unknown_share
            lines.append(f"{name:{width}}{before:12.3f}{after:12.3f}{change.percent:+10.1f} %{unknown:10.1f} %")
        return "\n".join(lines)


def _with_weights(start: Pretrained, bilm: BiLM, softmax: FullSoftmax, vocab: Vocab) -> Pretrained:
    """A model with new weights, but the tokenizer, state policy, mix and warm state of `start`; without its card."""
    return replace(start, bilm=bilm, softmax=softmax, vocab=vocab, card="")


def _trainer(
    settings: PretrainConfig, start: Pretrained, vocab: Vocab, files: list[Path], report: CorpusReport
) -> Trainer:
    """A trainer with the weights of `start`, which trains all of them if it has a softmax, else only a new softmax."""
    trainer = Trainer(settings, start.bilm.config, vocab, files, total_steps(settings, report), report.digest)
    trainer.start_from(start)
    if start.softmax is None:
        trainer.bilm.requires_grad_(False)
    return trainer


def _restore_softmax(trainer: Trainer) -> None:
    """Restore the new softmax that a run which is resumed has started from.

    It is not trained further, even if the settings say longer: the perplexities "before" would be those of another
    model than the one that was fine-tuned.
    """
    directory, epochs = trainer.settings.output, trainer.settings.epochs
    last = latest_snapshot(directory / CHECKPOINTS)
    if last is None:
        raise ValueError(
            f"the checkpoints in {directory} are missing, whose softmax this run has started from: restore them, or "
            "choose another output directory"
        )
    snapshot = read_snapshot(last)
    trainer.restore(snapshot, of_any_cycle=True)
    if (before := snapshot.progress["run"]["epochs"]) != epochs:
        raise ValueError(
            f"the checkpoint in the output directory belongs to another run: softmax_epochs was {before:g}, is "
            f"{epochs:g}. Use the same settings to resume it, or choose another output directory"
        )


def _with_softmax(settings: FinetuneConfig, model: Pretrained, files: list[Path], report: CorpusReport) -> Pretrained:
    """The model itself; or if it has no softmax or `new_vocab` is set, with a new one trained on the corpus."""
    if settings.new_vocab and model.config.num_words is not None:
        raise ValueError("this model reads word ids, so its vocabulary is part of it: leave new_vocab off")
    if settings.new_vocab:
        model = replace(model, softmax=None, vocab=None)
    if model.softmax is not None:
        return model
    run = settings.training(output=settings.output / "softmax", epochs=settings.softmax_epochs, learning_rate=None)
    # A model with word-id input has a single vocabulary for input and output.
    vocab = vocabulary(run, files) if model.config.num_words is None else model.vocab
    if vocab is None:
        raise ValueError("this model reads word ids but has no vocabulary: put its vocab.txt next to the weights")
    trainer = _trainer(run, model, vocab, files, report)
    if latest_snapshot(settings.output / CHECKPOINTS) is None:
        train(trainer, run.output, report, [])
    else:
        _restore_softmax(trainer)
    return _with_weights(model, model.bilm, trainer.softmax, vocab)


def _check_vocabulary(settings: FinetuneConfig, vocab: Vocab, files: list[Path]) -> None:
    """Check the vocabulary on a sample of the corpus, before training."""
    sample, new = WordSample(files), "train a softmax over the words of the corpus with new_vocab"
    sample.warn_of_unknown(vocab, "lower min_count, or add text" if settings.new_vocab else new)
    sample.check_ranks(vocab, "the vocabulary of the model", settings.num_samples, f"{new}, or {FULL_SOFTMAX}")


def _check_report(output: Path) -> None:
    """FileExistsError if there is a report of something else where this run will write its own."""
    if (output / REPORT).exists() and latest_snapshot(output / CHECKPOINTS) is None:
        raise FileExistsError(
            f"{output / REPORT} is there without the checkpoints of its run: restore these, move it, or choose another "
            "directory"
        )


def _changes(settings: FinetuneConfig, before: Pretrained, after: Pretrained, files: list[Path]) -> dict[str, Change]:
    if not files:
        return {}
    options = {"batch_size": EVALUATION_ROWS, "device": str(after.bilm.device)}  # `before` may be on another device
    language = None if all(map(tokenizer_of_shard, files)) else settings.language
    options |= {"tokenize": settings.tokenize, "language": language}
    old, new = (evaluate(files, model, **options).files for model in (before, after))
    return {name: Change(old[name], new[name], 100 * (new[name].value / old[name].value - 1)) for name in old}


def _card(settings: FinetuneConfig, start: Pretrained, report: CorpusReport, changes: dict[str, Change]) -> str:
    lines = [
        "# An ELMo biLM fine-tuned by elmokit",
        "",
        f"- initial model: {settings.model or 'en-small'}",
        f"- corpus: {report.words:,} words, {settings.epochs:g} passes"
        + ("" if settings.max_words is None else f", at most {settings.max_words:,} words"),
        f"- learning rate {settings.learning_rate:g}, batch {settings.batch_size} x {settings.unroll_steps}, "
        f"dropout {settings.dropout:g}, seed {settings.seed}",
    ]
    if changes:
        lines += [
            "",
            f"| held-out text | {_measure_of(changes)} before | after | change | unknown words |",
            "|---|---|---|---|---|",
        ]
    for name, change in changes.items():
        before, after, unknown = change.before.value, change.after.value, 100 * change.after.unknown_share
        lines.append(f"| {Path(name).name} | {before:.2f} | {after:.2f} | {change.percent:+.1f} % | {unknown:.1f} % |")
    if start.card:
        lines += ["", "The card of the initial model follows.", "", start.card.rstrip()]
    return "\n".join(lines) + "\n"


def finetune(settings: FinetuneConfig) -> FinetuneReport:
    """Fine-tune a model on text of a domain, or resume an interrupted run.

    If the model has no softmax, or `new_vocab` is set, a new one over the vocabulary of the corpus is trained first,
    with the biLM frozen; the perplexities "before" are measured with it. The fine-tuned model keeps the tokenizer, mix,
    state policy and warm state of the initial model. Perplexities are exact (full softmax, state carried where there is
    one); of a model that merges the two directions they are pseudo-perplexities.

    Args:
        settings: The model, the text and the optimization; a call with the same settings resumes a run.

    Returns:
        The directory of the model, and the perplexities before and after.

    Raises:
        FileExistsError: The output directory is a file, or its model/ or report.json is something else.
        ValueError: The text or the model is unusable, or they have different tokenizers, the output directory has a
            checkpoint of another run, or the loss diverges at every learning rate.
        FileNotFoundError: The text or the model does not exist.
        KeyboardInterrupt: Interrupted by SIGINT or SIGTERM, after writing a checkpoint.
    """
    check_run_directory(settings.output)
    if is_one_of_several():
        raise ValueError("fine-tuning uses one process: run it without torchrun")
    with only_one_in(settings.output), pytorch_threads(settings.threads), own_random_state():
        _check_report(settings.output)
        files, heldout, others = (find_files(paths) for paths in (settings.corpus, settings.heldout, settings.others))
        if not files:
            raise ValueError("there is no corpus to train on: give at least one file or directory")
        check_language(settings.language, [*files, *heldout, *others])
        note_heldout_in_corpus(files, [*heldout, *others])
        loaded = load(settings.model)
        of_shards = corpus_tokenizer(files)
        loaded.tokenizer = name = loaded.tokenizer or of_shards
        if of_shards not in (None, name, TOKENIZED) and name != TOKENIZED:
            raise ValueError(
                f"`elmokit prepare` has split the corpus with {of_shards}, and the model reads {name}: prepare it with "
                f"--tokenizer {name}, or give the raw text"
            )
        rules = settings.output / TEXT, name, settings.tokenize, settings.language
        texts = (tokenized_files(each, *rules) for each in (files, heldout, others))
        files, tokenized_heldout, tokenized_others = texts
        report = check_corpus(files)
        files = report.in_order(files)
        print_statistics("corpus", report)
        if heldout and others:
            check_corpus(tokenized_heldout)  # which is measured during training, without the others
        if heldout or others:
            print_statistics("held-out text", check_corpus([*tokenized_heldout, *tokenized_others]))
        start = _with_softmax(settings, loaded, files, report)
        assert start.vocab is not None
        _check_vocabulary(settings, start.vocab, files)
        trainer = _trainer(settings.training(), start, start.vocab, files, report)
        train(trainer, settings.output, report, tokenized_heldout)
        tuned = _with_weights(start, trainer.bilm, trainer.softmax, start.vocab)
        changes = _changes(settings, start, tuned, [*heldout, *others])
        tuned.card = _card(settings, loaded, report, changes)
        values = {name: {"measure": change.before.measure, **asdict(change)} for name, change in changes.items()}
        write_json(settings.output / REPORT, values)
        save(tuned, settings.output / "model", overwrite=True)
    return FinetuneReport(settings.output / "model", changes)
