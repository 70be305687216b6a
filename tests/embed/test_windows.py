"""Long sentences: windows of any size make the vectors of the whole, in memory and in files; memory stays flat."""

import random
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from layers_alone import layers_alone
from peak_memory import needs_peak_memory, peak_megabytes

from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import MixWeights, Pretrained
from elmokit.config import BiLMConfig, InterleavedConfig
from elmokit.data.streams import PackedBatch
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_file, encode_file
from elmokit.embed.outputs import POOLINGS, RUNNING
from elmokit.embed.pipeline import Pipeline, Sizes, split_batches
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.storage.shard import ShardWriter
from elmokit.storage.store import EmbeddingStore

pytestmark = pytest.mark.filterwarnings("ignore:.*too long")
WORDS = ["I", "like", "apple", "naïve", "词向量", "the", "of", ",", "play", "unbelievable", "x" * 60]
LIMIT = 60  # words of a sentence that is not long, in these tests
LENGTHS = [3, 200, 0, 20, 61, 58, 59, 1, 150, 150, 7]
DRAWS = torch.Generator().manual_seed(1)
WARM = BiLMState(torch.randn(2, 2, 1, 16, generator=DRAWS), torch.randn(2, 2, 1, 32, generator=DRAWS))


def tiny_embedder(sizes: Sizes | None = None) -> Embedder:
    torch.manual_seed(5)
    bilm = BiLM(BiLMConfig.preset("tiny"))
    return Embedder(Pretrained(bilm, mix=MixWeights((0.2, 0.0, 0.4)), warm_state=WARM), device="cpu", sizes=sizes)


@pytest.fixture
def embedder() -> Embedder:
    """Whose long sentences are those of more than 58 words, made in windows of 17."""
    return tiny_embedder(Sizes(batch_words=LIMIT, window_positions=17))


def sentences_of(lengths: list[int] = LENGTHS) -> list[list[str]]:
    draw = random.Random(1)
    return [draw.choices(WORDS, k=length) for length in lengths]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(map(" ".join, sentences_of())) + "\n", encoding="utf-8")
    return path


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


# --- In memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", [1, 2, 3, 50, 101, 102, 103, 1000])
@pytest.mark.parametrize("length", [0, 1, 2, 100])
def test_windows_of_any_size_make_the_vectors_of_the_whole(positions: int, length: int) -> None:
    embedder = tiny_embedder(Sizes(window_positions=positions))
    (words,) = sentences_of([length])
    expected, after = layers_alone(embedder.model.bilm, words, WARM)
    found = np.full_like(expected, np.nan)

    state = None
    for result in embedder.embed_windows(words, "all", WARM):
        for half in result.halves:
            assert np.isnan(found[:, half.rows, half.columns]).all()
            found[:, half.rows, half.columns] = half.vectors
        state = result.state
    assert_close(found, expected)
    assert state is not None
    torch.testing.assert_close((state.h, state.c), (after.h, after.c), rtol=0, atol=1e-6)


@pytest.mark.parametrize("layers", ["mix", "average", "top", "all", 0, 1, -1])
def test_every_choice_of_layers(embedder: Embedder, layers: str | int) -> None:
    found = embedder.embed(sentences_of(), layers)
    for vectors, expected in zip(found, tiny_embedder().embed(sentences_of(), layers), strict=True):
        assert_close(vectors, expected)


def test_no_more_than_a_window_is_computed_at_a_time(embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    slots: list[int] = []
    encode = Pipeline.encode

    def counted(pipeline: Pipeline, block: PackedBatch) -> object:
        slots.append(block.tokens.shape[1])
        return encode(pipeline, block)

    monkeypatch.setattr(Pipeline, "encode", counted)
    (vectors,) = embedder.embed(sentences_of([500]))
    assert vectors.shape == (500, embedder.dim)
    assert max(slots) == 17 and sum(slots) == 502


def test_long_and_short_sentences_start_from_zeros_or_the_warm_state(embedder: Embedder) -> None:
    for state, start in (("zeros", None), ("warm", WARM)):
        found = embedder.embed(sentences_of(), "all", state)
        assert found.state is None
        for words, vectors in zip(sentences_of(), found, strict=True):
            assert_close(vectors, layers_alone(embedder.model.bilm, words, start)[0])


@pytest.mark.parametrize("batch_size", [1, 3])
def test_state_is_carried_through_long_and_short_sentences(embedder: Embedder, batch_size: int) -> None:
    sentences = sentences_of()
    first = embedder.embed(sentences[:6], "all", "carry", batch_size)
    found = [*first, *embedder.embed(sentences[6:], "all", first.state)]
    rows: list[BiLMState | None] = [None] * batch_size
    for number, words in enumerate(sentences):
        expected, rows[number % batch_size] = layers_alone(embedder.model.bilm, words, rows[number % batch_size])
        assert_close(found[number], expected)


def test_a_string_is_not_taken_for_a_list_of_words(embedder: Embedder) -> None:
    with pytest.raises(ValueError, match="not a string"):
        list(embedder.embed_windows("I like apple"))


def test_windows_start_from_a_state_of_one_row(embedder: Embedder) -> None:
    with pytest.raises(ValueError, match="2 rows, not 1: give one row for each"):
        list(embedder.embed_windows(["I"], state=embedder.model.bilm.initial_state(2)))


def test_words_that_lose_bytes_are_counted_once(embedder: Embedder) -> None:
    with pytest.warns(UserWarning, match="70 words are too long"):
        embedder.embed([["x" * 60] * 69, ["y" * 60]])


def test_directions_that_merge_are_computed_whole() -> None:
    config = BiLMConfig.preset("tiny")
    plain = InterleavedConfig(2, 16, 16, projects_layers=False)
    sizes = Sizes(batch_words=LIMIT, window_positions=17)
    embedder = Embedder(Pretrained(BiLM(replace(config, lstm=None, interleaved=plain))), device="cpu", sizes=sizes)
    words = sentences_of([100])[0]
    assert_close(embedder.embed([words], "top")[0], layers_alone(embedder.model.bilm, words)[0][-1])


@pytest.mark.parametrize("pooling", sorted(POOLINGS))
def test_long_texts_are_pooled(embedder: Embedder, pooling: str) -> None:
    assert RUNNING.keys() == POOLINGS.keys()
    pool = {"mean": np.mean, "max": np.max}[pooling]
    found = embedder.encode(sentences_of(), pooling, normalize_embeddings=True, layers="top")
    for words, vector in zip(sentences_of(), found, strict=True):
        layers, _ = layers_alone(embedder.model.bilm, words)
        expected = pool(layers[-1].astype(np.float64), axis=0) if words else np.zeros(embedder.dim)
        assert_close(vector, (expected / (np.linalg.norm(expected) or 1)).astype(np.float32))


def test_long_sentences_stand_apart() -> None:
    groups = [(list(map(len, group)), is_long) for group, is_long in split_batches(sentences_of(), LIMIT)]
    assert groups == [
        ([3], False), ([200], True), ([0, 20], False), ([61], True), ([58], False), ([59], True), ([1], False),
        ([150], True), ([150], True), ([7], False),
    ]  # fmt: skip


# --- In files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["zeros", "warm", "carry"])
@pytest.mark.parametrize("layers", ["mix", "all"])
def test_parts_of_long_and_short_lines(tmp_path: Path, text: Path, embedder: Embedder, layers: str, state: str) -> None:
    report = embed_file(text, tmp_path / "out", embedder, layers=layers, state=state, sentences_per_part=4)
    assert (report.words, report.parts) == (sum(LENGTHS), 3)
    assert report.truncated_words == sum(words.count("x" * 60) for words in sentences_of())
    store = EmbeddingStore(tmp_path / "out")
    carried: BiLMState | None = None
    for words, (found_words, found) in zip(sentences_of(), store, strict=True):
        start = {"zeros": None, "warm": WARM, "carry": carried}[state]
        expected, carried = layers_alone(embedder.model.bilm, words, start)
        weights = torch.softmax(torch.tensor([0.2, 0.0, 0.4]), dim=0).numpy()
        assert_close(found, expected.swapaxes(0, 1) if layers == "all" else np.tensordot(weights, expected, 1))
        assert found_words == words


def test_a_run_that_is_stopped_within_a_long_line_is_taken_up(
    tmp_path: Path, text: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[slice] = []

    def fill_until_stopped(writer: ShardWriter, rows: slice, *half: object) -> None:
        filled.append(rows)
        if len(filled) == 60:  # in the third part
            raise KeyboardInterrupt
        fill(writer, rows, *half)  # pyright: ignore[reportArgumentType]

    fill = ShardWriter.fill
    for state in ("zeros", "carry"):
        filled.clear()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(ShardWriter, "fill", fill_until_stopped)
            embed_file(text, tmp_path / f"stopped-{state}", embedder, state=state, sentences_per_part=4)
        report = embed_file(text, tmp_path / f"stopped-{state}", embedder, state=state, sentences_per_part=4)
        assert (report.parts_kept, report.words) == (2, sum(LENGTHS))
        embed_file(text, tmp_path / f"whole-{state}", embedder, state=state, sentences_per_part=4)
        for path in (tmp_path / f"whole-{state}").iterdir():
            assert path.read_bytes() == (tmp_path / f"stopped-{state}" / path.name).read_bytes()
        assert len(list((tmp_path / f"stopped-{state}").iterdir())) == 4


def test_hdf5_and_pooled_files(tmp_path: Path, text: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmokit.storage.hdf5.CHUNK_ROWS", 40)
    embed_file(text, tmp_path / "out.hdf5", embedder, layers="all")
    encode_file(text, tmp_path / "out.npy", embedder, pooling="max", layers="top", sentences_per_part=4)
    pooled = np.load(tmp_path / "out.npy")
    with h5py.File(tmp_path / "out.hdf5") as file:
        for line, words in enumerate(sentences_of()):
            expected, _ = layers_alone(embedder.model.bilm, words)
            assert_close(file[str(line)][()], expected)
            assert_close(pooled[line], expected[-1].max(axis=0) if words else np.zeros(embedder.dim, np.float32))


# --- Memory --------------------------------------------------------------------------------------------------------


EMBED_FILE = """
import sys
from elmokit.embed.files import embed_file
embed_file(*sys.argv[1:4], storage_dtype="float16", device="cpu")
"""


@pytest.mark.slow
@needs_peak_memory
def test_peak_memory_does_not_grow_with_a_line(tmp_path: Path) -> None:
    config = BiLMConfig.preset("tiny")
    save(Pretrained(BiLM(replace(config, lstm=replace(config.lstm, num_layers=1)))), tmp_path / "model")
    peaks = {}
    for words in (50_000, 400_000):
        line = " ".join(random.Random(1).choices(["I", "like", "apple", "unbelievable"], k=words))
        text = tmp_path / f"{words}.txt"
        text.write_text(f"I like apple\n{line}\nlike\n", encoding="utf-8")
        peaks[words] = peak_megabytes(EMBED_FILE, text, tmp_path / f"{words}", tmp_path / "model")
        assert EmbeddingStore(tmp_path / f"{words}").length(1) == words
    # The line itself is 2 MB more; its vectors are 22 MB more, and its words would be 20 MB as strings.
    assert peaks[400_000] < peaks[50_000] + 10, peaks
