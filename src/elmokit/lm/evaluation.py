"""Perplexity and scores of files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, tee
from operator import add
from pathlib import Path
from typing import Any, Literal, TypeAlias

from elmokit.checkpoints import ModelSource
from elmokit.data import TextFile, find_files
from elmokit.fs import check_output, write_lines
from elmokit.lm.losses import resolve_language_model
from elmokit.lm.scoring import BIT, ROWS, Perplexity, Score, scores
from elmokit.progress import ProgressBar
from elmokit.settings import StatePolicy

# --- Perplexity -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation:
    """Perplexity of each file, by path, and of all files together."""

    files: dict[str, Perplexity]
    total: Perplexity

    def __str__(self) -> str:
        """A table with one row per file, and one for the total if there are several."""
        rows = self.files if len(self.files) == 1 else {**self.files, "all": self.total}
        name_width = max(map(len, [self.total.measure, *rows]))
        _, *columns = self.total.to_json()
        widths = [max(13, len(column) + 2) for column in columns]
        lines = [f"{self.total.measure:{name_width}}" + "".join(map(str.rjust, columns, widths))]
        for name, row in rows.items():
            cells = row.to_json() | {"unknown": f"{row.unknown_share:.1%}"}
            line = f"{name:{name_width}}"
            for column, width in zip(columns, widths, strict=True):
                cell = cells[column]
                line += (f"{cell:.3f}" if isinstance(cell, float) else str(cell)).rjust(width)
            lines.append(line)
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
    """Compute the perplexity of text files, or the pseudo-perplexity where directions are merged.

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
        The perplexities or pseudo-perplexities of the files that have a sentence; for the latter, a
        sentence of more than 1,024 words is read in windows of at most that length, and a word is
        predicted from the others of its window.

    Warns:
        UserWarning: `elmokit prepare` split a file by another tokenizer than the model's.

    Raises:
        ValueError: The model has no softmax or vocabulary, or no such state, an argument is
            invalid, or no file has a sentence.
        FileNotFoundError: A file does not exist.
    """
    paths = find_files(files)
    pretrained = resolve_language_model(model, device)
    pretrained.start(state or "zeros")  # errors come before the text is read
    texts = TextFile.open(
        paths, pretrained.tokenizer, tokenize, language, model_language=pretrained.language
    )
    results = {}
    for file, text in zip(paths, texts, strict=True):
        sentences = text.sentences()
        if (first := next(sentences, None)) is None:  # as a shard of a small corpus may be
            continue
        progress = ProgressBar(
            chain([first], sentences), f"evaluate {file.name}", unit=" sentences", unit_scale=True
        )
        results[str(file)] = Perplexity.of(pretrained, progress, state, batch_size)
    if not results:
        raise ValueError(f"{', '.join(map(str, paths))}: there is no sentence to evaluate")
    return Evaluation(results, reduce(add, results.values()))


# --- Scores ---------------------------------------------------------------------------------------

Unit: TypeAlias = Literal["token", "word", "region"]  # of a row of a table


def _rows(
    score: Score, per: Unit, regions: Sequence[str] | None, bits: bool
) -> Iterator[dict[str, Any]]:
    """The rows of a table about a sentence, by column."""
    parts, scale = score.parts(regions), 1.0 if bits else float(BIT)
    names = [f"{direction}_{'bits' if bits else 'nats'}" for direction in score.losses]
    if per != "token":
        for part in parts:
            values = {name: value * scale for name, value in zip(names, part.bits, strict=True)}
            text = " ".join(part.text.split())
            yield {
                per: text,
                "start": part.start,
                "end": part.end,
                **values,
                "unknown": part.unknown,
            }
        return
    part_of = score.part_of_words([(part.start, part.end) for part in parts]) + 1
    columns = score.words, score.offsets, part_of, score.surprisal.T.tolist(), score.is_unknown
    for word, (start, end), number, surprisal, is_unknown in zip(*columns, strict=True):
        place = {"start": start, "end": end, "text_word": number}
        values = {name: value * scale for name, value in zip(names, surprisal, strict=True)}
        yield {"word": word, **place, **values, "unknown": int(is_unknown)}


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
    per: Unit = "token",
    overwrite: bool = False,
    column: str | None = None,
) -> Perplexity:
    """Score the sentences of a text file or a table, and write JSON lines or a table.

    Args:
        file: Text (plain, .gz or .zst) with one sentence per line, or a table, as for `embed_file`;
            lines and rows without words are skipped.
        output: File for the scores (also .gz or .zst). By default JSON lines, one object per
            sentence with the number of its line or row from 1, and the values of `Score.to_json`.
        model: A loaded model, or a path or name as for `elmokit.load`; the bundled English model by
            default.
        state: As in `score`.
        batch_size: As in `score`.
        device: As in `score`.
        tokenize: Split raw lines with the model's tokenizer; else, and for text of `elmokit
            prepare`, at white space.
        tsv: Write a table instead, separated by tabs without quotes: the line number, the position
            from 1, the word, its first character in the line, from 0, and the one after its last,
            the number from 1 of the word between white space that it belongs to, its surprisal -log
            p given the words before and given the words after (of a model that merges the
            directions: given all others), and 1 if it is unknown, else 0. An unknown word has the
            surprisal of <UNK>. Boundaries are in the context of the words, and have no rows.
        per: The rows of the table: the words as the model reads them ("token"), or, also without
            `tsv`, with their surprisals added up, the words between white space ("word"), or the
            regions of each line, which | separates ("region"; the model does not read the |). The
            last column then counts unknown words.
        bits: Use logarithms to base 2.
        overwrite: Replace an output that exists.
        column: The column of a table with the sentences; None: "text".

    Returns:
        The perplexity of the whole file, or where directions are merged its pseudo-perplexity.

    Raises:
        ValueError: The file has no sentence, the output is the file, or the model has no softmax or
            vocabulary.
        FileNotFoundError: The file or the model does not exist.
        FileExistsError: The output exists, or appears meanwhile, and `overwrite` is not set.
    """
    check_output(output, [file, model], overwrite=overwrite)
    pretrained = resolve_language_model(model, device)
    (source,) = TextFile.open([Path(file)], pretrained.tokenizer, tokenize, column=column)

    def sentences() -> Iterator[tuple[int, str, list[str] | None, list[str]]]:
        for number, line in enumerate(source.lines(), start=1):
            regions = line.split("|") if per == "region" else None
            text = line.replace("|", " ") if per == "region" else line
            if words := source.tokenizer.tokenize(text):
                yield number, text, regions, words

    lines, again = tee(sentences())
    scored = scores(pretrained, (words for *_, words in again), state, batch_size)
    total: Perplexity | None = None

    def records() -> Iterator[str]:
        nonlocal total
        for (number, text, regions, _), score in ProgressBar(
            zip(lines, scored, strict=True), "score", unit=" sentences"
        ):
            score = replace(score, text=text)
            if tsv or per != "token":
                for position, row in enumerate(_rows(score, per, regions, bits), start=1):
                    row = {"line": number, "position": position, **row}
                    if total is None and position == 1:
                        yield "\t".join(row)
                    cells = (f"{v:.6f}" if isinstance(v, float) else str(v) for v in row.values())
                    yield "\t".join(cells)
            else:
                record = {"line": number, **score.to_json(bits)}
                yield json.dumps(record, ensure_ascii=False)
            total = score.perplexity if total is None else total + score.perplexity
        if total is None:
            raise ValueError(f"{file} has no sentence to score")

    write_lines(output, records(), overwrite)
    assert total is not None
    return total
