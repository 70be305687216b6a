"""The exact perplexity of a text, or the pseudo-perplexity, for a model that merges the two
directions.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import reduce
from itertools import chain
from operator import add
from pathlib import Path

from elmokit.checkpoints import ModelSource, Pretrained
from elmokit.data import check_language, file_tokenizers, find_files, read_sentences
from elmokit.lm.losses import log_losses, parts_of, resolve_language_model
from elmokit.lm.measures import Measure, Perplexity, PseudoPerplexity, warn_of_unknown
from elmokit.progress import ProgressBar
from elmokit.settings import StatePolicy

ROWS = 32  # in which state is carried, as in training, whose evaluations give the same figures


def measure(
    model: Pretrained,
    sentences: Iterable[Sequence[str]],
    state: str | None = None,
    batch_size: int = ROWS,
) -> Measure:
    """The perplexity of tokenized sentences, or the pseudo-perplexity where directions are merged;
    see `log_losses`.

    Raises:
        ValueError: There is nothing to predict; and as `log_losses`.
    """
    bilm, _, vocab = parts_of(model)
    kind = PseudoPerplexity if model.config.sequence_encoder.merges_directions else Perplexity
    batches = [
        kind.of(
            losses.double().sum(dim=1).cpu().numpy(),
            sentences=len(batch),
            predictions=targets.shape[1],
            unknown=int((targets[0] == vocab.unk).sum()),
            truncated=sum(map(bilm.token_encoder.count_truncated, batch)),
        )
        for batch, targets, losses in log_losses(model, sentences, state, batch_size)
    ]
    if not any(batch.predictions for batch in batches):
        raise ValueError("there is no word to evaluate: the text is empty")
    return reduce(add, batches)


# --- Files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation:
    """Perplexity of each file, by path, and of all files together.

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
            cells = (
                f"{value:.3f}" if isinstance(value, float) else str(value)
                for value in values.values()
            )
            lines.append(f"{name:{width}}" + "".join(map(str.rjust, cells, widths)))
        return "\n".join(lines)


def evaluate(
    files: Sequence[str | Path],
    model: ModelSource = None,
    *,
    state: StatePolicy | None = None,
    batch_size: int = ROWS,
    device: str | None = None,
    tokenize: bool = True,
    language: str | None = None,
) -> Evaluation:
    """Compute the perplexity of text files; of a model whose directions are merged, their
    pseudo-perplexity.

    Args:
        files: Text (plain, .gz or .zst), or directories of such files. Raw lines are split into
            sentences and words; lines that `elmokit prepare` wrote, and all lines with
            tokenize=False, are tokenized sentences.
        model: A loaded model, or a path or name as for `elmokit.load`; None: the bundled English
            model.
        state: Initial state of a sentence: "zeros", "warm", or "carry", where sentence i of a file
            starts from the final state of sentence i - `batch_size`. None: "carry" if the model
            carries state, else "zeros".
        batch_size: Number of rows with carried state; otherwise it has no effect.
        device: Device to compute on; None: that of a loaded model, else a GPU if there is one.
        tokenize: Split raw text with the model's tokenizer; else at white space, with one sentence
            per line.
        language: Code of the language whose rules split raw lines into sentences; None: the
            model's.

    Returns:
        The perplexities or pseudo-perplexities; for the latter, a sentence of more than 1,024 words
        is read in windows of at most that length, and a word is predicted from the others of its
        window.

    Warns:
        UserWarning: Text that is read as raw looks tokenized, or the reverse; many words are
        unknown; or a file has no
            sentence, and is left out.

    Raises:
        ValueError: The model has no softmax or vocabulary, or no such state, an argument is
            invalid, or no file has a sentence.
        FileNotFoundError: A file does not exist.
    """
    paths = find_files(files)
    check_language(language, paths)
    pretrained = resolve_language_model(model, device)
    parts_of(pretrained)
    pretrained.start(state or "zeros")  # errors come before the text is read
    tokenizers = file_tokenizers(
        paths, pretrained.tokenizer, tokenize, language, pretrained.language
    )
    results, empty = {}, []
    for file, tokenizer in zip(paths, tokenizers, strict=True):
        sentences = read_sentences(file, tokenizer)
        if (first := next(sentences, None)) is None:  # such as a shard of a small corpus
            empty.append(str(file))
            continue
        progress = ProgressBar(
            chain([first], sentences), f"evaluate {file.name}", unit=" sentences", unit_scale=True
        )
        results[str(file)] = found = measure(pretrained, progress, state, batch_size)
        warn_of_unknown(found.unknown_share, file, measure=found.measure)
    if not results:
        raise ValueError(f"{', '.join(empty)}: there is no sentence to evaluate")
    if empty:
        warnings.warn(f"{', '.join(empty)} has no sentences, and is left out", stacklevel=2)
    return Evaluation(results, reduce(add, results.values()))
