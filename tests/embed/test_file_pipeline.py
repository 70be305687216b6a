"""File to file: the vectors of the embedder, in parts that outlive a kill, and errors that leave nothing by halves."""

import errno
import gzip
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from directories import contents
from own_process import kill, start_process
from peak_memory import needs_peak_memory, peak_megabytes

from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed import files
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file, encode_file
from elmokit.embed.job import FileJob, Progress
from elmokit.embed.pipeline import Pipeline, Sizes
from elmokit.fs.atomic import write_json
from elmokit.fs.lock import only_one_in
from elmokit.nn.bilm import BiLM
from elmokit.storage.store import EmbeddingStore, StoreIndex, read_index, write_shard
from elmokit.text.characters import TruncationWarning

# Lines of random words look neither raw nor English.
pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.filterwarnings("ignore:.*(is read as|has letters of|has lines of|does not look like)"),
]

WORDS = ["I", "like", "apple", "naïve", "词向量", "the", "of", ",", "play", "unbelievable"]
MANY_LINES = {"zeros": 6000, "carry": 1500}
KILLED_PART = 100


def random_lines(count: int) -> list[str]:
    """Sentences of 1 to 20 words; every seventh line is blank."""
    draw = random.Random(7)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 20))) if line % 7 else "" for line in range(count)]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    torch.manual_seed(5)
    bilm = BiLM(BiLMConfig.preset("tiny"))
    return Embedder(Pretrained(bilm, tokenizer="english-1", mix=MixWeights((0.2, 0.0, 0.4))), device="cpu")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(random_lines(23)) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("layers", ["mix", "all", 1])
@pytest.mark.parametrize("state", ["zeros", "carry"])
def test_a_file_gets_the_vectors_of_the_embedder(
    tmp_path: Path, text: Path, embedder: Embedder, layers: str | int, state: str
) -> None:
    report = embed_file(text, tmp_path / "out", embedder, layers=layers, state=state, sentences_per_part=5)
    sentences = [line.split() for line in random_lines(23)]
    store = EmbeddingStore(tmp_path / "out")
    assert (report.sentences, report.words, report.parts, report.parts_kept) == (23, sum(map(len, sentences)), 5, 0)
    assert [words for words, _ in store] == sentences
    for (_, found), expected in zip(store, embedder.embed(sentences, layers, state), strict=True):
        words_first = expected.swapaxes(0, 1) if layers == "all" else expected
        np.testing.assert_allclose(found, words_first, rtol=0, atol=1e-5)
    assert sorted(contents(tmp_path / "out")) == ["index.json", *(f"part-0000{n}.safetensors" for n in range(5))]


def test_half_precision_compressed_and_tokenized_here(tmp_path: Path, embedder: Embedder) -> None:
    (tmp_path / "raw.txt.gz").write_bytes(gzip.compress(b"I don't.\n\nWell, yes!"))
    embed_file(tmp_path / "raw.txt.gz", tmp_path / "out", embedder, storage_dtype="float16", tokenize=True)
    (words, vectors), (_, blank), (last, _) = EmbeddingStore(tmp_path / "out")
    assert (words, last) == (["I", "do", "n't", "."], ["Well", ",", "yes", "!"])
    assert (vectors.dtype, blank.shape) == (np.float16, (0, embedder.dim))
    np.testing.assert_array_equal(vectors, embedder.embed([words])[0].astype(np.float16))


def test_long_words_are_counted_over_the_whole_file(tmp_path: Path, embedder: Embedder) -> None:
    (tmp_path / "text.txt").write_text(f"short {'x' * 60}\n{'y' * 60}\n{'x' * 60} {'z' * 48}\n")
    warning = "3 words are too long and are cut after 48 bytes, as in .*text.txt: '[xy]{60}'"
    with pytest.warns(TruncationWarning, match=warning):
        embed_file(tmp_path / "text.txt", tmp_path / "out", embedder, sentences_per_part=1)
    (tmp_path / "out" / "part-00002.safetensors").unlink()
    with pytest.warns(TruncationWarning, match=warning):
        report = embed_file(tmp_path / "text.txt", tmp_path / "out", embedder, sentences_per_part=1)
    assert (report.truncated_words, report.parts_kept) == (3, 2)


def test_a_sentence_of_100_000_words(tmp_path: Path) -> None:
    config = BiLMConfig.preset("tiny")
    embedder = Embedder(Pretrained(BiLM(replace(config, lstm=replace(config.lstm, num_layers=1)))), device="cpu")
    sentence = random.Random(1).choices(WORDS, k=100_000)
    (tmp_path / "text.txt").write_text("I like apple\n" + " ".join(sentence) + "\nlike\n", encoding="utf-8")
    embed_file(tmp_path / "text.txt", tmp_path / "out", embedder)
    store = EmbeddingStore(tmp_path / "out")
    assert [len(words) for words, _ in store] == [3, 100_000, 1]
    np.testing.assert_allclose(store[2][1], embedder.embed([["like"]])[0], rtol=0, atol=1e-5)
    beginning, end = (embedder.embed([words])[0] for words in (sentence[:500], sentence[-500:]))
    half = embedder.dim // 2  # forward, which cannot tell how the sentence goes on; backward, how it began
    np.testing.assert_allclose(store[1][1][:500, :half], beginning[:, :half], rtol=0, atol=1e-5)
    np.testing.assert_allclose(store[1][1][-500:, half:], end[:, half:], rtol=0, atol=1e-5)


EMBED_FILE = """
import sys
from elmokit.embed.files import embed_file
embed_file(*sys.argv[1:4], layers="top", device="cpu")
"""


@pytest.mark.slow
@needs_peak_memory
def test_peak_memory_does_not_grow_with_the_number_of_sentences(tmp_path: Path) -> None:
    config = BiLMConfig.preset("tiny")
    wide = replace(config, lstm=replace(config.lstm, num_layers=1, cell_dim=64, projection_dim=256))
    save(Pretrained(BiLM(wide)), tmp_path / "model")
    peaks = {}
    for count in (300, 1500):
        (tmp_path / "text.txt").write_text((" ".join(WORDS * 10) + "\n") * count, encoding="utf-8")
        peaks[count] = peak_megabytes(EMBED_FILE, tmp_path / "text.txt", tmp_path / f"{count}", tmp_path / "model")
    assert peaks[1500] < peaks[300] + 60, peaks  # the vectors are 246 MB more


# --- Stopped and taken up ------------------------------------------------------------------------------------------


def start_and_kill(model: Path, text: Path, output: Path, parts: Path, state: str) -> int:
    """Embed in a process of its own, killed at a random moment of its first half; returns how many parts it left."""
    process = start_process(embed_file, text, output, model, state=state, device="cpu", sentences_per_part=KILLED_PART)
    enough = random.randrange(1, len(text.read_text(encoding="utf-8").splitlines()) // KILLED_PART // 2)
    while len(list(parts.glob("part-*"))) < enough:
        assert process.is_alive(), f"the run ended before it had {enough} parts"
        time.sleep(0.002)
    kill(process)
    assert process.exitcode == -signal.SIGKILL
    return len(list(parts.glob("part-*")))


@pytest.mark.slow
@pytest.mark.parametrize("state", ["zeros", "carry"])
def test_a_killed_run_that_is_taken_up_ends_with_the_same_bytes(tmp_path: Path, embedder: Embedder, state: str) -> None:
    text, model = tmp_path / "text.txt", tmp_path / "model"
    text.write_text("\n".join(random_lines(MANY_LINES[state])), encoding="utf-8")
    save(embedder.model, model)
    left = start_and_kill(model, text, tmp_path / "killed", tmp_path / "killed", state)
    report = embed_file(text, tmp_path / "killed", model, state=state, device="cpu", sentences_per_part=KILLED_PART)
    assert left - 1 <= report.parts_kept <= left  # the last one may have been without its final check
    embed_file(text, tmp_path / "whole", model, state=state, device="cpu", sentences_per_part=KILLED_PART)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_killed_hdf5_run_ends_with_the_same_datasets(tmp_path: Path, embedder: Embedder) -> None:
    text, model = tmp_path / "text.txt", tmp_path / "model"
    text.write_text("\n".join(random_lines(1500)), encoding="utf-8")
    save(embedder.model, model)
    killed, whole = tmp_path / "killed.hdf5", tmp_path / "whole.hdf5"
    start_and_kill(model, text, killed, tmp_path / ".killed.hdf5.parts", "zeros")
    assert not killed.exists()
    embed_file(text, killed, model, state="zeros", device="cpu", sentences_per_part=KILLED_PART)
    embed_file(text, whole, model, state="zeros", device="cpu", sentences_per_part=KILLED_PART)
    with h5py.File(killed) as found, h5py.File(whole) as expected:
        assert set(found) == set(expected) and len(expected) == 1501
        for name in expected:
            np.testing.assert_array_equal(found[name][()], expected[name][()])
    assert not list(tmp_path.glob("*.parts"))


@pytest.mark.parametrize("missing", [[0], [2], [1, 4], [4]])
def test_a_finished_run_with_carried_state_that_lost_parts_is_made_anew(
    tmp_path: Path, text: Path, embedder: Embedder, missing: list[int]
) -> None:
    """It keeps no state to go on from."""
    embed_file(text, tmp_path / "out", embedder, state="carry", sentences_per_part=5)
    whole = contents(tmp_path / "out")
    for number in missing:
        (tmp_path / "out" / f"part-{number:05d}.safetensors").unlink()
    report = embed_file(text, tmp_path / "out", embedder, state="carry", sentences_per_part=5)
    assert contents(tmp_path / "out") == whole and report.parts_kept == 0


def test_a_finished_run_has_nothing_to_do_again(tmp_path: Path, text: Path, embedder: Embedder) -> None:
    for kept in (0, 5):
        assert embed_file(text, tmp_path / "out", embedder, sentences_per_part=5).parts_kept == kept


def test_another_text_of_the_same_size_is_not_taken_for_the_same(
    tmp_path: Path, text: Path, embedder: Embedder
) -> None:
    embed_file(text, tmp_path / "out", embedder)
    text.write_text(text.read_text(encoding="utf-8").replace("like", "hate"), encoding="utf-8")
    with pytest.raises(ValueError, match="holds other embeddings"):
        embed_file(text, tmp_path / "out", embedder)


# --- What goes wrong -----------------------------------------------------------------------------------------------


def test_invalid_utf8_is_told_with_its_line_before_anything_is_written(tmp_path: Path, embedder: Embedder) -> None:
    (tmp_path / "bad.txt").write_bytes(b"fine\nfine too\nnot \xff fine\n")
    with pytest.raises(ValueError, match=r"bad\.txt, line 3"):
        embed_file(tmp_path / "bad.txt", tmp_path / "out", embedder, sentences_per_part=1)
    assert not (tmp_path / "out").exists()


def test_an_empty_and_a_missing_file_and_layers_that_are_not_there(
    tmp_path: Path, text: Path, embedder: Embedder
) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty\.txt is empty"):
        embed_file(tmp_path / "empty.txt", tmp_path / "out", embedder)
    with pytest.raises(FileNotFoundError, match="absent"):
        embed_file(tmp_path / "absent.txt", tmp_path / "out", embedder)
    with pytest.raises(ValueError, match="layers must be"):
        embed_file(text, tmp_path / "out", embedder, layers=9)
    assert not (tmp_path / "out").exists()


def test_blank_lines_alone_and_one_sentence(tmp_path: Path, embedder: Embedder) -> None:
    for name, content, lengths in (("blank", "\n\n", [0, 0]), ("one", "I like apple", [3])):
        (tmp_path / f"{name}.txt").write_text(content)
        embed_file(tmp_path / f"{name}.txt", tmp_path / name, embedder)
        assert [len(words) for words, _ in EmbeddingStore(tmp_path / name)] == lengths


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_an_unwritable_output(tmp_path: Path, text: Path, embedder: Embedder) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(OSError):
        embed_file(text, tmp_path / "locked" / "out", embedder)


def test_an_output_below_a_file_or_that_is_one(tmp_path: Path, text: Path, embedder: Embedder) -> None:
    for output in (text / "out", text):
        with pytest.raises((OSError, ValueError), match=r"text\.txt"):
            embed_file(text, output, embedder)


def test_a_full_disk_leaves_the_finished_parts(
    tmp_path: Path, text: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_until_full(directory: Path, index: StoreIndex, number: int, sentences: list[list[str]]) -> object:
        if number == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_shard(directory, index, number, sentences)

    monkeypatch.setattr("elmokit.embed.file_pipeline.write_shard", write_until_full)
    with pytest.raises(OSError, match="No space left"):
        embed_file(text, tmp_path / "out", embedder, sentences_per_part=5)
    assert sorted(contents(tmp_path / "out")) == ["index.json", "part-00000.safetensors", "part-00001.safetensors"]
    assert not read_index(tmp_path / "out").complete
    monkeypatch.undo()
    assert embed_file(text, tmp_path / "out", embedder, sentences_per_part=5).parts_kept == 2


@pytest.mark.parametrize("pooling", [None, "mean"])
@pytest.mark.parametrize("threads", [2, 4])
def test_parts_are_the_same_on_any_number_of_cores(
    tmp_path: Path, embedder: Embedder, threads: int, pooling: str | None, num_threads: Callable[[int], None]
) -> None:
    # some batches a part, and parts begun ahead
    embedder = Embedder(embedder.model, "cpu", sizes=Sizes(batch_words=60))
    lines = [*random_lines(40), "", " ".join(WORDS * 10), "", ""]  # a long one, and blank ones to the end
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def made(name: str) -> dict[str, bytes]:
        (tmp_path / name).mkdir()
        settings = {"sentences_per_part": 7, "layers": "top", "tokenize": False}
        if pooling is None:
            embed_file(tmp_path / "text.txt", tmp_path / name, embedder, storage_dtype="float16", **settings)
        else:
            encode_file(tmp_path / "text.txt", tmp_path / name / "lines.npy", embedder, pooling=pooling, **settings)
        return contents(tmp_path / name)

    num_threads(1)
    expected = made("one")
    num_threads(threads)
    assert made("several") == expected


@pytest.mark.parametrize("threads", [1, 2])
def test_a_part_is_there_while_the_next_but_one_is_read(
    tmp_path: Path,
    embedder: Embedder,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
    num_threads: Callable[[int], None],
) -> None:
    """Whoever stops a run loses what was under way, not what was made long ago."""
    (tmp_path / "text.txt").write_text("one two\n\nthree\n\n\n\nfour\n\n", encoding="utf-8")
    counted, expected = Progress.counted, ["part-00000.safetensors", "part-00001.safetensors"]

    def counted_when_the_parts_are_there(progress: Progress, line: str) -> list[str]:
        end = time.monotonic() + 20
        while line == "four" and sorted(path.name for path in (tmp_path / "out").glob("part-*"))[:2] != expected:
            assert time.monotonic() < end, "the parts are not written"
            time.sleep(0.01)
        return counted(progress, line)

    monkeypatch.setattr(Progress, "counted", counted_when_the_parts_are_there)
    num_threads(threads)
    embed_file(tmp_path / "text.txt", tmp_path / "out", embedder, sentences_per_part=2)


@pytest.mark.parametrize("failing", ["embed_carrying", "counted"])
def test_a_run_that_fails_while_it_writes_leaves_the_finished_parts(
    tmp_path: Path, text: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    calls: list[int] = []
    where = {"embed_carrying": Pipeline, "counted": Progress}[failing]
    unpatched = getattr(where, failing)

    def stopped_in_the_third_part(*given: object) -> object:
        calls.append(1)
        if len(calls) == {"embed_carrying": 4, "counted": 11}[failing]:  # the first embedding tells the shape
            raise KeyboardInterrupt
        return unpatched(*given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(where, failing, stopped_in_the_third_part)
        embed_file(text, tmp_path / "out", embedder, state="carry", sentences_per_part=5)
    names = ["index.json", "part-00000.safetensors", "part-00001.safetensors", "state-00001.safetensors"]
    assert sorted(contents(tmp_path / "out")) == names
    embed_file(text, tmp_path / "out", embedder, state="carry", sentences_per_part=5)
    embed_file(text, tmp_path / "whole", embedder, state="carry", sentences_per_part=5)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_numbers_that_float16_cannot_hold_stop_the_run(tmp_path: Path, text: Path) -> None:
    bilm = BiLM(BiLMConfig.preset("tiny"))
    large = Embedder(Pretrained(bilm, mix=MixWeights((0.0, 0.0, 0.0), gamma=1e9)), device="cpu")
    with pytest.raises(ValueError, match="too large for float16"):
        embed_file(text, tmp_path / "out", large, state="zeros", storage_dtype="float16", sentences_per_part=5)
    assert sorted(contents(tmp_path / "out")) == ["index.json"]


def leave_unfinished(text: Path, store: Path, embedder: Embedder) -> None:
    """A store as a run leaves it that is killed before its end."""
    embed_file(text, store, embedder)
    write_json(store / "index.json", asdict(replace(read_index(store), complete=False)))


def test_a_directory_in_which_a_run_writes_is_not_overwritten(tmp_path: Path, text: Path, embedder: Embedder) -> None:
    embed_file(text, tmp_path / "out", embedder)
    before = contents(tmp_path / "out")
    with only_one_in(tmp_path / "out"), pytest.raises(ValueError, match=r"another process is writing in .*out"):
        embed_file(text, tmp_path / "out", embedder, layers=1, overwrite=True)
    assert contents(tmp_path / "out") == before


def test_overwriting_begins_anew_where_a_kill_left_a_part_half_written(
    tmp_path: Path, text: Path, embedder: Embedder
) -> None:
    leave_unfinished(text, tmp_path / ".out.hdf5.parts", embedder)
    (tmp_path / ".out.hdf5.parts" / ".partial-01234567-part-00001.safetensors").mkdir()
    embed_file(text, tmp_path / "out.hdf5", embedder, layers=1, overwrite=True)
    embed_file(text, tmp_path / "fresh.hdf5", embedder, layers=1)
    assert (tmp_path / "out.hdf5").read_bytes() == (tmp_path / "fresh.hdf5").read_bytes()
    assert not list(tmp_path.glob("*.parts"))


@pytest.mark.parametrize("name", ["out", "out.hdf5"])
def test_an_output_behind_a_link_is_written_where_it_leads(
    tmp_path: Path, text: Path, embedder: Embedder, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    embed_file(text, tmp_path / "elsewhere" / name, embedder)
    (tmp_path / name).symlink_to(tmp_path / "elsewhere" / name)
    stores: list[Path] = []
    monkeypatch.setattr(files, "EmbeddingStore", lambda path: stores.append(path) or EmbeddingStore(path))
    embed_file(text, tmp_path / name, embedder, layers=1, overwrite=True)
    assert stores == [tmp_path / "elsewhere" / f".{name}.parts"]
    assert (tmp_path / name).is_symlink() and not list(tmp_path.rglob("*.parts"))


@pytest.mark.parametrize("name", ["out", "out.hdf5", "out.npy"])
def test_an_output_behind_a_link_that_leads_nowhere_yet_is_written_there(
    tmp_path: Path, text: Path, embedder: Embedder, name: str
) -> None:
    (tmp_path / name).symlink_to(tmp_path / "elsewhere" / name)
    write = encode_file if name.endswith("npy") else embed_file
    assert write(text, tmp_path / name, embedder).output == tmp_path / name
    write(text, tmp_path / f"fresh-{name}", embedder)
    assert (tmp_path / name).is_symlink() and (tmp_path / "elsewhere" / name).exists()
    written, fresh = (path if path.is_dir() else None for path in (tmp_path / name, tmp_path / f"fresh-{name}"))
    if written and fresh:
        assert contents(written) == contents(fresh)
    else:
        assert (tmp_path / name).read_bytes() == (tmp_path / f"fresh-{name}").read_bytes()


def test_an_interrupt_while_a_directory_is_replaced_loses_no_part(
    tmp_path: Path, text: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed_file(text, tmp_path / "out", embedder, layers=1, sentences_per_part=5)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("fs.atomic._finish", "embed.files.publish_directory"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(f"elmokit.{step}", stop)
            embed_file(text, tmp_path / "out", embedder, sentences_per_part=5, overwrite=True)
        assert EmbeddingStore(tmp_path / "out").index.layers == "1"
    assert embed_file(text, tmp_path / "out", embedder, sentences_per_part=5, overwrite=True).parts_kept == 5
    embed_file(text, tmp_path / "whole", embedder, sentences_per_part=5)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text.txt", "whole"]


@pytest.mark.parametrize("damaged", [False, True])
def test_nothing_is_left_of_a_directory_that_is_replaced(
    tmp_path: Path, text: Path, embedder: Embedder, damaged: bool
) -> None:
    embed_file(text, tmp_path / "out", embedder, layers=1)
    if damaged:
        (tmp_path / "out" / "index.json").write_text("{")
    embed_file(text, tmp_path / "out", embedder, overwrite=True)
    assert EmbeddingStore(tmp_path / "out").index.layers == "mix"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text.txt"]


def test_reading_the_text_and_the_parts_shows_progress(
    tmp_path: Path, text: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("elmokit.progress.SECONDS_BETWEEN_LINES", 0)
    embed_file(text, tmp_path / "out", embedder, sentences_per_part=5)
    embed_file(text, tmp_path / "out", embedder, sentences_per_part=5)
    printed = capsys.readouterr().err.splitlines()
    for line in ("read text.txt: 23.0 lines", "check parts: 100%"):
        assert any(each.startswith(line) for each in printed), line


def test_a_finished_directory_that_is_written_again_stays_as_it_is(
    tmp_path: Path, text: Path, embedder: Embedder
) -> None:
    embed_file(text, tmp_path / "out", embedder, sentences_per_part=5)
    paths = [tmp_path, *tmp_path.rglob("*")]
    before = [path.stat().st_mtime_ns for path in paths]  # of directories too, which change with any new file in them
    for overwrite in (False, True):
        assert embed_file(text, tmp_path / "out", embedder, sentences_per_part=5, overwrite=overwrite).parts_kept == 5
    assert [path.stat().st_mtime_ns for path in paths] == before


def test_a_file_starts_from_a_policy_since_a_state_cannot_be_known_again(
    tmp_path: Path, text: Path, embedder: Embedder
) -> None:
    state = embedder.embed(["a b"], state="carry").state
    with pytest.raises(ValueError, match="must be zeros, warm or carry, not a BiLMState"):
        embed_file(text, tmp_path / "out", embedder, state=state)  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "out").exists()


def test_suffixes_of_outputs_count_whatever_their_case(tmp_path: Path, text: Path, embedder: Embedder) -> None:
    embed_file(text, tmp_path / "a.HDF5", embedder)
    embed_file(text, tmp_path / "b.hdf5", embedder)
    assert (tmp_path / "a.HDF5").read_bytes() == (tmp_path / "b.hdf5").read_bytes()
    encode_file(text, tmp_path / "c.NPY", embedder)
    assert np.load(tmp_path / "c.NPY").shape == (23, embedder.dim)
    with pytest.raises(ValueError, match=r"out\.hdf5\.gz would be a directory: name one without \.gz"):
        embed_file(text, tmp_path / "out.hdf5.gz", embedder)


def test_a_model_that_another_embedder_prepacked_cannot_be_written_for(tmp_path: Path, text: Path) -> None:
    save(Pretrained(BiLM(BiLMConfig.preset("tiny"))), tmp_path / "model")
    with pytest.raises(ValueError, match="prepacked"):
        embed_file(text, tmp_path / "out", Embedder(tmp_path / "model", device="cpu").model)


def test_embed_file_overwrites_a_store_alone(tmp_path: Path, text: Path, embedder: Embedder) -> None:
    site = tmp_path / "site"
    (site / "posts").mkdir(parents=True)
    (site / "index.json").write_text('{"title": "my home page"}')
    before = sorted(site.rglob("*"))
    with pytest.raises(FileExistsError, match="also holds posts"):
        embed_file(text, site, embedder, overwrite=True)
    embed_file(text, tmp_path / "out", embedder)
    (tmp_path / "out" / "notes.txt").write_text("my notes")
    with pytest.raises(FileExistsError, match="also holds notes"):
        embed_file(text, tmp_path / "out", embedder, layers=1, overwrite=True)
    assert sorted(site.rglob("*")) == before and (tmp_path / "out" / "notes.txt").read_text() == "my notes"
    (tmp_path / "out" / "notes.txt").unlink()
    (tmp_path / "out" / "index.json").write_text("damaged")
    embed_file(text, tmp_path / "out", embedder, layers=1, overwrite=True)
    assert EmbeddingStore(tmp_path / "out").index.complete


def test_a_part_that_is_missing_is_named_and_computed_again(tmp_path: Path, text: Path, embedder: Embedder) -> None:
    embed_file(text, tmp_path / "out", embedder, sentences_per_part=5)
    (tmp_path / "out" / "part-00001.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"part-00001\.safetensors"):
        EmbeddingStore(tmp_path / "out")[7]
    embed_file(text, tmp_path / "out", embedder, sentences_per_part=5)
    assert EmbeddingStore(tmp_path / "out")[7]


@pytest.mark.parametrize("name", ["out", "out.hdf5", "out.parquet", "out.npy"])
def test_output_with_other_vectors_needs_overwrite(tmp_path: Path, text: Path, embedder: Embedder, name: str) -> None:
    output, write = tmp_path / name, encode_file if name.endswith("npy") else embed_file

    def made(output: Path) -> dict[str, bytes]:
        return contents(output) if output.is_dir() else {"": output.read_bytes()}

    write(text, output, embedder, sentences_per_part=5)
    top = made(output)
    with pytest.raises((ValueError, FileExistsError), match="ask to overwrite it"):
        write(text, output, embedder, layers=1)
    assert made(output) == top
    (tmp_path / f".partial-01234567-{name}").mkdir()  # as a kill leaves it
    leave_unfinished(text, tmp_path / f".{name}.parts", embedder)
    write(text, output, embedder, layers=1, overwrite=True)
    write(text, tmp_path / f"fresh-{name}", embedder, layers=1)
    assert made(output) == made(tmp_path / f"fresh-{name}")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, f"fresh-{name}", "text.txt"])


@pytest.mark.parametrize("name", ["out", "out.npy"])
def test_overwriting_keeps_the_old_output_until_the_new_one_is_complete(
    tmp_path: Path, text: Path, embedder: Embedder, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, write = tmp_path / name, encode_file if name.endswith("npy") else embed_file
    write(text, output, embedder, layers=1)
    before = contents(output) if name == "out" else output.read_bytes()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for layers in (0, 2):  # a run that was stopped, and one with other settings, which begins anew
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("elmokit.embed.files.EmbeddingStore", stop)
            write(text, output, embedder, layers=layers, overwrite=True)
        assert (contents(output) if name == "out" else output.read_bytes()) == before
    assert write(text, output, embedder, layers=2, overwrite=True).parts_kept == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "text.txt"])


def test_text_that_changes_while_it_is_embedded_is_found(
    tmp_path: Path, text: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, skip = text.read_text(encoding="utf-8").splitlines(), FileJob.index
    changes = {"other": [*lines[:12], "other", *lines[13:]], "shorter": lines[:-3], "longer": [*lines, "more"]}
    for name, changed in changes.items():

        def change(job: FileJob, changed: list[str] = changed) -> StoreIndex:
            index = skip.func(job)
            text.write_text("\n".join(changed) + "\n", encoding="utf-8")
            return index

        text.write_text("\n".join(lines) + "\n", encoding="utf-8")
        with (
            monkeypatch.context() as patch,
            pytest.raises(ValueError, match=r"text\.txt (was changed|has grown) while"),
        ):
            patch.setattr(FileJob, "index", property(change))
            embed_file(text, tmp_path / name, embedder, sentences_per_part=5)
        assert not read_index(tmp_path / name).complete
        text.write_text("\n".join(lines) + "\n", encoding="utf-8")
        embed_file(text, tmp_path / name, embedder, sentences_per_part=5)
        embed_file(text, tmp_path / "whole", embedder, sentences_per_part=5)
        assert contents(tmp_path / name) == contents(tmp_path / "whole")


def test_an_output_that_is_the_input_is_refused(tmp_path: Path, text: Path, embedder: Embedder) -> None:
    for name in ("out.npy", "out.hdf5"):
        (tmp_path / name).symlink_to(text)
        with pytest.raises(ValueError, match="the input"):
            (encode_file if name.endswith("npy") else embed_file)(text, tmp_path / name, embedder, overwrite=True)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"foreign has no index\.json"):
        embed_file(text, tmp_path / "foreign", embedder, overwrite=True)


def test_what_is_wrong_with_the_output_is_said_before_the_text_is_read(tmp_path: Path, embedder: Embedder) -> None:
    (tmp_path / "there.npy").touch()
    with pytest.raises(ValueError, match="HDF5 holds float32"):
        embed_file("absent.txt", tmp_path / "out.hdf5", embedder, storage_dtype="float16")
    with pytest.raises(FileExistsError, match=r"there\.npy exists"):
        encode_file("absent.txt", tmp_path / "there.npy", embedder)
    with pytest.raises(ValueError, match="pooling must be"):
        encode_file("absent.txt", tmp_path / "out.npy", embedder, pooling="median")
    assert [path.name for path in tmp_path.iterdir()] == ["there.npy"]


# --- One vector a line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_lines_get_the_vectors_of_encode(tmp_path: Path, text: Path, embedder: Embedder, pooling: str) -> None:
    report = encode_file(
        text, tmp_path / "out.npy", embedder, pooling=pooling, normalize_embeddings=True, sentences_per_part=5
    )
    expected = embedder.encode(random_lines(23), pooling, normalize_embeddings=True)
    found = np.load(tmp_path / "out.npy")
    assert (found.dtype, report.sentences) == (np.float32, 23)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npy", "text.txt"]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy", mmap_mode="r"), found)


def test_encoding_takes_up_what_a_stopped_run_left(
    tmp_path: Path, text: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("elmokit.storage.npy.atomic_path", fail)
        encode_file(text, tmp_path / "out.npy", embedder, sentences_per_part=5)
    assert encode_file(text, tmp_path / "out.npy", embedder, sentences_per_part=5).parts_kept == 5
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), embedder.encode(random_lines(23)), rtol=0, atol=1e-5)


def test_encoding_says_what_it_cannot_do(tmp_path: Path, text: Path, embedder: Embedder) -> None:
    with pytest.raises(ValueError, match=r"name the output out\.npy"):
        encode_file(text, tmp_path / "out", embedder)
    with pytest.raises(ValueError, match="pooling must be"):
        encode_file(text, tmp_path / "out.npy", embedder, pooling="median")


@pytest.mark.parametrize("name", ["vectors.npy", "vectors.npz", "vectors.txt"])
def test_output_with_the_suffix_of_another_kind_of_file_is_refused(
    name: str, text: Path, embedder: Embedder, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"{name} would be a directory.*\.hdf5"):
        embed_file(text, tmp_path / name, embedder)
    assert not (tmp_path / name).exists()
    embed_file(text, tmp_path / "vectors.h5", embedder)
    assert h5py.is_hdf5(tmp_path / "vectors.h5")
