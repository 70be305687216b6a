"""Preparing a corpus, against a simple single-process loop, with invalid input, and killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard
from directories import contents

from elmokit.cli import main
from elmokit.data import preparation as module
from elmokit.data.preparation import DropCount, PrepareReport, prepare, read_report, sort_key
from elmokit.fs.reading import read_lines
from elmokit.text.tokenizers import get_tokenizer

DOCUMENTS = [
    ["I don't know. He left me.", "A second paragraph, by Mr. Smith."],
    ["Another document!"],
    ["One.", "Two.", "x" * 60],
    *[[f"Document {number} says: it's number {number}."] for number in range(40)],
]
ENGLISH = get_tokenizer("english-1")


@pytest.fixture
def raw(tmp_path: Path) -> list[Path]:
    """Two raw files, one of them compressed, with blank lines at every position."""
    halves = DOCUMENTS[:5], DOCUMENTS[5:]
    texts = [
        "\n\n" + "\n \n\n".join("\n".join(lines) for lines in half) + "\n\n" for half in halves
    ]
    paths = [tmp_path / "a.txt", tmp_path / "b.txt.zst"]
    paths[0].write_text(texts[0])
    paths[1].write_bytes(zstandard.compress(texts[1].encode()))
    return paths


def sentences(directory: Path, shard: int = 0) -> list[str]:
    return list(read_lines(directory / f"shard-{shard:05d}.txt.zst"))


def expected_shards(documents: list[list[str]], num_shards: int, seed: int) -> list[list[str]]:
    """Documents sorted by the hash of their number, and distributed to shards by the same hash."""
    shards: list[list[str]] = [[] for _ in range(num_shards)]
    for number in sorted(range(len(documents)), key=lambda number: sort_key(number, seed)):
        for line in documents[number]:
            for sentence in ENGLISH.split_sentences(line):
                shards[sort_key(number, seed) % num_shards].append(
                    " ".join(ENGLISH.tokenize(sentence))
                )
    return shards


def has_no_litter(directory: Path) -> bool:
    return not [path for path in directory.rglob("*") if path.name.startswith((".", "unsorted"))]


# --- Shards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [1, module.BUFFER_BYTES])
def test_prepare_equals_a_single_process_loop(
    buffer: int, tmp_path: Path, raw: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUFFER_BYTES", buffer)
    report = prepare(raw, tmp_path / "out", num_shards=3, processes=1, seed=7)
    shards = [sentences(tmp_path / "out", shard) for shard in range(3)]
    assert shards == expected_shards(DOCUMENTS, 3, 7)
    assert all(shards)
    lines = [line for shard in shards for line in shard]
    assert "I do n't know ." in lines
    assert report.documents == len(DOCUMENTS)
    assert report.sentences == len(lines)
    assert (
        report.words
        == sum(len(line.split()) for line in lines)
        == sum(report.words_per_input.values())
    )
    assert read_report(tmp_path / "out") == report
    assert (
        json.loads((tmp_path / "out" / "corpus.json").read_text())["options"]["tokenizer"]
        == "english-1"
    )
    assert has_no_litter(tmp_path)


def test_prepare_writes_the_residues_of_proteins_as_words(tmp_path: Path) -> None:
    sequences = [
        "".join(random.Random(number).choices("ACDEFGHIKLMNPQRSTVWY", k=150)) for number in range(5)
    ]
    near_copy = sequences[0][:-1] + "A"
    entries = [
        f">p{number}\n{text[:60]}\n{text[60:]}\n"
        for number, text in enumerate([*sequences, near_copy])
    ]
    (tmp_path / "proteins.fasta").write_text("".join(entries))
    report = prepare([tmp_path / "proteins.fasta"], tmp_path / "shards", processes=1)
    assert report.options.tokenizer == "whitespace-1"
    assert (report.sentences, report.words, report.dropped["near_duplicate"].documents) == (
        5,
        750,
        1,
    )
    assert sorted(sentences(tmp_path / "shards")) == sorted(" ".join(text) for text in sequences)


# --- Duplicates and exclusion ---------------------------------------------------------------------


def paragraph(seed: int, length: int = 60) -> str:
    return " ".join(f"word{number}" for number in random.Random(seed).choices(range(500), k=length))


def written(path: Path, documents: list[list[str]]) -> Path:
    path.write_text("\n\n".join("\n".join(lines) for lines in documents))
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


def line_of(document: int) -> int:
    """The line at which a document of REPEATING begins in its file: a blank one is between two."""
    return 1 + sum(len(lines) + 1 for lines in REPEATING[:document])


def counts(report: PrepareReport) -> dict[str, tuple[int, int, int]]:
    return {
        reason: (count.documents, count.paragraphs, count.words)
        for reason, count in report.dropped.items()
    }


def test_prepare_drops_counts_and_lists_duplicates(tmp_path: Path) -> None:
    raw = written(tmp_path / "raw.txt", REPEATING)
    held_out = written(tmp_path / "held.txt", [[HELD_OUT]])
    report = prepare([raw], tmp_path / "out", processes=1, num_shards=1, exclude=[held_out])
    assert counts(report) == {
        "excluded": (1, 1, 62 + 60),
        "exact_duplicate": (1, 0, 60),
        "near_duplicate": (1, 0, 61),
        "repeated_paragraph": (1, 2, 4 * 60),
        "empty": (1, 0, 0),
    }
    new = "A first new line ."
    kept = [
        ONE,
        THREE,
        "Short .",
        TWO,
        "Short .",
        new,
        paragraph(9),
        "Short .",
        paragraph(10),
        paragraph(11),
    ]
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
    assert notes[2]["like"] == {"file": str(raw), "line": 1}
    assert 0.8 <= notes[2]["similarity"] < 1
    assert notes[4]["like"] == {"file": str(held_out), "line": 1}
    assert "dropped (exact duplicate): 1 documents, 0 paragraphs, 60 words" in str(report)


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({}, ["exact_duplicate", "near_duplicate", "repeated_paragraph", "empty"]),
        ({"drop_paragraphs": False}, ["exact_duplicate", "near_duplicate", "empty"]),
        ({"drop_duplicates": "exact"}, ["exact_duplicate", "repeated_paragraph", "empty"]),
        ({"drop_duplicates": "none"}, ["repeated_paragraph", "empty"]),
        ({"drop_duplicates": "none", "drop_paragraphs": False}, ["empty"]),
    ],
)
def test_prepare_options_turn_off_each_reason(
    tmp_path: Path, options: dict[str, Any], left_out: list[str]
) -> None:
    raw = written(tmp_path / "raw.txt", REPEATING)
    held_out = written(tmp_path / "held.txt", [[HELD_OUT]])
    report = prepare([raw], tmp_path / "out", processes=1, **options)
    assert [reason for reason, count in report.dropped.items() if count != DropCount()] == left_out
    total = report.words + sum(count.words for count in report.dropped.values())
    assert total == sum(len(ENGLISH.tokenize(line)) for lines in REPEATING for line in lines)
    excluding = prepare([raw], tmp_path / "excluding", processes=1, exclude=[held_out], **options)
    # Whatever the other options are.
    assert counts(excluding) == {**counts(report), "excluded": (1, 1, 122)}


# --- An output that is there ----------------------------------------------------------------------


def test_prepare_does_nothing_when_the_output_is_complete(tmp_path: Path, raw: list[Path]) -> None:
    first = prepare(raw, tmp_path / "out", num_shards=2, processes=1)
    before = contents(tmp_path / "out")
    again = prepare(raw, tmp_path / "out", num_shards=2, processes=1)
    assert again.already_done
    assert not first.already_done
    assert again.words == first.words
    assert "nothing was done" in str(again)
    for inputs, seed in ((raw, 1), (raw[::-1], 0)):  # the order of files is that of the documents
        with pytest.raises(FileExistsError, match="other options"):
            prepare(inputs, tmp_path / "out", num_shards=2, seed=seed, processes=1)
    assert contents(tmp_path / "out") == before
    prepare(raw, tmp_path / "out", num_shards=3, seed=1, processes=1, overwrite=True)
    prepare(raw, tmp_path / "fresh", num_shards=3, seed=1, processes=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    assert has_no_litter(tmp_path)


@pytest.mark.parametrize("overwrite", [False, True])
def test_prepare_leaves_a_directory_with_foreign_files_alone(
    tmp_path: Path, raw: list[Path], overwrite: bool
) -> None:
    (tmp_path / "foreign").mkdir()
    prepare(raw, tmp_path / "corpus", processes=1)
    for name in ("foreign", "corpus"):
        (tmp_path / name / "thesis.tex").write_text("mine")
        before = contents(tmp_path / name)
        with pytest.raises(FileExistsError):
            prepare(raw, tmp_path / name, processes=1, seed=3, overwrite=overwrite)
        assert contents(tmp_path / name) == before


# --- Invalid input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": []}, "list of files"),
        ({"inputs": "a.txt"}, "list of files"),
        ({"num_shards": 0}, "num_shards"),
        ({"tokenizer": "klingon-1"}, "english-1"),
        ({"inputs": ["a.txt", "bad.txt"]}, r"bad\.txt, line 3"),
    ],
)
def test_prepare_refuses_what_it_cannot_use_and_writes_nothing(
    arguments: dict[str, Any],
    message: str,
    tmp_path: Path,
    raw: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.txt").write_bytes(b"good\n\nba\xffd\n")
    before = set(tmp_path.iterdir())
    with pytest.raises(ValueError, match=message):
        prepare(**{"inputs": ["a.txt"], "output": "out", "processes": 1, **arguments})
    assert set(tmp_path.iterdir()) == before


# --- Interrupted ----------------------------------------------------------------------------------


PREPARE = "import sys; from elmokit.cli import main; sys.exit(main(sys.argv[1:]))"


def descendants(pid: int) -> list[int]:
    """All child processes of a process, recursively."""
    try:
        children = [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
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
def test_prepare_killed_leaves_no_workers_and_starts_over(tmp_path: Path) -> None:
    text = "\n\n".join(f"{paragraph(seed, 400)}." for seed in range(2400))  # some seconds of work
    (tmp_path / "raw.txt").write_text(text)
    command = f"prepare {tmp_path / 'raw.txt'} --output {tmp_path / 'out'} --processes 2".split()
    process = subprocess.Popen([sys.executable, "-c", PREPARE, *command], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while (
        len(descendants(process.pid)) < 3 and time.monotonic() < deadline
    ):  # two workers and the resource tracker
        time.sleep(0.02)
    workers = descendants(process.pid)
    assert len(workers) == 3
    assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, workers))
    assert main(command) == 0
    prepare([tmp_path / "raw.txt"], tmp_path / "whole", processes=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert has_no_litter(tmp_path)


def test_wrapped_lines_are_joined_to_paragraphs(tmp_path: Path) -> None:
    wrapped = tmp_path / "wrapped.txt"
    paragraphs = tmp_path / "paragraphs.txt"
    wrapped.write_text(
        "She wore a satin\nvelvet dress. It\n  was old.\n\n\nHe left. They\nlaughed.\n"
    )
    paragraphs.write_text("She wore a satin velvet dress. It was old.\nHe left. They laughed.\n")
    options: dict[str, Any] = {"processes": 1, "num_shards": 1}
    prepare([wrapped], tmp_path / "a", lines="wrapped", **options)
    prepare([paragraphs], tmp_path / "b", **options)
    assert sentences(tmp_path / "a") == sentences(tmp_path / "b")
    assert len(sentences(tmp_path / "a")) == 4


@pytest.mark.slow
@pytest.mark.parametrize("size", [50, 60_000])  # one chunk, and several
def test_prepare_in_a_script_that_processes_cannot_import(size: int, tmp_path: Path) -> None:
    text = "".join(f"Sentence number {number} is here.\n\n" for number in range(size))
    (tmp_path / "raw.txt").write_text(text)
    script = "import elmokit\nelmokit.prepare(['raw.txt'], 'shards', processes=2)\n"
    command = [sys.executable, "-"]
    run = subprocess.run(
        command, input=script, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if size == 50:
        assert (run.returncode, read_report(tmp_path / "shards").sentences) == (0, 50)
    else:
        assert "processes=1" in run.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["raw.txt"]
