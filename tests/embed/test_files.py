"""File to file: the vectors of the embedder, in parts that outlive a kill, and errors that leave
nothing by halves.
"""

import errno
import gzip
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from directories import contents
from own_process import kill, start_process
from tiny_model import tiny_model

from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import FileJob, FileReport, embed_file, encode_file
from elmokit.embed.pipeline import Pipeline
from elmokit.fs.atomic import directory_lock
from elmokit.nn.bilm import BiLM
from elmokit.storage.store import EmbeddingStore, StoreIndex, StoreWriter

# Lines of random words look neither raw nor English.
pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.filterwarnings(
        "ignore:.*(is read as|has letters of|has lines of|does not look like)"
    ),
]

WORDS = ["I", "like", "apple", "naïve", "词向量", "the", "of", ",", "play", "unbelievable"]
KILLED_PART = 100


def random_lines(count: int) -> list[str]:
    """Sentences of 1 to 20 words; every seventh line is blank."""
    draw = random.Random(7)
    return [
        " ".join(draw.choices(WORDS, k=draw.randint(1, 20))) if line % 7 else ""
        for line in range(count)
    ]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    model = tiny_model(tokenizer="english-1", mix=MixWeights((0.2, 0.0, 0.4)))
    return Embedder(model, device="cpu")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(random_lines(23)) + "\n")
    return path


Write = Callable[..., FileReport]


@pytest.fixture
def write(tmp_path: Path, text: Path, embedder: Embedder) -> Write:
    """Write the vectors of the text to an output of this name."""

    def write(name: str, **options: Any) -> FileReport:
        function = encode_file if name.endswith("npy") else embed_file
        return function(text, tmp_path / name, embedder, **{"sentences_per_part": 5} | options)

    return write


def written(output: Path) -> dict[str, bytes]:
    return contents(output) if output.is_dir() else {"": output.read_bytes()}


# --- The vectors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["mix", "all", 1])
@pytest.mark.parametrize("state", ["zeros", "carry"])
def test_a_file_gets_the_vectors_of_the_embedder(
    tmp_path: Path, write: Write, embedder: Embedder, layers: str | int, state: str
) -> None:
    report = write("out", layers=layers, state=state)
    sentences = [line.split() for line in random_lines(23)]
    store = EmbeddingStore(tmp_path / "out")
    assert (report.sentences, report.words, report.parts, report.parts_kept) == (
        23,
        sum(map(len, sentences)),
        5,
        0,
    )
    assert [words for words, _ in store] == sentences
    for (_, found), expected in zip(store, embedder.embed(sentences, layers, state), strict=True):
        words_first = expected.swapaxes(0, 1) if layers == "all" else expected
        np.testing.assert_allclose(found, words_first, rtol=0, atol=1e-5)
    assert sorted(contents(tmp_path / "out")) == [
        "index.json",
        *(f"part-0000{n}.safetensors" for n in range(5)),
    ]


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_lines_get_the_vectors_of_encode(
    tmp_path: Path, write: Write, embedder: Embedder, pooling: str
) -> None:
    options: dict[str, Any] = {"pooling": pooling, "normalize_embeddings": True}
    assert write("out.npy", **options).sentences == 23
    found = np.load(tmp_path / "out.npy", mmap_mode="r")
    assert found.dtype == np.float32
    np.testing.assert_allclose(
        found, embedder.encode(random_lines(23), **options), rtol=0, atol=1e-5
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npy", "text.txt"]


def test_half_precision_compressed_and_tokenized_here(tmp_path: Path, embedder: Embedder) -> None:
    (tmp_path / "raw.txt.gz").write_bytes(gzip.compress(b"I don't.\n\nWell, yes!"))
    embed_file(
        tmp_path / "raw.txt.gz", tmp_path / "out", embedder, storage_dtype="float16", tokenize=True
    )
    (words, vectors), (_, blank), (last, _) = EmbeddingStore(tmp_path / "out")
    assert (words, last) == (["I", "do", "n't", "."], ["Well", ",", "yes", "!"])
    assert (vectors.dtype, blank.shape) == (np.float16, (0, embedder.dim))
    np.testing.assert_array_equal(vectors, embedder.embed([words])[0].astype(np.float16))


def test_a_sentence_of_100_000_words(tmp_path: Path) -> None:
    config = BiLMConfig.preset("tiny")
    embedder = Embedder(
        Pretrained(BiLM(replace(config, lstm=replace(config.lstm, num_layers=1)))), device="cpu"
    )
    sentence = random.Random(1).choices(WORDS, k=100_000)
    (tmp_path / "text.txt").write_text("I like apple\n" + " ".join(sentence) + "\nlike\n")
    embed_file(tmp_path / "text.txt", tmp_path / "out", embedder)
    store = EmbeddingStore(tmp_path / "out")
    assert [len(words) for words, _ in store] == [3, 100_000, 1]
    np.testing.assert_allclose(store[2][1], embedder.embed([["like"]])[0], rtol=0, atol=1e-5)
    beginning, end = (embedder.embed([words])[0] for words in (sentence[:500], sentence[-500:]))
    half = (
        embedder.dim // 2
    )  # forward, which cannot tell how the sentence goes on; backward, how it began
    np.testing.assert_allclose(store[1][1][:500, :half], beginning[:, :half], rtol=0, atol=1e-5)
    np.testing.assert_allclose(store[1][1][-500:, half:], end[:, half:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["out", "out.npy"])
@pytest.mark.parametrize("threads", [2, 4])
def test_parts_are_the_same_on_any_number_of_cores(
    tmp_path: Path,
    text: Path,
    embedder: Embedder,
    threads: int,
    name: str,
    num_threads: Callable[[int], None],
) -> None:
    lines = [
        *random_lines(40),
        "",
        " ".join(WORDS * 10),
        "",
        "",
    ]  # a long one, and blank ones to the end
    text.write_text("\n".join(lines) + "\n")
    small = Embedder(embedder.model, "cpu")
    small.pipeline.batch_words = 60  # some batches a part, begun ahead
    made = []
    for number in (1, threads):
        num_threads(number)
        function = encode_file if name.endswith("npy") else embed_file
        function(
            text,
            tmp_path / f"{number}-{name}",
            small,
            sentences_per_part=7,
            layers="top",
            tokenize=False,
        )
        made.append(written(tmp_path / f"{number}-{name}"))
    assert made[0] == made[1]


EMBED_FILE = """
import sys
from elmokit.embed.files import embed_file
embed_file(*sys.argv[1:4], layers="top", device="cpu")
"""


# Not what getrusage says, which includes the process that started this one.
STATUS = Path("/proc/self/status")

needs_peak_memory = pytest.mark.skipif(
    not STATUS.is_file(), reason="only Linux tells a process's own peak memory"
)


def peak_megabytes(program: str, *arguments: object) -> float:
    """Run a Python program on one thread; its arguments are `sys.argv[1:]`."""
    command = [
        sys.executable,
        "-c",
        f"{program}\nprint(open({str(STATUS)!r}).read())",
        *map(str, arguments),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    printed = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    (peak,) = (line.split()[1] for line in printed.splitlines() if line.startswith("VmHWM"))
    return int(peak) * 1024 / 1e6


@pytest.mark.slow
@needs_peak_memory
def test_peak_memory_does_not_grow_with_the_number_of_sentences(tmp_path: Path) -> None:
    config = BiLMConfig.preset("tiny")
    wide = replace(config, lstm=replace(config.lstm, num_layers=1, cell_dim=64, projection_dim=256))
    save(Pretrained(BiLM(wide)), tmp_path / "model")
    peaks = {}
    for count in (300, 1500):
        (tmp_path / "text.txt").write_text((" ".join(WORDS * 10) + "\n") * count)
        peaks[count] = peak_megabytes(
            EMBED_FILE, tmp_path / "text.txt", tmp_path / f"{count}", tmp_path / "model"
        )
    assert peaks[1500] < peaks[300] + 60, peaks  # the vectors are 246 MB more


# --- Interrupted and resumed ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "state"), [("out", "zeros"), ("out", "carry"), ("out.hdf5", "zeros")]
)
def test_a_killed_run_that_is_resumed_ends_with_the_same_vectors(
    tmp_path: Path, embedder: Embedder, name: str, state: str
) -> None:
    text, model, killed, whole = (
        tmp_path / each for each in ("text.txt", "model", name, f"whole-{name}")
    )
    text.write_text("\n".join(random_lines(1500)))
    save(embedder.model, model)
    options: dict[str, Any] = {"state": state, "device": "cpu", "sentences_per_part": KILLED_PART}
    parts = tmp_path / f".{name}.parts"
    enough = random.randrange(1, 7)
    process = start_process(embed_file, text, killed, model, **options)
    while len(list(parts.glob("part-*"))) < enough:
        assert process.is_alive(), f"the run ended before it had {enough} parts"
        time.sleep(0.002)
    kill(process)
    assert process.exitcode == -signal.SIGKILL
    left = len(list(parts.glob("part-*")))
    report = embed_file(text, killed, model, **options)
    assert (
        left - 1 <= report.parts_kept <= left
    )  # the last one may have been without its final check
    embed_file(text, whole, model, **options)
    if name == "out":
        assert contents(killed) == contents(whole)
        return
    with h5py.File(killed) as found, h5py.File(whole) as expected:
        assert set(found) == set(expected)
        assert len(expected) == 1501
        for each in expected:
            np.testing.assert_array_equal(found[each][()], expected[each][()])
    assert not list(tmp_path.glob("*.parts"))


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [(Pipeline, "continue_batch", 3), (FileJob, "_counted", 11), (StoreWriter, "shard", 3)],
)
def test_a_run_that_fails_while_it_writes_leaves_the_finished_parts(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int
) -> None:
    calls = []
    unpatched = getattr(owner, name)

    def stopped_in_the_third_part(*given: object) -> object:
        calls.append(1)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return unpatched(*given)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(owner, name, stopped_in_the_third_part)
        write("out", state="carry")
    names = [
        "index.json",
        "part-00000.safetensors",
        "part-00001.safetensors",
        "state-00001.safetensors",
    ]
    assert sorted(contents(tmp_path / ".out.parts")) == names
    assert write("out", state="carry").parts_kept == 2
    write("whole", state="carry")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("state", "missing", "kept"), [("carry", [2], 0), ("carry", [4], 0), ("zeros", [1, 4], 3)]
)
def test_a_finished_run_that_lost_parts_computes_them_again(
    tmp_path: Path, write: Write, state: str, missing: list[int], kept: int
) -> None:
    """With carried state all of them, as it keeps no state to go on from."""
    write("out", state=state)
    whole = contents(tmp_path / "out")
    for number in missing:
        (tmp_path / "out" / f"part-{number:05d}.safetensors").unlink()
    assert write("out", state=state).parts_kept == kept
    assert contents(tmp_path / "out") == whole


def test_a_finished_directory_that_is_written_again_stays_as_it_is(
    tmp_path: Path, write: Write
) -> None:
    write("out")
    paths = [tmp_path, *tmp_path.rglob("*")]
    before = [
        path.stat().st_mtime_ns for path in paths
    ]  # of directories too, which change with any new file in them
    for overwrite in (False, True):
        assert write("out", overwrite=overwrite).parts_kept == 5
    assert [path.stat().st_mtime_ns for path in paths] == before


# --- Outputs that exist ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out", "out.hdf5", "out.parquet", "out.npy"])
def test_output_with_other_vectors_needs_overwrite(tmp_path: Path, write: Write, name: str) -> None:
    output = tmp_path / name
    parts = tmp_path / f".{name}.parts"
    write(name)
    before = written(output)
    with pytest.raises((ValueError, FileExistsError), match="ask to overwrite it"):
        write(name, layers=1)
    assert written(output) == before
    # What kills leave: something written aside, and a store that another job did not complete.
    (tmp_path / f".partial-01234567-{name}").mkdir()
    write(f".{name}.parts")
    replace(StoreIndex.read(parts), complete=False).write(parts)
    write(name, layers=1, overwrite=True)
    write(f"fresh-{name}", layers=1)
    assert written(output) == written(tmp_path / f"fresh-{name}")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [name, f"fresh-{name}", "text.txt"]
    )


@pytest.mark.parametrize("name", ["out", "out.npy"])
def test_overwriting_keeps_the_old_output_until_the_new_one_is_complete(
    tmp_path: Path, write: Write, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(name, layers=1)
    before = written(tmp_path / name)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    last_step = {"out": "embed.files.remove_directory", "out.npy": "fs.atomic._finish"}[name]
    # A run that was interrupted, and one with other settings, which begins anew.
    for layers, step in ((0, "embed.files.StoreWriter.finish"), (2, last_step)):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(f"elmokit.{step}", stop)
            write(name, layers=layers, overwrite=True)
        assert written(tmp_path / name) == before
    assert write(name, layers=2, overwrite=True).parts_kept == (5 if name == "out" else 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "text.txt"])


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("name", ["out", "out.hdf5", "out.npy"])
def test_an_output_behind_a_link_is_written_where_it_leads(
    tmp_path: Path, write: Write, name: str, exists: bool
) -> None:
    if exists:
        write(f"elsewhere/{name}", layers=1)
    (tmp_path / name).symlink_to(tmp_path / "elsewhere" / name)
    assert write(name, overwrite=exists).output == tmp_path / name
    write(f"fresh-{name}")
    assert (tmp_path / name).is_symlink()
    assert not list(tmp_path.rglob("*.parts"))
    assert written(tmp_path / "elsewhere" / name) == written(tmp_path / f"fresh-{name}")


def test_what_is_no_store_is_not_overwritten(tmp_path: Path, text: Path, write: Write) -> None:
    write("out")
    (tmp_path / "out" / "notes.txt").write_text("my notes")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("mine")
    (tmp_path / "link.hdf5").symlink_to(text)
    for name, reason in (
        ("out", "also holds notes"),
        ("foreign", r"no index\.json"),
        ("link.hdf5", "the input"),
    ):
        with pytest.raises((FileExistsError, ValueError), match=reason):
            write(name, layers=1, overwrite=True)
    (tmp_path / "out" / "notes.txt").unlink()
    (tmp_path / "out" / "index.json").write_text("damaged")
    with (
        directory_lock(tmp_path / ".out.parts"),
        pytest.raises(ValueError, match=r"another process is writing in .*out"),
    ):
        write("out", layers=1, overwrite=True)
    write("out", layers=1, overwrite=True)
    assert EmbeddingStore(tmp_path / "out").index.settings["layers"] == 1
    text.write_text(text.read_text().replace("like", "hate"))  # of the same size
    with pytest.raises(FileExistsError, match="holds other embeddings"):
        write("out", layers=1)


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "name", "options", "message"),
    [
        (b"fine\nfine too\nnot \xff fine\n", "out", {}, r"text\.txt, line 3"),
        (b"", "out", {}, r"text\.txt is empty"),
        (b"a\n" * 3 + b"a " * 100_001, "out", {}, r"text\.txt, line 4 has 100,001 words"),
        (b"a b\n", "out", {"layers": 9}, "layers must be"),
        (b"a b\n", "out", {"state": "cold"}, "state must be"),
        (b"a b\n", "text.txt/out", {}, r"text\.txt"),
        (b"a b\n", "out.npz", {}, r"out\.npz would be a directory"),
        (b"a b\n", "out", {"normalize_embeddings": True}, r"must end in \.npy"),
        (b"a b\n", "out.npy", {"pooling": "median"}, "pooling must be"),
    ],
)
def test_errors_are_raised_before_anything_is_written(
    tmp_path: Path,
    embedder: Embedder,
    content: bytes,
    name: str,
    options: dict[str, Any],
    message: str,
) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    write = encode_file if {"pooling", "normalize_embeddings"} & options.keys() else embed_file
    with pytest.raises((ValueError, OSError), match=message):
        write(tmp_path / "text.txt", tmp_path / name, embedder, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
