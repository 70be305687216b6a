"""Preparing a corpus, against a simple single-process loop, with invalid input, and killed at any moment."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from directories import contents

from elmokit.cli import main
from elmokit.data import documents, prepare_run, workers
from elmokit.data import prepare as module
from elmokit.data.prepare import prepare
from elmokit.data.prepare_report import DropCount, DropDuplicates, PrepareReport, read_report
from elmokit.data.prepare_run import PrepareRun
from elmokit.data.shuffle import sort_key
from elmokit.fs.reading import read_lines
from elmokit.text.tokenizers import get_tokenizer

DOCUMENTS = [
    ["I don't know. He left me.", "A second paragraph, by Mr. Smith."],
    ["Another document!"],
    ["One.", "Two.", "x" * 60],
    *[[f"Document {number} says: it's number {number}."] for number in range(40)],
]


@pytest.fixture
def raw(tmp_path: Path) -> list[Path]:
    """Two raw files, one of them compressed, with blank lines at every position."""
    halves = DOCUMENTS[:5], DOCUMENTS[5:]
    texts = ["\n\n" + "\n \n\n".join("\n".join(lines) for lines in half) + "\n\n" for half in halves]
    paths = [tmp_path / "a.txt", tmp_path / "b.txt.zst"]
    paths[0].write_text(texts[0], encoding="utf-8")
    paths[1].write_bytes(zstandard.compress(texts[1].encode()))
    return paths


def test_prepare_says_that_text_is_not_english_where_no_language_is_given(tmp_path: Path) -> None:
    (tmp_path / "de.txt").write_text("Der Hund lief mit seiner Frau durch den Wald, weil sie Pilze suchten.\n" * 20)
    with pytest.warns(UserWarning, match=r"de\.txt does not look like English.*--language"):
        prepare([tmp_path / "de.txt"], tmp_path / "english", processes=1)
    prepare([tmp_path / "de.txt"], tmp_path / "german", processes=1, language="de")


def sentences(directory: Path, shard: int = 0) -> list[str]:
    return list(read_lines(directory / f"shard-{shard:05d}.txt.zst"))


def expected_shards(documents: list[list[str]], num_shards: int, seed: int) -> list[list[str]]:
    """Documents sorted by the hash of their number, and distributed to shards by the same hash."""
    english = get_tokenizer("english-1")
    shards: list[list[str]] = [[] for _ in range(num_shards)]
    for number in sorted(range(len(documents)), key=lambda number: sort_key(number, seed)):
        for line in documents[number]:
            for sentence in english.split_sentences(line):
                shards[sort_key(number, seed) % num_shards].append(" ".join(english.tokenize(sentence)))
    return shards


def no_litter(directory: Path) -> bool:
    return not [*directory.glob(".partial*"), *directory.glob(".unfinished*"), *directory.glob(".old*")]


# --- Shards ---


def test_prepare_equals_a_single_process_loop(tmp_path: Path, raw: list[Path]) -> None:
    report = prepare(raw, tmp_path / "out", num_shards=3, processes=1, seed=7)
    shards = [sentences(tmp_path / "out", shard) for shard in range(3)]
    assert shards == expected_shards(DOCUMENTS, 3, 7)
    assert all(shards)
    lines = [line for shard in shards for line in shard]
    assert "I do n't know ." in lines
    assert report.documents == len(DOCUMENTS)
    assert report.sentences == len(lines)
    assert report.words == sum(len(line.split()) for line in lines) == sum(report.words_per_input.values())
    assert report.long_words == 1
    assert read_report(tmp_path / "out") == report
    assert json.loads((tmp_path / "out" / "corpus.json").read_text())["options"]["tokenizer"] == "english-1"
    assert no_litter(tmp_path)


def test_prepare_shuffles_documents_across_files_and_within_shards(tmp_path: Path, raw: list[Path]) -> None:
    prepare(raw, tmp_path / "a", num_shards=1, processes=1, seed=1)
    prepare(raw, tmp_path / "b", num_shards=1, processes=1, seed=2)
    a, b = sentences(tmp_path / "a"), sentences(tmp_path / "b")
    in_order = [line for shard in expected_shards(DOCUMENTS[:1], 1, 0) for line in shard]
    assert sorted(a) == sorted(b) and a != b
    for shuffled in (a, b):
        numbers = [int(line.split()[1]) for line in shuffled if line.startswith("Document")]
        # In a random order, about half of the neighbors ascend.
        assert 8 < sum(x < y for x, y in pairwise(numbers)) < 32
        begin = shuffled.index(in_order[0])
        assert shuffled[begin : begin + len(in_order)] == in_order


def test_prepare_does_not_depend_on_the_number_of_processes(
    tmp_path: Path, raw: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "CHUNK_CHARACTERS", 100)
    prepare(raw, tmp_path / "one", num_shards=4, processes=1)
    prepare(raw, tmp_path / "two", num_shards=4, processes=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_prepare_writes_more_shards_than_files_may_be_open(tmp_path: Path, raw: list[Path]) -> None:
    resource = pytest.importorskip("resource")  # missing on Windows
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, limits[1]))
    try:
        report = prepare(raw, tmp_path / "out", num_shards=150, processes=1, compression="none")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    shards = list((tmp_path / "out").glob("shard-*.txt"))
    assert len(shards) == 150 and report.words == sum(len(path.read_text().split()) for path in shards)


def test_prepare_splits_long_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_LINES", 10)
    (tmp_path / "book.txt").write_text("".join(f"line {number}\n" for number in range(95)))
    report = prepare([tmp_path / "book.txt"], tmp_path / "out", num_shards=2, processes=1, compression="none")
    assert report.documents == 10
    shards = [list(read_lines(tmp_path / "out" / f"shard-0000{index}.txt")) for index in range(2)]
    assert sorted(shards[0] + shards[1]) == sorted(f"line {number}" for number in range(95))


def test_prepare_does_nothing_when_the_output_is_complete(tmp_path: Path, raw: list[Path]) -> None:
    first = prepare(raw, tmp_path / "out", num_shards=2, processes=1)
    before = contents(tmp_path / "out")
    again = prepare(raw, tmp_path / "out", num_shards=2, processes=1)
    assert again.already_done and not first.already_done and again.words == first.words
    assert contents(tmp_path / "out") == before
    with pytest.raises(ValueError, match="prepared with other num_shards, seed: remove it"):
        prepare(raw, tmp_path / "out", num_shards=3, seed=1, processes=1)
    assert contents(tmp_path / "out") == before
    prepare(raw, tmp_path / "out", num_shards=3, seed=1, processes=1, overwrite=True)
    prepare(raw, tmp_path / "fresh", num_shards=3, seed=1, processes=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    assert no_litter(tmp_path)


def test_prepare_of_a_corpus_that_lost_a_shard_says_so(tmp_path: Path, raw: list[Path]) -> None:
    prepare(raw, tmp_path / "out", num_shards=2, processes=1)
    whole = contents(tmp_path / "out")
    (tmp_path / "out" / "shard-00001.txt.zst").unlink()
    with pytest.raises(ValueError, match=r"shard-00001.txt.zst is missing: remove .*out, or ask to overwrite it"):
        prepare(raw, tmp_path / "out", num_shards=2, processes=1)
    prepare(raw, tmp_path / "out", num_shards=2, processes=1, overwrite=True)
    assert contents(tmp_path / "out") == whole


def test_prepare_of_files_in_another_order_is_another_corpus(tmp_path: Path, raw: list[Path]) -> None:
    prepare(raw, tmp_path / "out", num_shards=2, processes=1)
    with pytest.raises(ValueError, match=r"prepared with other inputs \(their paths, sizes or order\): remove it"):
        prepare(raw[::-1], tmp_path / "out", num_shards=2, processes=1)


def test_prepare_reports_an_input_that_was_written_after_the_corpus(tmp_path: Path, raw: list[Path]) -> None:
    """Of the same size, since other sizes are other options."""
    prepare(raw, tmp_path / "corpus")
    before, text = contents(tmp_path / "corpus"), raw[0].read_text()
    raw[0].write_text(text.swapcase())
    later = (tmp_path / "corpus" / "corpus.json").stat().st_mtime_ns + 1_000_000_000
    os.utime(raw[0], ns=(later, later))
    with pytest.warns(UserWarning, match=f"{raw[0].name} was written after .* ask to overwrite it"):
        assert prepare(raw, tmp_path / "corpus").already_done
    assert contents(tmp_path / "corpus") == before
    assert not prepare(raw, tmp_path / "corpus", overwrite=True).already_done
    assert contents(tmp_path / "corpus") != before


def test_prepare_through_a_symbolic_link_writes_where_it_points(tmp_path: Path, raw: list[Path]) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "corpus").symlink_to(tmp_path / "disk" / "corpus")
    prepare(raw, tmp_path / "corpus")
    assert (tmp_path / "corpus").is_symlink() and (tmp_path / "disk" / "corpus" / "corpus.json").is_file()
    assert prepare(raw, tmp_path / "corpus").already_done


def test_prepare_accepts_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Only this.")
    report = prepare([tmp_path / "a.txt"], tmp_path / "out", processes=1)
    assert (report.options.num_shards, report.sentences, report.words) == (1, 1, 3)


# --- Duplicates and exclusion ---


def paragraph(seed: int, length: int = 60) -> str:
    return " ".join(f"word{number}" for number in random.Random(seed).choices(range(500), k=length))


def written(path: Path, documents: list[list[str]]) -> Path:
    path.write_text("\n\n".join("\n".join(lines) for lines in documents), encoding="utf-8")
    return path


ONE, TWO, THREE, HELD_OUT = (paragraph(number) for number in range(4))
REPEATING = [
    [ONE],
    [ONE.replace(" ", "  ")],  # an exact duplicate
    ["\u200b"],  # empty
    [ONE.replace("word", "Word", 3) + " indeed"],  # a near duplicate
    [THREE, "Short.", TWO, "Short.", TWO],  # a paragraph repeated in the document
    [THREE, "A first new line.", paragraph(9)],  # a paragraph that occurred before
    [TWO, paragraph(9)],  # only repeated paragraphs
    [HELD_OUT + " and more"],
    ["Short.", HELD_OUT, paragraph(10)],
    [paragraph(11)],
]


def of_lines(report: PrepareReport) -> dict[str, tuple[int, int, int]]:
    return {reason: (count.documents, count.paragraphs, count.words) for reason, count in report.dropped.items()}


def test_prepare_writes_the_residues_of_proteins_as_words(tmp_path: Path) -> None:
    sequences = ["".join(random.Random(number).choices("ACDEFGHIKLMNPQRSTVWY", k=150)) for number in range(5)]
    near_copy = sequences[0][:-1] + "A"
    entries = [f">p{number}\n{text[:60]}\n{text[60:]}\n" for number, text in enumerate([*sequences, near_copy])]
    (tmp_path / "proteins.fasta").write_text("".join(entries))
    report = prepare([tmp_path / "proteins.fasta"], tmp_path / "shards")
    assert report.options.tokenizer == "whitespace-1"
    assert (report.sentences, report.words, report.dropped["near_duplicate"].documents) == (5, 750, 1)
    (shard,) = tmp_path.glob("shards/*.zst")
    assert sorted(read_lines(shard)) == sorted(" ".join(text) for text in sequences)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "words-1", "language": "de"}, "omit tokenizer and language"),
        ({"exclude": ["text.txt"]}, "prepare the two separately"),
    ],
)
def test_prepare_refuses_proteins_with_text_or_a_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("proteins.fasta").write_text(">p\nMVLSP\n")
    Path("text.txt").write_text("A line.\n")
    with pytest.raises(ValueError, match=message):
        prepare(["proteins.fasta"], tmp_path / "shards", **options)


def test_prepare_refuses_a_similarity_that_nothing_is_compared_by(tmp_path: Path) -> None:
    raw = written(tmp_path / "raw.txt", REPEATING)
    with pytest.raises(ValueError, match="similarity is for near duplicates, and drop_duplicates is 'none'"):
        prepare([raw], tmp_path / "out", drop_duplicates="none", similarity=0.95)


def test_prepare_drops_counts_and_lists_duplicates(tmp_path: Path) -> None:
    raw, held_out = written(tmp_path / "raw.txt", REPEATING), written(tmp_path / "held.txt", [[HELD_OUT]])
    report = prepare([raw], tmp_path / "out", processes=1, num_shards=1, exclude=[held_out])
    assert of_lines(report) == {
        "excluded": (1, 1, 62 + 60),
        "exact_duplicate": (1, 0, 60),
        "near_duplicate": (1, 0, 61),
        "repeated_paragraph": (1, 2, 4 * 60),
        "empty": (1, 0, 0),
    }
    new = "A first new line ."
    kept = [ONE, THREE, "Short .", TWO, "Short .", new, paragraph(9), "Short .", paragraph(10), paragraph(11)]
    assert sorted(sentences(tmp_path / "out")) == sorted(kept)
    assert report.words == len(" ".join(kept).split())

    notes = [json.loads(line) for line in read_lines(tmp_path / "out" / "dropped.jsonl")]
    assert [(note["line"], note["reason"]) for note in notes] == [
        (line_of(1), "exact_duplicate"),
        (line_of(2), "empty"),
        (line_of(3), "near_duplicate"),
        (line_of(6), "repeated_paragraph"),
        (line_of(7), "excluded"),
    ]
    assert notes[2]["like"] == {"file": str(raw), "line": 1} and 0.8 <= notes[2]["similarity"] < 1
    assert notes[4]["like"] == {"file": str(held_out), "line": 1}


def line_of(document: int) -> int:
    """The line at which a document of REPEATING begins in its file: a blank one is between two."""
    return 1 + sum(len(lines) + 1 for lines in REPEATING[:document])


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_prepare_lists_dropped_records_by_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Records without a text are counted too, and one that is cut into several documents once."""
    monkeypatch.setattr(documents, "MAX_LINES", 1)
    texts = ["", None, ONE, f"{TWO}\n{THREE}", ONE, f"{paragraph(9)}\n{THREE}"]
    raw = tmp_path / f"raw.{kind}"
    if kind == "jsonl":
        raw.write_text("\n" + "".join(json.dumps({"text": text}) + "\n" for text in texts))
        unit, numbers = "line", range(2, 8)
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"text": texts}), raw)
        unit, numbers = "row", range(6)
    prepare([raw], tmp_path / "out", processes=1)
    notes = [json.loads(line) for line in read_lines(tmp_path / "out" / "dropped.jsonl")]
    assert [(note[unit], note["like"][unit]) for note in notes] == [
        (numbers[4], numbers[2]),
        (numbers[5], numbers[3]),
    ]


def test_prepare_lists_the_lines_of_duplicates_far_from_what_they_duplicate(tmp_path: Path) -> None:
    """The lines of earlier documents are looked up in a file to which those of later ones are still being added."""
    originals, random_of = 500, random.Random(0)
    copied = [random_of.randrange(originals) for _ in range(originals)]
    texts = [f"Document number {number}." for number in range(originals)]
    for number in copied:
        texts.insert(random_of.randrange(texts.index(texts[number]) + 1, len(texts) + 1), texts[number])
    raw = written(tmp_path / "raw.txt", [[text] for text in texts])
    prepare([raw], tmp_path / "out", processes=1, drop_duplicates="exact")
    notes = [json.loads(line) for line in read_lines(tmp_path / "out" / "dropped.jsonl")]
    expected = [(2 * place + 1, 2 * texts.index(text) + 1) for place, text in enumerate(texts) if text in texts[:place]]
    assert [(note["line"], note["like"]["line"]) for note in notes] == expected


def test_prepare_report_prints_counts_and_no_options(tmp_path: Path) -> None:
    raw = written(tmp_path / "raw.txt", [*REPEATING, [f"A word {'x' * 60} too long."]])
    report = prepare([raw], tmp_path / "out", processes=1)
    lines = str(report).splitlines()
    assert lines[0] == f"kept: {report.documents} documents, {report.sentences} sentences, {report.words} words"
    assert lines[1] == f"  from {raw}: {report.words} words"
    assert "dropped (exact duplicate): 1 documents, 0 paragraphs, 60 words" in lines
    assert "words of more than 48 bytes, of which a model reads the first 48: 1" in lines
    assert len(lines) < 12 and "seed" not in str(report) and "excluded" not in str(report)
    assert "nothing was done" in str(prepare([raw], tmp_path / "out", processes=1))


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({}, ["exact_duplicate", "near_duplicate", "repeated_paragraph", "empty"]),
        ({"drop_paragraphs": False}, ["exact_duplicate", "near_duplicate", "empty"]),
        ({"drop_duplicates": "exact"}, ["exact_duplicate", "repeated_paragraph", "empty"]),
        ({"drop_duplicates": "none"}, ["repeated_paragraph", "empty"]),
        ({"drop_duplicates": "none", "drop_paragraphs": False}, ["empty"]),
        ({"similarity": 0.999}, ["exact_duplicate", "repeated_paragraph", "empty"]),
    ],
)
def test_prepare_options_turn_off_each_reason(tmp_path: Path, options: dict[str, object], left_out: list[str]) -> None:
    raw = written(tmp_path / "raw.txt", REPEATING)
    report = prepare([raw], tmp_path / "out", processes=1, num_shards=1, **options)  # pyright: ignore
    assert [reason for reason, count in report.dropped.items() if count != DropCount()] == left_out
    total = report.words + sum(count.words for count in report.dropped.values())
    assert total == sum(len(get_tokenizer("english-1").tokenize(line)) for lines in REPEATING for line in lines)


def test_prepare_excludes_held_out_text_with_other_reasons_off(tmp_path: Path) -> None:
    raw, held_out = written(tmp_path / "raw.txt", REPEATING), written(tmp_path / "held.txt", [[HELD_OUT]])
    options = {"drop_duplicates": "none", "drop_paragraphs": False, "processes": 1, "num_shards": 1}
    report = prepare([raw], tmp_path / "out", exclude=[held_out], **options)  # pyright: ignore
    assert of_lines(report)["excluded"] == (1, 1, 122)
    assert of_lines(report)["repeated_paragraph"] == of_lines(report)["exact_duplicate"] == (0, 0, 0)


def test_prepare_keeps_the_order_of_others_when_excluding(tmp_path: Path, raw: list[Path]) -> None:
    prepare(raw, tmp_path / "a", num_shards=2, processes=1)
    prepare(raw, tmp_path / "b", num_shards=2, processes=1, exclude=[written(tmp_path / "held.txt", [[ONE], [TWO]])])
    assert [sentences(tmp_path / "a", shard) for shard in (0, 1)] == [
        sentences(tmp_path / "b", shard) for shard in (0, 1)
    ]


# --- Invalid input ---


def test_prepare_raises_for_a_directory_with_other_files(tmp_path: Path, raw: list[Path]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(FileExistsError, match="remove it"):
        prepare(raw, tmp_path / "out", processes=1)
    assert contents(tmp_path / "out") == {"thesis.tex": b"mine"}


def test_prepare_writes_to_an_empty_directory(tmp_path: Path, raw: list[Path]) -> None:
    (tmp_path / "out").mkdir()
    assert prepare(raw, tmp_path / "out", processes=1).words == read_report(tmp_path / "out").words


def test_prepare_names_the_line_of_invalid_utf8_and_writes_nothing(tmp_path: Path, raw: list[Path]) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good\n\nba\xffd\n")
    with pytest.raises(ValueError, match=r"bad\.txt, line 3"):
        prepare([*raw, tmp_path / "bad.txt"], tmp_path / "out", processes=1)
    assert not (tmp_path / "out").exists() and no_litter(tmp_path)


@pytest.mark.parametrize("text", ["", "\n \n\n"])
def test_prepare_raises_for_empty_input(tmp_path: Path, raw: list[Path], text: str) -> None:
    (tmp_path / "empty.txt").write_text(text)
    with pytest.raises(ValueError, match=r"empty\.txt is empty"):
        prepare([*raw, tmp_path / "empty.txt"], tmp_path / "out", processes=1)


def test_prepare_raises_for_invalid_arguments(tmp_path: Path, raw: list[Path]) -> None:
    for arguments, message in [
        ({"inputs": []}, "no input"),
        ({"exclude": [raw[0]]}, "both"),
        ({"exclude": [os.path.relpath(raw[0])]}, "both"),
        ({"compression": "rar"}, "zst, gz, none"),
        ({"num_shards": 0}, "num_shards must be at least 1"),
        ({"processes": -1}, "processes must be at least 1"),
        ({"similarity": 0.0}, "similarity must be above 0"),
        ({"drop_duplicates": "some"}, "near, exact or none"),
        ({"tokenizer": "klingon-1"}, "english-1"),
    ]:
        with pytest.raises(ValueError, match=message):
            prepare(**{"inputs": raw, "output": tmp_path / "out", **arguments})  # pyright: ignore
    with pytest.raises(FileNotFoundError, match="nowhere"):
        prepare([tmp_path / "nowhere.txt"], tmp_path / "out")
    assert no_litter(tmp_path) and not (tmp_path / "out").exists()


def test_read_report_raises_for_another_version(tmp_path: Path, raw: list[Path]) -> None:
    prepare(raw, tmp_path / "out", processes=1)
    report = tmp_path / "out" / "corpus.json"
    wrong = report.read_text().replace('"words": 0', '"words": "0"')
    for text in ("{", "[]", '{"options": {}}', report.read_text().replace('"seed"', '"sead"'), "[" * 100_000, wrong):
        report.write_text(text)
        with pytest.raises(ValueError, match=r"corpus\.json is not a report of this version"):
            prepare(raw, tmp_path / "out", processes=1)


def test_prepare_raises_for_an_unwritable_output(tmp_path: Path, raw: list[Path]) -> None:
    with pytest.raises(OSError):
        prepare(raw, raw[0] / "out", processes=1)


def test_prepare_on_a_full_disk_says_so_and_resumes(
    tmp_path: Path, raw: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            prepare(raw, tmp_path / "out", processes=1)
    assert not (tmp_path / "out").exists()
    assert prepare(raw, tmp_path / "out", processes=1).documents == len(DOCUMENTS)
    assert no_litter(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse names that are not UTF-8")
def test_prepare_accepts_file_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(bytes(tmp_path) + b"/caf\xe9.txt")
    Path(name).write_text("One.\n\nTwo.\n\nTwo.")
    assert main(["prepare", name, "--output", str(tmp_path / "out"), "--processes", "1"]) == 0
    assert list(read_report(tmp_path / "out").words_per_input) == [name]
    assert json.loads((tmp_path / "out" / "dropped.jsonl").read_text())["file"] == name
    assert main(["prepare", name, "--output", str(tmp_path / "out"), "--processes", "1"]) == 0


# --- Interrupted and resumed ---


def stop_after(count: int, error: BaseException) -> Callable[..., None]:
    """A `process` that raises an error instead of processing document number `count`."""
    process, processed = PrepareRun.process, []

    def stopping(run: PrepareRun, document: object) -> None:
        if len(processed) == count:
            raise error
        processed.append(document)
        process(run, document)  # pyright: ignore[reportArgumentType]

    return stopping


def interrupt_at(count: int, inputs: list[Path], output: Path, **options: Any) -> None:
    """Start or resume `prepare`, and interrupt it at document number `count` of this call."""
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(PrepareRun, "process", stop_after(count, KeyboardInterrupt()))
        prepare(inputs, output, **options)


@pytest.mark.parametrize("count", [0, 1, 7, 20, len(REPEATING) + 1])
@pytest.mark.parametrize("seconds", [0, 1000])
def test_prepare_interrupted_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, seconds: int, raw: list[Path]
) -> None:
    inputs = [*raw, written(tmp_path / "raw.txt", REPEATING)]
    options = {"num_shards": 3, "processes": 1, "exclude": [written(tmp_path / "held.txt", [[HELD_OUT]])]}
    prepare(inputs, tmp_path / "whole", **options)  # pyright: ignore
    monkeypatch.setattr(prepare_run, "CHECKPOINT_SECONDS", seconds)
    monkeypatch.setattr(prepare_run, "CHECKPOINT_SHARE", float("inf"))
    for stops in (count, 3):
        interrupt_at(stops, inputs, tmp_path / "out", **options)  # pyright: ignore
    assert not (tmp_path / "out").exists()
    prepare(inputs, tmp_path / "out", **options)  # pyright: ignore
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert no_litter(tmp_path)


@pytest.mark.parametrize("drop", ["near", "exact", "none"])
def test_prepare_interrupted_after_what_it_dropped_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drop: DropDuplicates, raw: list[Path]
) -> None:
    """Also where no document has a signature, and where nothing is dropped between two checkpoints."""
    inputs = [written(tmp_path / "raw.txt", REPEATING), *raw]
    prepare(inputs, tmp_path / "whole", processes=1, drop_duplicates=drop)
    monkeypatch.setattr(prepare_run, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(prepare_run, "CHECKPOINT_SHARE", float("inf"))
    for stops in (len(REPEATING) + 5, 3, 3):
        interrupt_at(stops, inputs, tmp_path / "out", processes=1, drop_duplicates=drop)
    prepare(inputs, tmp_path / "out", processes=1, drop_duplicates=drop)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert no_litter(tmp_path)


def test_prepare_keeps_an_unfinished_run_that_cannot_be_opened(
    tmp_path: Path, raw: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(5, raw, tmp_path / "out", processes=1)
    unfinished = contents(tmp_path / ".unfinished-out")

    def fails(*_: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(PrepareRun, "__init__", fails)
    with pytest.raises(ValueError, match="a defect"):
        prepare(raw, tmp_path / "out", processes=1)
    assert contents(tmp_path / ".unfinished-out") == unfinished


def test_prepare_resumed_processes_no_document_twice(
    tmp_path: Path, raw: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_run, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(prepare_run, "CHECKPOINT_SHARE", float("inf"))
    interrupt_at(30, raw, tmp_path / "out", processes=1)
    monkeypatch.setattr(PrepareRun, "process", stop_after(len(DOCUMENTS) - 30, AssertionError()))
    assert prepare(raw, tmp_path / "out", processes=1).documents == len(DOCUMENTS)


@pytest.mark.parametrize("changes", [{"documents": "5"}, {"seen": 3}, {"report": {}}])
def test_prepare_starts_over_when_the_checkpoint_is_damaged(
    tmp_path: Path, raw: list[Path], monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    monkeypatch.setattr(prepare_run, "CHECKPOINT_SECONDS", 0)
    interrupt_at(5, raw, tmp_path / "out", processes=1)
    checkpoint = tmp_path / ".unfinished-out" / prepare_run.CHECKPOINT_NAME
    checkpoint.write_text(json.dumps(json.loads(checkpoint.read_text()) | changes))
    with pytest.warns(UserWarning, match="is damaged .*: starting over"):
        prepare(raw, tmp_path / "out", processes=1)
    prepare(raw, tmp_path / "whole", processes=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_prepare_overwrites_a_corpus_alone(tmp_path: Path, raw: list[Path]) -> None:
    prepare(raw, tmp_path / "out", processes=1)
    (tmp_path / "out" / "notes.txt").write_text("my notes")
    with pytest.raises(FileExistsError, match=r"out also holds notes\.txt, so it is not overwritten"):
        prepare(raw, tmp_path / "out", processes=1, seed=3, overwrite=True)
    (tmp_path / "out" / "notes.txt").unlink()
    prepare(raw, tmp_path / "out", processes=1, seed=3, overwrite=True)


def test_prepare_refuses_a_string_in_place_of_a_list(tmp_path: Path, raw: list[Path]) -> None:
    with pytest.raises(ValueError, match=r"inputs must be a list of files: \[path\]"):
        prepare(str(raw[0]), tmp_path / "out")
    with pytest.raises(ValueError, match=r"exclude must be a list of files: \[path\]"):
        prepare(raw, tmp_path / "out", exclude=str(raw[0]))


def test_prepare_starts_over_when_options_differ(tmp_path: Path, raw: list[Path]) -> None:
    interrupt_at(5, raw, tmp_path / "out", processes=1)
    with pytest.warns(UserWarning, match="unfinished run with other options"):
        prepare(raw, tmp_path / "out", processes=1, seed=3)
    prepare(raw, tmp_path / "whole", processes=1, seed=3)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("stage", ["shards", "publish", "remove"])
def test_prepare_interrupted_while_writing_shards_ends_with_the_same_bytes(
    tmp_path: Path, raw: list[Path], monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    prepare(raw, tmp_path / "whole", num_shards=3, processes=1)
    place = {
        "shards": (prepare_run.Scatter, "write_shuffled"),
        "publish": (module, "publish_directory"),
        "remove": (module, "shutil"),
    }
    with monkeypatch.context() as patched:
        patched.setattr(*place[stage], SimpleNamespace(rmtree=interrupt) if stage == "remove" else interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(raw, tmp_path / "out", num_shards=3, processes=1)
    assert prepare(raw, tmp_path / "out", num_shards=3, processes=1).already_done == (stage == "remove")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert no_litter(tmp_path)


PREPARE = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # which nohup has it ignore
PREPARE += "import sys; from elmokit.cli import main; sys.exit(main(sys.argv[1:]))"


def descendants(pid: int) -> list[int]:
    """All child processes of a process, recursively."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return [*children, *(child for parent in children for child in descendants(parent))]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGKILL, 0), (signal.SIGTERM, 0.1), (signal.SIGHUP, 0.3)])
def test_prepare_workers_exit_with_their_parent_and_the_run_resumes(
    tmp_path: Path, number: signal.Signals, seconds: float
) -> None:
    text = "\n\n".join(f"{paragraph(seed, 400)}." for seed in range(2400))  # some seconds of work
    (tmp_path / "raw.txt").write_text(text)
    command = ["prepare", str(tmp_path / "raw.txt"), "--output", str(tmp_path / "out"), "--processes", "2"]
    process = subprocess.Popen([sys.executable, "-c", PREPARE, *command], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(descendants(process.pid)) < 3 and time.monotonic() < deadline:  # two workers and the resource tracker
        time.sleep(0.02)
    workers = descendants(process.pid)
    assert len(workers) == 3 and process.poll() is None
    time.sleep(seconds)
    process.send_signal(number)
    assert process.wait() == -number
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, workers))
    assert main(command) == 0
    prepare([tmp_path / "raw.txt"], tmp_path / "whole", processes=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert no_litter(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_prepare_reports_a_killed_worker_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = written(tmp_path / "raw.txt", [[paragraph(seed, 100)] for seed in range(40)])
    monkeypatch.setattr(workers, "CHUNK_CHARACTERS", 1000)
    process = PrepareRun.process

    def killing(run: PrepareRun, document: workers.TokenizedDocument) -> None:
        for child in descendants(os.getpid()):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has exited
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(child, signal.SIGKILL)
        process(run, document)

    with monkeypatch.context() as patched:
        patched.setattr(PrepareRun, "process", killing)
        with pytest.raises(ChildProcessError, match=r"a worker process was killed.*run the same command again"):
            prepare([raw], tmp_path / "out", processes=2)
    assert prepare([raw], tmp_path / "out", processes=1).documents == 40
    assert no_litter(tmp_path)


def test_prepare_names_the_guard_that_a_script_lacks(tmp_path: Path) -> None:
    raw = written(tmp_path / "raw.txt", [[paragraph(seed, 100)] for seed in range(4)])
    call = f"prepare([{str(raw)!r}], {str(tmp_path / 'out')!r}, processes=2)"
    script = tmp_path / "script.py"
    script.write_text(f"from elmokit.data.prepare import prepare\n{call}\n")
    printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert printed.returncode == 1
    assert "another process is writing" not in printed.stderr
    assert 'put the call below `if __name__ == "__main__":`' in printed.stderr
    assert "or has ended for the reason that is printed above" in printed.stderr
    script.write_text(f"from elmokit.data.prepare import prepare\nif __name__ == '__main__':\n    {call}\n")
    subprocess.run([sys.executable, script], capture_output=True, check=True)


def test_prepare_raises_for_a_file_changed_while_it_is_read(
    tmp_path: Path, raw: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = PrepareRun.process

    def touching(run: PrepareRun, document: workers.TokenizedDocument) -> None:
        os.utime(raw[0], ns=(1, 1))
        process(run, document)

    monkeypatch.setattr(PrepareRun, "process", touching)
    with pytest.raises(ValueError, match=r"a\.txt was changed while it was read"):
        prepare(raw, tmp_path / "out", processes=1)
    assert no_litter(tmp_path) and not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="directories cannot be held there")
def test_prepare_locks_its_output_against_a_second_run(
    tmp_path: Path, raw: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def second(*_: object) -> None:
        monkeypatch.undo()
        with pytest.raises(ValueError, match="another process is writing"):
            prepare(raw, tmp_path / "out", processes=1)
        raise KeyboardInterrupt

    monkeypatch.setattr(PrepareRun, "process", second)
    with pytest.raises(KeyboardInterrupt):
        prepare(raw, tmp_path / "out", processes=1)
    assert prepare(raw, tmp_path / "out", processes=1).documents == len(DOCUMENTS)
