"""Scores of the sentences of a text file, as JSON lines or as a table."""

from __future__ import annotations

import io
import json
import math
from itertools import tee
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.checkpoints.loading import ModelSource
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.data.text_files import file_tokenizers
from elmokit.fs.atomic import atomic_path, check_output, create_bytes
from elmokit.fs.reading import read_lines, suffixes_of
from elmokit.lm.language_model import check_start, parts_of, resolve_language_model
from elmokit.lm.measures import Measure, Perplexity, PseudoPerplexity, warn_of_unknown
from elmokit.lm.scoring import MaskedScore, Score, scores, surprisal_in_nats
from elmokit.progress import ProgressBar


def _to_json(number: int, score: Score, bits: bool) -> str:
    scale = np.float32(math.log(2)) if bits else np.float32(1)
    if isinstance(score, MaskedScore):
        of_text = {"pseudo_perplexity": score.pseudo_perplexity.value}
        of_words = {"masked": score.masked}
    else:
        of_text = {"perplexity": {name: getattr(score.perplexity, name) for name in ("forward", "backward", "mean")}}
        of_words = {"forward": score.forward, "backward": score.backward}
    values: dict[str, Any] = {
        "line": number,
        **of_text,
        "unknown": score.unknown,
        "unit": "bits" if bits else "nats",
        "words": score.words,
        **{name: (log_p / scale).tolist() for name, log_p in of_words.items()},
    }
    return json.dumps(values, ensure_ascii=False) + "\n"


def _tsv_header(model: Pretrained, bits: bool) -> str:
    contexts = ("masked",) if model.config.sequence_encoder.merges_directions else ("forward", "backward")
    surprisals = [f"{context}_{'bits' if bits else 'nats'}" for context in contexts]
    return "\t".join(("line", "position", "word", *surprisals, "unknown")) + "\n"


def _to_tsv(number: int, score: Score, bits: bool) -> str:
    surprisals = np.atleast_2d(score.surprisal if bits else surprisal_in_nats(score))
    rows = zip(score.words, surprisals.T, score.is_unknown, strict=True)
    return "".join(
        "\t".join((str(number), str(position), word, *(f"{value:.6f}" for value in of_word), f"{is_unknown:d}")) + "\n"
        for position, (word, of_word, is_unknown) in enumerate(rows, start=1)
    )


def score_file(
    file: str | Path,
    output: str | Path,
    model: ModelSource = None,
    state: str = "zeros",
    batch_size: int = 1,
    device: str | None = None,
    tokenize: bool = True,
    *,
    tsv: bool = False,
    bits: bool = False,
    overwrite: bool = False,
) -> Measure:
    """Score the sentences of a text file, and write the scores as JSON lines or as a table.

    Args:
        file: Text (plain, .gz or .zst) with one sentence per line; lines without words are skipped.
        output: File for the scores (also .gz or .zst). By default JSON lines, one object per sentence with its line
            number from 1, perplexity, number of unknown words, unit, words, and the log-probabilities as in
            `SentenceScore`; of a model that merges the directions pseudo-perplexity, and those of `MaskedScore`.
        model: A loaded model, or a path or name as for `elmokit.load`; the bundled English model by default.
        state: As in `elmokit.lm.scoring.score`.
        batch_size: As in `score`.
        device: As in `score`.
        tokenize: Split raw lines with the model's tokenizer; else, and for text of `elmokit prepare`, at white space.
        tsv: Write a table with a row per word instead, separated by tabs without quotes: the line number, the position
            from 1, the word, its surprisal -log p given the words before and given the words after (of a model that
            merges the directions: given all others), and 1 if it is unknown, else 0. An unknown word has the surprisal
            of <UNK>. Boundaries are in the context of the words, and have no rows.
        bits: Use logarithms to base 2.
        overwrite: Replace an output that exists.

    Returns:
        The perplexity of the whole file, or where directions are merged its pseudo-perplexity.

    Raises:
        ValueError: The file has no sentence, the output is the file, or the model has no softmax or vocabulary.
        FileNotFoundError: The file or the model does not exist.
        FileExistsError: The output exists, or appears meanwhile, and `overwrite` is not set.
    """
    check_output(output, [file], overwrite=overwrite)
    if suffixes_of(output).kind in ((".json", ".jsonl") if tsv else (".tsv", ".csv")):
        written = "a table, separated by tabs" if tsv else "JSON lines: a table needs --tsv (tsv=True in Python)"
        raise ValueError(f"{output} would hold {written}; name another file")
    pretrained = resolve_language_model(model, device)
    parts_of(pretrained)
    check_start(pretrained, state, batch_size)
    (tokenizer,) = file_tokenizers([Path(file)], pretrained.tokenizer, tokenize)
    expected = sum(1 for line in read_lines(file) if line.strip())
    numbered = enumerate(map(tokenizer.tokenize, read_lines(file)), start=1)
    lines, texts = tee((number, words) for number, words in numbered if words)  # scores are computed a batch ahead
    kind = PseudoPerplexity if pretrained.config.sequence_encoder.merges_directions else Perplexity
    losses, count, predictions, unknown, truncated = np.zeros(()), 0, 0, 0, 0
    with (
        atomic_path(output, overwrite) as path,
        io.TextIOWrapper(create_bytes(path), encoding="utf-8", newline="\n") as stream,
    ):
        stream.write(_tsv_header(pretrained, bits) if tsv else "")
        scored = scores(pretrained, (words for _, words in texts), state, batch_size)
        for (number, _), score in ProgressBar(zip(lines, scored, strict=True), "score", expected):
            stream.write((_to_tsv if tsv else _to_json)(number, score, bits))
            losses, count = losses + score.losses, count + 1
            predictions, unknown = predictions + score.predictions, unknown + score.unknown
            truncated += score.truncated
        if not count:
            raise ValueError(f"{file} has no sentence to score")
    result = kind.of(losses, count, predictions, unknown, truncated)
    warn_of_unknown(result.unknown_share, file, measure=result.measure)
    return result
