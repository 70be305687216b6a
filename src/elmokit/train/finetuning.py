"""Fine-tuning a biLM on text of a domain, with held-out perplexities before and after."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

from elmokit.checkpoints import Pretrained, load, save
from elmokit.data import TextFile
from elmokit.embed import Embedder, fit_text_map
from elmokit.fs import directory_lock, read_lines, write_lines
from elmokit.lm import Perplexity, evaluate
from elmokit.runtime import fork_rng, pytorch_threads
from elmokit.text import TOKENIZED
from elmokit.train.config import FinetuneConfig
from elmokit.train.loop import CHECKPOINTS, train
from elmokit.train.optim import MODERN
from elmokit.train.pretraining import (
    MODEL,
    Text,
    check_output_of,
    language_of,
    read_texts,
    run_identity,
    total_steps,
    vocabulary,
)
from elmokit.train.teaching import TextTeaching, TextVectors
from elmokit.train.trainer import Trainer

FIRST_TEXTS = 20_000  # from which the map begins that is trained further
REPORT = "report.json"


@dataclass(frozen=True)
class Change:
    """Perplexity, or pseudo-perplexity, of a held-out text before and after fine-tuning."""

    before: Perplexity
    after: Perplexity

    @property
    def percent(self) -> float:
        """The relative change of the value."""
        return 100 * (self.after.value / self.before.value - 1)


@dataclass(frozen=True)
class FinetuneReport:
    """The directory of the model, and the change of each held-out text's perplexity, by path."""

    model: Path
    changes: dict[str, Change]

    def __str__(self) -> str:
        """The model's directory, and a table with one row per text."""
        return "\n".join([f"model: {self.model}", *_table(self.changes)])


def _table(changes: dict[str, Change]) -> list[str]:
    """The lines of a table with one row per text, which is also one in Markdown."""
    if not changes:
        return []
    (measure,) = {change.before.measure for change in changes.values()}
    width = max(map(len, changes))
    lines = [f"| {measure:{width}} | before | after | change | unknown words |", "|---" * 5 + "|"]
    for name, change in changes.items():
        before, after = change.before.value, change.after.value
        unknown = 100 * change.after.unknown_share
        lines.append(
            f"| {name:{width}} | {before:.2f} | {after:.2f} | {change.percent:+.1f} % | "
            f"{unknown:.1f} % |"
        )
    return lines


def _trained(
    settings: FinetuneConfig, start: Pretrained, text: Text, heldout: list[Path]
) -> Pretrained:
    """Train all weights of the model `start` if it has a softmax, else only a new softmax.

    It has the tokenizer, state policy, mix and warm state of `start`, and a text map if it was
    taught vectors.
    """
    vocab, steps = vocabulary(settings, text.files, start.vocab), total_steps(settings, text.report)
    text_map, objective, digest = None, None, None
    if settings.vectors is not None and start.softmax is not None:
        if start.config.sequence_encoder.merges_directions:
            raise ValueError("vectors are taught to a model whose directions are independent")
        vectors = TextVectors(text.files, settings.vectors)
        sentences = chain.from_iterable(map(read_lines, text.files))
        first = list(islice(filter(None, map(str.split, sentences)), FIRST_TEXTS))
        embedder = Embedder(start, settings.device)
        text_map = fit_text_map(embedder, first, vectors.find(first).numpy())
        objective = partial(TextTeaching, vectors=vectors, text_map=text_map)
        digest = vectors.digest
    trainer = Trainer(settings, start.config, vocab, text.files, steps, objective=objective)
    trainer.start_from(start)
    if start.softmax is None:
        trainer.bilm.requires_grad_(False)
    identity = run_identity(trainer, text, start) | {"vectors": digest}
    train(trainer, settings.output, identity, text.report, heldout)
    return replace(
        start, bilm=trainer.bilm, softmax=trainer.softmax, vocab=vocab, text_map=text_map, card=""
    )


def _with_softmax(settings: FinetuneConfig, model: Pretrained, text: Text) -> Pretrained:
    """The model; if it has no softmax or `new_vocab` is set, with one trained on the corpus."""
    # Where it reads word ids, input and output have the same vocabulary.
    reads_words = model.config.num_words is not None
    if settings.new_vocab and reads_words:
        raise ValueError(
            "this model reads word ids, so its vocabulary is part of it: leave new_vocab off"
        )
    if reads_words and model.vocab is None:
        raise ValueError(
            "this model reads word ids but has no vocabulary: put its vocab.txt next to the weights"
        )
    if model.softmax is not None and not settings.new_vocab:
        return model
    run = replace(
        settings,
        output=settings.output / "softmax",
        epochs=settings.softmax_epochs,
        learning_rate=MODERN.learning_rate,
    )
    headless = replace(model, softmax=None, vocab=model.vocab if reads_words else None)
    return _trained(run, headless, text, [])


def _changes(before: Pretrained, after: Pretrained, files: dict[str, Path]) -> dict[str, Change]:
    """The change of each text; `files` are tokenized, by their names in the report."""
    if not files:
        return {}
    device = str(after.bilm.device)  # `before` may be on another one
    old = evaluate([*files.values()], before, tokenize=False, device=device).files
    new = evaluate([*files.values()], after, tokenize=False, device=device).files
    return {
        name: Change(old[str(file)], new[str(file)])
        for name, file in files.items()
        if str(file) in old  # it has sentences
    }


def _card(
    settings: FinetuneConfig, start: Pretrained, words: int, changes: dict[str, Change]
) -> str:
    limit = "" if settings.max_words is None else f", at most {settings.max_words:,} words"
    lines = [
        "# An ELMo biLM fine-tuned by elmokit",
        "",
        f"- initial model: {settings.model or 'en-small'}",
        f"- corpus: {words:,} words, {settings.epochs:g} passes{limit}",
        f"- learning rate {settings.learning_rate:g}, batch {settings.batch_size} x "
        f"{settings.unroll_steps}, dropout {settings.dropout:g}, seed {settings.seed}",
        "",
        *_table({Path(name).name: change for name, change in changes.items()}),
    ]
    if start.card:
        lines += ["", "The card of the initial model follows.", "", start.card.rstrip()]
    return "\n".join(lines) + "\n"


def finetune(settings: FinetuneConfig) -> FinetuneReport:
    """Fine-tune a model on text of a domain, or resume an interrupted run.

    If the model has no softmax, or `new_vocab` is set, a new one over the vocabulary of the corpus
    is trained first, with the biLM frozen; the perplexities "before" are measured with it. The
    fine-tuned model keeps the tokenizer, mix, state policy and warm state of the initial model.
    Perplexities are exact (full softmax, state carried where there is one); of a model that merges
    the two directions they are pseudo-perplexities.

    Args:
        settings: The model, the text and the optimization; a call with the same settings resumes a
            run.

    Returns:
        The directory of the model, and the perplexities before and after.

    Raises:
        FileExistsError: The model/ of the output directory holds something else.
        ValueError: The text or the model is unusable, or they have different tokenizers, the output
            directory has a checkpoint of another run, or the loss diverges at every learning rate.
        FileNotFoundError: The text or the model does not exist.
        KeyboardInterrupt: Interrupted by SIGINT or SIGTERM, after writing a checkpoint.
    """
    check_output_of(settings, settings.model, *settings.others)
    with (
        directory_lock(settings.output / CHECKPOINTS),
        pytorch_threads(settings.threads),
        fork_rng(),
    ):
        loaded = load(settings.model)
        of_shards = TextFile.prepared(settings.corpus).get("tokenizer")
        loaded.tokenizer = name = loaded.tokenizer or of_shards
        if of_shards not in (None, name, TOKENIZED) and name != TOKENIZED:
            raise ValueError(
                f"`elmokit prepare` has split the corpus with {of_shards}, and the model reads "
                f"{name}: prepare it with --tokenizer {name}, or give the raw text"
            )
        loaded.language = language_of(settings, name, loaded.language)
        text = read_texts(
            settings, name, loaded.language, settings.others, settings.vectors is not None
        )
        start = _with_softmax(settings, loaded, text)
        heldout, others = TextFile.find(settings.heldout), TextFile.find(settings.others)
        tuned = _trained(settings, start, text, text.heldout[: len(heldout)])
        changes = _changes(
            start, tuned, dict(zip(map(str, [*heldout, *others]), text.heldout, strict=True))
        )
        tuned.card = _card(settings, loaded, text.report.words, changes)
        values = {
            name: {
                "before": change.before.to_json(),
                "after": change.after.to_json(),
                "percent": change.percent,
            }
            for name, change in changes.items()
        }
        write_lines(settings.output / REPORT, [json.dumps(values, indent=1)])
        save(tuned, settings.output / MODEL, overwrite=True)
    return FinetuneReport(settings.output / MODEL, changes)
