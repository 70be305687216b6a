"""Exact perplexity of a corpus: forward, backward, and their mean; pseudo-perplexity for models that merge the two.

The perplexity of a direction is exp of the mean of -log p over every word and one boundary per sentence (</S> forward,
<S> backward), from the full softmax, with unknown words scored as <UNK>. The mean perplexity is exp of the mean loss of
the two directions, which is their geometric mean. This is the definition of bilm-tf (training.py:955-1044), except that
bilm-tf drops the sentences that do not fill its last batch.

A model whose directions are merged has no perplexity; its pseudo-perplexity (`lm/masked.py`) is another quantity, and
must not be compared with one. Its sentences are read in windows of 1,024 words.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from elmokit.checkpoints.loading import ModelSource
from elmokit.config import BiLMConfig
from elmokit.data.corpus import find_files
from elmokit.data.streams import PackedBatch, assign_rows, scoring_batch, sentence_batches
from elmokit.data.text_files import check_language, file_tokenizers, read_sentences
from elmokit.lm.language_model import (
    BATCH_WORDS,
    MAX_ROWS,
    check_predicts,
    check_rows,
    check_start,
    parts_of,
    resolve_language_model,
    state_of,
)
from elmokit.lm.masked import pseudo_perplexity
from elmokit.lm.measures import Measure, Perplexity, warn_of_unknown
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.inference import prepack
from elmokit.nn.softmax import FullSoftmax
from elmokit.progress import ProgressBar
from elmokit.runtime import check_length
from elmokit.settings import StatePolicy
from elmokit.text.characters import BOS, EOS
from elmokit.text.vocab import Vocab


def target_ids(sentences: Sequence[Sequence[str]], vocab: Vocab) -> torch.Tensor:
    """Vocabulary ids that the positions of a `scoring_batch` predict forward and backward, unpacked, (2, N)."""
    forward = chain.from_iterable((*sentence, EOS) for sentence in sentences)
    backward = chain.from_iterable((BOS, *sentence) for sentence in sentences)
    return torch.from_numpy(vocab.ids(chain(forward, backward)).reshape(2, -1))


def _check_independent(config: BiLMConfig) -> None:
    """ValueError if the directions are merged: each has then seen the words that the other should predict."""
    check_predicts(config)
    if config.sequence_encoder.merges_directions:
        raise ValueError(
            "this model's directions are merged, so it predicts a word from all others of its sentence, not from those "
            "before or after it: its measure is the pseudo-perplexity"
        )


def final_outputs(
    bilm: BiLM,
    vocab: Vocab,
    batch: PackedBatch,
    state: BiLMState | None = None,
    start: BiLMState | None = None,
) -> tuple[torch.Tensor, BiLMState]:
    """Run a biLM on a batch, to predict words from the output of its last layer.

    Args:
        bilm: The model.
        vocab: Its vocabulary.
        batch: A batch from `scoring_batch`.
        state: State of the rows before the batch; None: zeros.
        start: State of one row from which sentences start where the batch resets them; None: zeros.

    Returns:
        The input of the softmax of each direction, (2, N, D), unpacked; and the state of the rows after the batch.
    """
    _check_independent(bilm.config)
    words = bilm.word_vectors(batch.words, vocab)
    layers, after = bilm.run(words, batch.tokens.to(bilm.device), batch.text.packing, state, start)
    return torch.stack(batch.text.unpack(layers[-1]).chunk(2, dim=1)), after


@torch.no_grad()
def log_losses(
    bilm: BiLM,
    softmax: FullSoftmax,
    vocab: Vocab,
    sentences: Iterable[Sequence[str]],
    state: str | None = None,
    batch_size: int = 1,
    start: BiLMState | None = None,
    check: Callable[[], None] | None = None,
    batch_words: int | None = None,
) -> Iterator[tuple[list[Sequence[str]], torch.Tensor, torch.Tensor]]:
    """Compute the loss of every word, batch by batch.

    Args:
        bilm: The model.
        softmax: Its softmax.
        vocab: Its vocabulary.
        sentences: Tokenized sentences.
        state: Initial state of a sentence: "zeros"; "warm", that is, `start`; or "carry", where sentence i starts from
            the final state of sentence i - `batch_size`. None: "carry" if the model carries state, else "zeros".
        batch_size: Number of rows with carried state; otherwise it has no effect.
        start: State of one row, for "warm".
        check: Called before each batch; an exception that it raises ends the computation.
        batch_words: Size of a batch in words and boundaries; None: `BATCH_WORDS`. Losses do not depend on it.

    Yields:
        Batches of sentences, with their targets (2, N) and losses -log p in nats (2, N), in the order of the text.

    Raises:
        ValueError: An argument is invalid, the model cannot predict words, or a sentence is too long.
    """
    _check_independent(bilm.config)
    state = state_of(bilm.config, state)
    if state == "warm" and start is None:
        raise ValueError("state='warm' needs a model with a warm state: use state='zeros'")
    check_rows(batch_size)
    start = start if state == "warm" else None
    prepacked, count = prepack(bilm, None), 0
    carried = bilm.initial_state(batch_size) if state == "carry" else None
    for batch in sentence_batches(sentences, batch_words or BATCH_WORDS):
        check_length(max(map(len, batch)), "a sentence")
        if check is not None:
            check()
        targets = target_ids(batch, vocab)
        if carried is not None:
            rows = np.arange(count, count + len(batch)) % batch_size
            packed = scoring_batch(batch, rows, batch_size, reset=False)
        else:
            num_rows = min(MAX_ROWS, len(batch))
            rows = assign_rows([len(sentence) + 1 for sentence in batch], num_rows)
            packed = scoring_batch(batch, rows, num_rows, reset=True)
        outputs, after = final_outputs(prepacked, vocab, packed, carried, start)
        carried = None if carried is None else after
        pairs = zip(outputs.to(softmax.weight.dtype), targets.to(outputs.device), strict=True)  # of each direction
        losses = torch.stack([softmax.log_losses(*pair) for pair in pairs])
        count += len(batch)
        yield batch, targets, losses


def perplexity(
    bilm: BiLM,
    softmax: FullSoftmax,
    vocab: Vocab,
    sentences: Iterable[Sequence[str]],
    state: str | None = None,
    batch_size: int = 1,
    start: BiLMState | None = None,
    check: Callable[[], None] | None = None,
) -> Perplexity:
    """Perplexity of tokenized sentences; arguments and errors as in `log_losses`."""
    sums, count, predictions, unknown, truncated = np.zeros(2), 0, 0, 0, 0
    for batch, targets, losses in log_losses(bilm, softmax, vocab, sentences, state, batch_size, start, check):
        sums += losses.double().sum(dim=1).cpu().numpy()
        count, predictions = count + len(batch), predictions + targets.shape[1]
        unknown += int((targets[0] == vocab.unk).sum())
        truncated += sum(map(bilm.token_encoder.count_truncated, batch))
    if not predictions:
        raise ValueError("there is no sentence to evaluate: the text is empty")
    return Perplexity.of(sums, count, predictions, unknown, truncated)


def measure(
    bilm: BiLM,
    softmax: FullSoftmax,
    vocab: Vocab,
    sentences: Iterable[Sequence[str]],
    state: str | None = None,
    batch_size: int = 1,
    start: BiLMState | None = None,
    check: Callable[[], None] | None = None,
) -> Measure:
    """The perplexity of tokenized sentences, or the pseudo-perplexity where directions are merged; see `log_losses`."""
    check_predicts(bilm.config)
    if bilm.config.sequence_encoder.merges_directions:
        state_of(bilm.config, state)
        return pseudo_perplexity(bilm, softmax, vocab, sentences, check)
    return perplexity(bilm, softmax, vocab, sentences, state, batch_size, start, check)


# --- Files ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation:
    """Perplexity of each file, by path (numbered if the file is repeated), and of all files together.

    It is the pseudo-perplexity where the model merges the two directions; `measure` says which.
    """

    files: dict[str, Measure]
    total: Measure

    @property
    def measure(self) -> str:
        """The name of the measure: perplexity or pseudo-perplexity."""
        return self.total.measure

    def __str__(self) -> str:
        """A table with one row per file, and one for the total if there are several."""
        rows = self.files if len(self.files) == 1 else {**self.files, "all": self.total}
        width = max(map(len, [self.measure, *rows]))
        columns = [field.name for field in fields(type(self.total))]
        widths = [max(13, len(column) + 2) for column in columns]
        lines = [f"{self.measure:{width}}" + "".join(map(str.rjust, columns, widths))]
        for name, row in rows.items():
            values = asdict(row) | {"unknown": f"{row.unknown_share:.1%}"}
            cells = (f"{value:.3f}" if isinstance(value, float) else str(value) for value in values.values())
            lines.append(f"{name:{width}}" + "".join(map(str.rjust, cells, widths)))
        return "\n".join(lines)


def evaluate(
    files: Sequence[str | Path],
    model: ModelSource = None,
    *,
    state: StatePolicy | None = None,
    batch_size: int = 1,
    device: str | None = None,
    tokenize: bool = True,
    language: str | None = None,
) -> Evaluation:
    """Compute the perplexity of text files; of a model whose directions are merged, their pseudo-perplexity.

    Args:
        files: Text (plain, .gz or .zst), or directories of such files. Raw lines are split into sentences and words;
            lines that `elmokit prepare` wrote, and all lines with tokenize=False, are tokenized sentences.
        model: A loaded model, or a path or name as for `elmokit.load`; None: the bundled English model.
        state: Initial state of a sentence: "zeros", "warm", or "carry", where sentence i of a file starts from the
            final state of sentence i - `batch_size`. None: "carry" if the model carries state, else "zeros".
        batch_size: Number of rows with carried state; otherwise it has no effect.
        device: Device to compute on; None: that of a loaded model, else a GPU if there is one.
        tokenize: Split raw text with the model's tokenizer; else at white space, with one sentence per line.
        language: Code of the language whose rules split raw lines into sentences; None: the tokenizer's own.

    Returns:
        The perplexities or pseudo-perplexities; for the latter, a sentence of more than 1,024 words is read in windows
        of at most that length, and a word is predicted from the others of its window.

    Warns:
        UserWarning: Text that is read as raw looks tokenized, or the reverse; many words are unknown; or a file has no
            sentence, and is left out.

    Raises:
        ValueError: The model has no softmax or vocabulary, or no such state, an argument is invalid, or no file has a
            sentence.
        FileNotFoundError: A file does not exist.
    """
    if not files:
        raise ValueError("there is no file to evaluate: give at least one")
    paths = find_files(files)
    check_language(language, paths)
    pretrained = resolve_language_model(model, device)
    bilm, softmax, vocab = parts_of(pretrained)
    check_start(pretrained, state, batch_size)
    tokenizers = file_tokenizers(paths, pretrained.tokenizer, tokenize, language)
    results, empty = {}, []
    for number, (file, tokenizer) in enumerate(zip(paths, tokenizers, strict=True)):
        name = f"{file} ({paths[:number].count(file) + 1})" if file in paths[:number] else str(file)
        sentences, label = read_sentences(file, tokenizer), f"evaluate {file.name}"
        if (first := next(sentences, None)) is None:  # such as a shard of a small corpus
            empty.append(file)
            continue
        progress = ProgressBar(chain([first], sentences), label, unit=" sentences", unit_scale=True)
        try:
            results[name] = measure(bilm, softmax, vocab, progress, state, batch_size, pretrained.warm_state)
        except ValueError as error:
            if str(error).startswith(str(file)):
                raise
            raise ValueError(f"{file}: {error}") from error
        warn_of_unknown(results[name].unknown_share, file, measure=results[name].measure)
    if not results:
        raise ValueError(f"{', '.join(map(str, empty))}: there is no sentence to evaluate")
    if empty:
        warnings.warn(f"{', '.join(map(str, empty))} has no sentences, and is left out", stacklevel=2)
    files_measured = list(results.values())
    return Evaluation(results, type(files_measured[0]).total(files_measured))
