"""Perplexity and scores of files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, groupby, tee
from operator import add
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from elmokit.checkpoints import ModelSource
from elmokit.data import TextFile, write_table
from elmokit.fs import TABLES, check_output, suffixes_of
from elmokit.lm.losses import resolve_language_model
from elmokit.lm.scoring import BIT, ROWS, Perplexity, Score, TextSurprisal, scores
from elmokit.progress import ProgressBar
from elmokit.settings import StatePolicy
from elmokit.text import TOKENIZED

# --- Perplexity -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation:
    """Perplexity of each file, by path, and of all files together."""

    files: dict[str, Perplexity]
    total: Perplexity

    def __str__(self) -> str:
        """A line for each file, and one for all if there are several."""
        rows = self.files if len(self.files) == 1 else {**self.files, "all": self.total}
        return "\n".join(f"{name}: {perplexity}" for name, perplexity in rows.items())


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
    paths = TextFile.find(files)
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


class Item(NamedTuple):
    """A sentence to score.

    Attributes:
        line: The number of its line, or of its first row, from 1.
        text: Its text.
        regions: The parts of the text whose surprisal is asked for; None: its words.
        columns: The other columns of each of its rows.
    """

    line: int
    text: str
    regions: list[str] | None
    columns: list[dict[str, Any]]


def _items(source: TextFile, per: Unit, group: Sequence[str]) -> Iterator[Item]:
    """The sentences of a file, one on each line, or of one or more rows of a table."""
    numbered = enumerate(source.rows(), start=1)
    if not group:
        for line, (text, columns) in numbered:
            regions = text.split("|") if per == "region" else None
            yield Item(line, text.replace("|", " ") if regions else text, regions, [columns])
        return

    def key(row: tuple[int, tuple[str, dict[str, Any]]]) -> list[Any]:
        return [row[1][1][name] for name in group]

    try:
        for _, rows in groupby(numbered, key):
            lines, texts = zip(*rows, strict=True)
            regions, columns = map(list, zip(*texts, strict=True))
            yield Item(lines[0], " ".join(regions), regions, columns)
    except KeyError as error:
        raise ValueError(f"{source.path} has no column {error} to group its rows by") from None


def _rows(score: Score, item: Item, per: Unit, bits: bool) -> Iterator[dict[str, Any]]:
    """The rows of a table about a sentence, by column; columns of the input come last."""
    units, numbers, scale = score.parts(item.regions), None, 1.0 if bits else float(BIT)
    if per == "token":
        numbers = score.part_of_words([(part.start, part.end) for part in units]) + 1
        words = zip(score.words, score.offsets, score.surprisal.T, score.is_unknown, strict=True)
        units = [
            TextSurprisal(word, start, end, tuple(surprisal.tolist()), int(is_unknown))
            for word, (start, end), surprisal, is_unknown in words
        ]
    others = item.columns if len(item.columns) > 1 else item.columns * len(units)
    for position, (unit, columns) in enumerate(zip(units, others, strict=True), start=1):
        row: dict[str, Any] = {"line": item.line, "position": position}
        row["region" if per == "region" else "word"] = " ".join(unit.text.split())
        row |= {"start": unit.start, "end": unit.end}
        if numbers is not None:
            row["text_word"] = int(numbers[position - 1])
        for direction, value in zip(score.losses, unit.bits, strict=True):
            row[f"{direction}_{'bits' if bits else 'nats'}"] = value * scale
        row["unknown"] = unit.unknown
        yield row | {f"input_{name}" if name in row else name: columns[name] for name in columns}


def score_file(
    file: str | Path,
    output: str | Path,
    model: ModelSource = None,
    state: str = "zeros",
    batch_size: int = 1,
    device: str | None = None,
    tokenize: bool = True,
    *,
    bits: bool = False,
    per: Unit = "token",
    group: Sequence[str] = (),
    overwrite: bool = False,
    column: str | None = None,
) -> Perplexity:
    """Score the sentences of a text file or a table, and write a table.

    Args:
        file: Text (plain, .gz or .zst) with one sentence per line, or a table, as for `embed_file`;
            lines and rows without words are skipped.
        output: A table (.csv, .tsv, .jsonl, these also .gz or .zst, or .parquet). JSON lines, also
            the format of a file without a suffix, have an object per sentence with the number of
            its line or row from 1, and the values of `Score.to_json`, unless `per` is another unit
            than "token". Other tables have a row for each word: the line number, the position from
            1, the word, its first character in the line, from 0, and the one after its last, the
            number from 1 of the word between white space that it belongs to, its surprisal -log p
            given the words before and given the words after (of a model that merges the directions:
            given all others), and 1 if it is unknown, else 0. An unknown word has the surprisal of
            <UNK>. Boundaries are in the context of the words, and have no rows. The other columns
            of a table follow.
        model: A loaded model, or a path or name as for `elmokit.load`; the bundled English model by
            default.
        state: As in `score`.
        batch_size: As in `score`.
        device: As in `score`.
        tokenize: Split raw lines with the model's tokenizer; else, and for text of `elmokit
            prepare`, at white space.
        bits: Use logarithms to base 2.
        per: The rows of the table: the words as the model reads them ("token"); or, with their
            surprisals added up, the words between white space ("word"), or the regions of each
            line, which | separates ("region"; the model does not read the |). The last column of
            surprisal then counts unknown words.
        group: Columns of a table whose rows are regions: consecutive rows with the same values
            there are a sentence.
        overwrite: Replace an output that exists.
        column: The column of a table with the sentences or regions; None: "text".

    Returns:
        The perplexity of the whole file, or where directions are merged its pseudo-perplexity.

    Raises:
        ValueError: The file has no sentence, the output is the file or of another format, the model
            has no softmax or vocabulary, no line has the | of regions, or a column is missing.
        FileNotFoundError: The file or the model does not exist.
        FileExistsError: The output exists, or appears meanwhile, and `overwrite` is not set.
    """
    check_output(output, [file, model], overwrite=overwrite, suffixes=(*TABLES, ""))
    per = "region" if group else per
    pretrained = resolve_language_model(model, device)
    (source,) = TextFile.open([file], pretrained.tokenizer, tokenize, column=column)
    total: Perplexity | None = None

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal total
        with_words = (
            (item, words)
            for item in _items(source, per, group)
            if (words := pretrained.split(item.text, source.tokenizer.name != TOKENIZED))
        )
        items, again = tee(with_words)
        scored = scores(pretrained, (words for _, words in again), state, batch_size)
        bar = ProgressBar(zip(items, scored, strict=True), "score", unit=" sentences")
        has_regions = False
        for (item, _), score in bar:
            total = score.perplexity if total is None else total + score.perplexity
            has_regions |= len(item.regions or ()) > 1
            score = replace(score, text=item.text)
            if per == "token" and suffixes_of(output).kind in (".jsonl", ""):
                yield {"line": item.line, **score.to_json(bits)} | item.columns[0]
            else:
                yield from _rows(score, item, per, bits)
        if total is None:
            raise ValueError(f"{file} has no sentence to score")
        if per == "region" and not has_regions:
            raise ValueError(
                f"no line of {file} has a |, which separates regions (for a table with a row for "
                "each region, name the columns that say which sentence it is in: --group)"
            )

    write_table(output, rows(), overwrite)
    assert total is not None  # rows() raises where there is no sentence
    return total
