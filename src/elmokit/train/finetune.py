"""Going on with the training of a loaded biLM on text of a domain, with held-out perplexities before and after."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch

from elmokit.data.corpus import CorpusReport, check_corpus, find_files
from elmokit.files import atomic_path, only_one_in
from elmokit.io.checkpoint import load, save
from elmokit.io.pretrained import Pretrained, fingerprint
from elmokit.lm.evaluate import Perplexity, evaluate_files
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab
from elmokit.train.pretrain import _corpus_tokenizer, _total_steps, _train, _vocabulary
from elmokit.train.settings import PretrainSettings
from elmokit.train.trainer import Trainer

EVALUATION_ROWS = 32


@dataclass(frozen=True)
class FinetuneSettings:
    """Which model to go on with, on what text, and how."""

    corpus: tuple[Path, ...]
    """Text of the domain, tokenized as the model's training text was, one sentence a line: files, or directories as
    `elmokit prepare` writes them."""
    output: Path
    """Directory of the run: log.jsonl, checkpoints/, and at the end model/ and report.json. The same command resumes a
    stopped run. Where the model has no softmax, the fitting of a new one is a run in softmax/."""
    model: str | None = None
    """Directory or name of the model to begin with; the bundled English model when not given."""
    heldout: tuple[Path, ...] = ()
    """Text of the domain that is never trained on, for the perplexity before, while and after training."""
    others: tuple[Path, ...] = ()
    """Text of other domains, for the perplexity before and after."""
    epochs: float = 2.0
    """Passes over the corpus."""
    softmax_epochs: float = 1.0
    """Passes in which a new softmax is fitted first, all else frozen."""
    max_words: int | None = None
    """Stop after so many words, if the passes are not over before."""
    vocab_size: int = 50_000
    """Size of the vocabulary of a new softmax, which is made from the corpus."""
    min_count: int = 2
    """Minimum count of a word of that vocabulary."""
    batch_size: int = 32
    """Rows of the packed stream."""
    unroll_steps: int = 20
    """Steps of a window: the state runs on from window to window, the gradient does not."""
    num_samples: int = 8192
    """Negative words of the sampled softmax in each direction and step; 0 for the full softmax."""
    learning_rate: float = 0.0005
    """Highest rate of the fine-tuning; a new softmax is fitted at 0.002."""
    dropout: float = 0.1
    """On the input of every layer and on the last output."""
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    """Precision of matrix products; auto is bfloat16 where the hardware multiplies it. Weights stay in float32."""
    device: str | None = None
    """cpu, cuda or cuda:N; the best there is when not given."""
    threads: int | None = None
    """CPU threads; torch's default when not given."""
    seed: int = 0
    """Seed of the order of sentences, the dropout, the samples and a new softmax."""
    log_every: int = 20
    """Steps between lines of the log."""
    evaluate_every: int = 500
    """Steps between held-out perplexities."""
    evaluate_words: int = 20_000
    """Words of the held-out text used while training; all of them before and after."""
    checkpoint_every: int = 200
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Checkpoints kept."""

    def __post_init__(self) -> None:
        if self.softmax_epochs <= 0:
            raise ValueError(f"softmax_epochs must be above 0, not {self.softmax_epochs}")
        self.training()  # refuses what makes no sense there

    def training(self, **changes: Any) -> PretrainSettings:
        """The run as one of pretraining, whose loop it is."""
        shared = {field.name for field in fields(self)} & {field.name for field in fields(PretrainSettings)}
        return PretrainSettings(**{name: getattr(self, name) for name in shared} | changes)


@dataclass(frozen=True)
class Change:
    """What fine-tuning did to a held-out text; `percent` is the change of the mean perplexity."""

    before: Perplexity
    after: Perplexity
    percent: float


@dataclass(frozen=True)
class FinetuneReport:
    """Where the model is, and the change of every held-out text by its path."""

    model: Path
    changes: dict[str, Change]


def _like(start: Pretrained, bilm: BiLM, softmax: FullSoftmax, vocab: Vocab) -> Pretrained:
    """Other weights with all that `start` says about itself but its card."""
    return Pretrained(
        bilm, softmax=softmax, vocab=vocab, tokenizer=start.tokenizer, state_policy=start.state_policy, mix=start.mix,
        warm_state=start.warm_state,
    )  # fmt: skip


def _fit(
    settings: PretrainSettings,
    start: Pretrained,
    vocab: Vocab,
    files: list[Path],
    report: CorpusReport,
    heldout: list[Path],
) -> Trainer:
    """Train from the weights of `start`: all of them where it has a softmax, a new softmax alone where it has none."""
    trainer = Trainer(settings, start.bilm.config, vocab, files, _total_steps(settings, report), report.digest)
    trainer.identity["start"] = fingerprint(start)
    trainer.bilm.load_state_dict(start.bilm.state_dict())
    if start.softmax is None:
        trainer.bilm.requires_grad_(False)
    else:
        trainer.softmax.load_state_dict(start.softmax.state_dict())
    _train(trainer, report, heldout)
    return trainer


def _with_softmax(settings: FinetuneSettings, model: Pretrained, files: list[Path], report: CorpusReport) -> Pretrained:
    """The model as it is, or with a softmax fitted to the corpus where it has none."""
    if model.softmax is not None:
        return model
    run = settings.training(output=settings.output / "softmax", epochs=settings.softmax_epochs, learning_rate=None)
    # A model of word ids has one vocabulary for what it reads and what it predicts.
    vocab = _vocabulary(run, files) if model.bilm.config.char_cnn is not None else model.vocab
    if vocab is None:
        raise ValueError("this model reads word ids, but has no vocabulary: put its vocab.txt beside the weights")
    return _like(model, model.bilm, _fit(run, model, vocab, files, report, []).softmax, vocab)


def _changes(before: Pretrained, after: Pretrained, files: list[Path], device: str | None) -> dict[str, Change]:
    if not files:
        return {}
    old, new = (evaluate_files(files, model, "carry", EVALUATION_ROWS, device).files for model in (before, after))
    return {name: Change(old[name], new[name], 100 * (new[name].mean / old[name].mean - 1)) for name in old}


def _card(settings: FinetuneSettings, start: Pretrained, report: CorpusReport, changes: dict[str, Change]) -> str:
    lines = [
        "# An ELMo biLM fine-tuned by elmokit",
        "",
        f"- began with: {settings.model or 'en-small'}",
        f"- corpus: {report.words:,} words, {settings.epochs:g} passes"
        + ("" if settings.max_words is None else f", at most {settings.max_words:,} words"),
        f"- learning rate {settings.learning_rate:g}, batch {settings.batch_size} x {settings.unroll_steps}, "
        f"dropout {settings.dropout:g}, seed {settings.seed}",
    ]
    if changes:
        lines += ["", "| held-out text | perplexity before | after | change |", "|---|---|---|---|"]
    for name, change in changes.items():
        before, after = change.before.mean, change.after.mean
        lines.append(f"| {Path(name).name} | {before:.2f} | {after:.2f} | {change.percent:+.1f} % |")
    if start.card:
        lines += ["", "What follows is the card of the model it began with.", "", start.card.rstrip()]
    return "\n".join(lines) + "\n"


def _write_report(path: Path, changes: dict[str, Change]) -> None:
    values = {name: asdict(change) for name, change in changes.items()}
    with atomic_path(path) as partial:
        partial.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def finetune(settings: FinetuneSettings) -> FinetuneReport:
    """Fine-tune, or go on fine-tuning, a model as `settings` say. Perplexities are exact, with the state carried.

    A model without a softmax gets one first, over a vocabulary of the corpus, fitted with the biLM frozen; "before" is
    then measured with it. Tokenizer, mix, state policy and warm state are those of the model it began with.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    with only_one_in(settings.output):
        files, heldout, others = (find_files(paths) for paths in (settings.corpus, settings.heldout, settings.others))
        if not files:
            raise ValueError("there is no corpus to train on: name files or directories")
        report = check_corpus(files)
        check_corpus([*heldout, *others])
        loaded = load(settings.model)
        start = _with_softmax(settings, loaded, files, report)
        assert start.vocab is not None
        trainer = _fit(settings.training(), start, start.vocab, files, report, heldout)
        tuned = _like(start, trainer.bilm, trainer.softmax, start.vocab)
        tuned.tokenizer = start.tokenizer or _corpus_tokenizer(settings.corpus)
        changes = _changes(start, tuned, [*heldout, *others], settings.device)
        tuned.card = _card(settings, loaded, report, changes)
        _write_report(settings.output / "report.json", changes)
        save(tuned, settings.output / "model", overwrite=True)
    return FinetuneReport(settings.output / "model", changes)
