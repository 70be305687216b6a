"""Tables embedded in a local cluster of Ray, against `Embedder`: killed processes, killed jobs, bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-integrations")
import pyarrow as pa
from pyarrow import parquet

from elmokit.cli import main
from elmokit.embed.embedder import Embedder
from elmokit.integrations.ray import JOB_NAME, EmbedWords, _pool_size, embed_parquet

SOURCES = Path(__file__).parents[2] / "src"
TEXTS = ["The children play in the garden.", "Shakespeare wrote the play.", "", "Hä? 中文 🙂"]
ROWS = 40  # in two files of 24 and 16
NAMES = ["de/b-00000", "de/b-00001", "a-00000", "a-00001", "a-00002"]  # by ten rows


def write_source(path: Path) -> list[str]:
    """Write two files, one of them in a directory and with groups of seven rows; the texts by id."""
    texts = [f"{TEXTS[number % 4]} {number} times." for number in range(ROWS)]
    for name, rows in (("a", range(24)), ("de/b", range(24, ROWS))):
        file = path / f"{name}.parquet"
        file.parent.mkdir(parents=True)
        parquet.write_table(pa.table({"id": rows, "text": [texts[n] for n in rows]}), file, row_group_size=7)
    return texts


def output_files(target: Path) -> dict[str, Path]:
    """The finished files; those that are being written are in directories `.partial-XXXXXXXX-NAME`."""
    files = {path.relative_to(target).with_suffix("").as_posix(): path for path in target.rglob("*.parquet")}
    return {name: path for name, path in files.items() if ".partial" not in name}


def check(target: Path, texts: list[str]) -> None:
    """Every row is there once, in the file and the place that its place in the source says."""
    files = output_files(target)
    assert sorted(files) == sorted(NAMES)
    expected = Embedder().embed(texts)
    ids = []
    for name in sorted(files):
        for row in parquet.ParquetFile(files[name]).read().to_pylist():
            number = row["id"]
            ids.append(number)
            assert row["text"] == texts[number] and row["tokens"] == expected.tokens[number]
            np.testing.assert_allclose(np.array(row["vectors"]), expected[number], atol=1e-5, rtol=1e-3)
    assert ids == list(range(ROWS))


# --- A cluster -------------------------------------------------------------------------------------------------------

# The last test of a cluster runs where there is no Ray, too.
in_cluster = [
    pytest.mark.slow,
    *(pytest.mark.filterwarnings(f"ignore::{kind}Warning") for kind in ("Deprecation", "Future", "User", "Resource")),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of two processors; its address."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: make test-integrations")
    path = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    environment = {"env_vars": {"PYTHONPATH": path}}
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield context.address_info["address"]
    ray.shutdown()


class Deadly(EmbedWords):
    """Kills its process at one text, once."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker = marker

    def __call__(self, batch: Any) -> Any:
        if 11 in batch["id"].to_pylist() and not self.marker.exists():
            self.marker.touch()
            os._exit(1)
        return super().__call__(batch)


class Lethal(EmbedWords):
    """Kills its process at every batch."""

    def __call__(self, batch: Any) -> Any:
        os._exit(1)


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


class TestCluster:
    pytestmark = in_cluster

    def test_every_row_is_embedded_although_a_process_dies(self, cluster: str, tmp_path: Path) -> None:
        texts = write_source(tmp_path / "source")
        embed = Deadly(tmp_path / "died")
        report = embed_parquet(tmp_path / "source", tmp_path / "target", embed, sentences_per_part=10, batch_size=3)
        assert embed.marker.exists()
        check(tmp_path / "target", texts)
        assert (report.rows, report.files, report.files_kept) == (ROWS, 5, 0)
        assert report.words == sum(map(len, Embedder().embed(texts).tokens))

    def test_a_job_that_was_killed_computes_what_is_missing(self, cluster: str, tmp_path: Path) -> None:
        texts = write_source(tmp_path / "source")
        target = tmp_path / "target"
        command = ["embed", str(tmp_path / "source"), "--ray", "--output", str(target), "--sentences-per-part", "10"]
        path = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"RAY_ADDRESS": cluster, "PYTHONPATH": path}
        job = subprocess.Popen([sys.executable, "-m", "elmokit", *command], env=environment, stderr=subprocess.PIPE)
        wait_until(lambda: job.poll() is not None or len(output_files(target)) > 0)
        job.kill()
        _, errors = job.communicate()
        before = {path: path.stat().st_mtime_ns for path in output_files(target).values()}
        assert before, errors.decode()
        for name in ("a-00002", "de/b-00001"):  # in case that it was faster than this test
            (target / f"{name}.parquet").unlink(missing_ok=True)
        kept = {path: time for path, time in before.items() if path.exists()}

        assert main(command) == 0
        check(target, texts)
        assert {path: path.stat().st_mtime_ns for path in kept} == kept
        assert [path.name for path in target.rglob(".partial*")] == []

    def test_a_finished_job_is_not_repeated(self, cluster: str, tmp_path: Path) -> None:
        write_source(tmp_path / "source")
        embed_parquet(tmp_path / "source", tmp_path / "target", sentences_per_part=10)
        before = {path: path.stat().st_mtime_ns for path in output_files(tmp_path / "target").values()}
        report = embed_parquet(tmp_path / "source", tmp_path / "target", sentences_per_part=10)
        assert (report.files, report.files_kept, report.words) == (5, 5, 0)
        assert {path: path.stat().st_mtime_ns for path in output_files(tmp_path / "target").values()} == before

    def test_a_pipeline_of_ray_data_maps_batches(self, cluster: str, tmp_path: Path) -> None:
        import ray

        texts = write_source(tmp_path / "source")
        ray.data.DataContext.get_current().enable_progress_bars = False
        workers = ray.data.ActorPoolStrategy(size=1)
        rows = ray.data.read_parquet(str(tmp_path / "source")).map_batches(
            EmbedWords, fn_constructor_args=("text",), batch_format="pyarrow", batch_size=7, compute=workers
        )
        embedded = sorted(rows.take_all(), key=lambda row: row["id"])
        expected = Embedder().embed(texts)
        assert [list(row["tokens"]) for row in embedded] == expected.tokens
        for row, vectors in zip(embedded, expected, strict=True):
            np.testing.assert_allclose(np.stack(list(row["vectors"])), vectors, atol=1e-5, rtol=1e-3)

    def test_rows_that_kill_every_process_end_the_job(self, cluster: str, tmp_path: Path) -> None:
        write_source(tmp_path / "source")
        with pytest.raises(ValueError, match="a process died 4 times at the same rows"):
            embed_parquet(tmp_path / "source", tmp_path / "target", Lethal(), num_actors=1)

    def test_a_row_without_text_is_named(self, cluster: str, tmp_path: Path) -> None:
        parquet.write_table(pa.table({"text": ["a"] * 5 + [None]}), tmp_path / "source.parquet")
        with pytest.raises(ValueError, match=r"source\.parquet, from row 4 on: row 1 of 'text' has no text"):
            embed_parquet(tmp_path / "source.parquet", tmp_path / "target", batch_size=4)

    def test_more_actors_than_processors_are_refused(self, cluster: str, tmp_path: Path) -> None:
        write_source(tmp_path / "source")
        with pytest.raises(ValueError, match="3 actors need 3 processors, and Ray has 2"):
            embed_parquet(tmp_path / "source", tmp_path / "target", num_actors=3)
        with pytest.raises(ValueError, match="1 actors need 1 GPUs, and Ray has 0"):
            embed_parquet(tmp_path / "source", tmp_path / "target", num_gpus=1)

    def test_the_command_asks_for_gpus_where_the_device_is_one(
        self, cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_source(tmp_path / "source")
        command = ["embed", str(tmp_path / "source"), "--ray", "--output", str(tmp_path / "target"), "--device", "cuda"]
        assert main(command) == 2
        assert "1 actors need 1 GPUs, and Ray has 0" in capsys.readouterr().err


# --- Bad input, which is found before there is a cluster --------------------------------------------------------------


def write_job(target: Path, **settings: Any) -> None:
    """The job of another run, with the settings of `EmbedWords()` but for some."""
    target.mkdir()
    (target / "a-00000.parquet").touch()
    job = EmbedWords().settings() | {"sentences_per_part": 1000, "source": ""} | settings
    (target / JOB_NAME).write_text(json.dumps(job))


def test_unusable_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no .*source: name a Parquet file"):
        embed_parquet(tmp_path / "source", tmp_path / "target")
    (tmp_path / "source").mkdir()
    with pytest.raises(FileNotFoundError, match=r"has no files that end in \.parquet"):
        embed_parquet(tmp_path / "source", tmp_path / "target")
    (tmp_path / "source" / "_temporary").mkdir()
    parquet.write_table(pa.table({"text": ["a"]}), tmp_path / "source" / "_temporary" / "part.parquet")
    with pytest.raises(FileNotFoundError, match=r"has no files that end in \.parquet"):
        embed_parquet(tmp_path / "source", tmp_path / "target")
    (tmp_path / "source" / "a.parquet").write_text("a line of text\n")
    with pytest.raises(ValueError, match=r"a\.parquet is not a Parquet file"):
        embed_parquet(tmp_path / "source", tmp_path / "target")
    parquet.write_table(pa.table({"line": ["a"]}), tmp_path / "source" / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: there is no column 'text': name one of 'line'"):
        embed_parquet(tmp_path / "source", tmp_path / "target")
    with pytest.raises(ValueError, match="9"):
        embed_parquet(tmp_path / "source", tmp_path / "target", EmbedWords("line", layers=9))
    assert not (tmp_path / "target").exists()


def test_a_directory_whose_name_ends_like_a_file_is_searched(tmp_path: Path) -> None:
    folder = tmp_path / "source" / "day1.parquet"
    folder.mkdir(parents=True)
    parquet.write_table(pa.table({"line": ["a"]}), folder / "part.parquet")
    with pytest.raises(ValueError, match=r"day1\.parquet/part\.parquet: there is no column 'text'"):
        embed_parquet(tmp_path / "source", tmp_path / "target")


@pytest.mark.parametrize("sizes", [{"num_actors": 0}, {"num_actors": -1}, {"batch_size": 0}], ids=str)
def test_numbers_below_one_are_refused(sizes: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        embed_parquet(tmp_path / "source", tmp_path / "target", **sizes)


def test_any_number_of_actors_that_need_nothing_is_to_be_named() -> None:
    with pytest.raises(ValueError, match="give num_actors"):
        _pool_size(None, {"num_cpus": 0}, {"CPU": 2.0})
    assert _pool_size(3, {"num_cpus": 0}, {"CPU": 2.0}) == 3


def test_a_changed_source_is_another_job(tmp_path: Path) -> None:
    write_source(tmp_path / "source")
    write_job(tmp_path / "target")
    file = tmp_path / "source" / "a.parquet"
    rows, size = parquet.read_table(file).to_pylist(), file.stat().st_size
    rows[0]["text"], rows[4]["text"] = rows[4]["text"], rows[0]["text"]
    parquet.write_table(pa.Table.from_pylist(rows), file, row_group_size=7)
    assert file.stat().st_size == size  # as it would be unnoticed
    with pytest.raises(FileExistsError, match=r"holds another job .source is"):
        embed_parquet(tmp_path / "source", tmp_path / "target")


def test_outputs_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    write_source(tmp_path / "source")
    with pytest.raises(ValueError, match=r"is inside .*source, and would become part of it"):
        embed_parquet(tmp_path / "source", tmp_path / "source" / "vectors")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").touch()
    with pytest.raises(FileExistsError, match=f"notes has no {JOB_NAME}"):
        embed_parquet(tmp_path / "source", tmp_path / "notes")
    write_job(tmp_path / "target", layers="top")
    with pytest.raises(FileExistsError, match=r"holds another job .layers is 'top', now 'mix'"):
        embed_parquet(tmp_path / "source", tmp_path / "target")


def test_a_number_type_that_depends_on_the_machine_is_refused(tmp_path: Path) -> None:
    write_source(tmp_path / "source")
    with pytest.raises(ValueError, match="name bfloat16 or float32"):
        embed_parquet(tmp_path / "source", tmp_path / "target", EmbedWords(dtype="auto"))
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ray", "--fasta"], "--fasta cannot be used with --ray"),
        (["--ray", "--state", "warm"], "--state cannot be used with --ray"),
        (["--ray", "--overwrite"], "--overwrite cannot be used with --ray"),
        (["--column", "line"], "--column and --num-actors are for tables on a cluster: add --ray"),
        (["--ray", "--device", "cuda:1"], "Ray assigns the GPUs: use --device cuda, not cuda:1"),
        (["--ray", "--dtype", "auto"], "with dtype auto machines may compute in different types: name bfloat16"),
        (["--ray", "--column", "line"], "there is no column 'line': name one of 'id', 'text'"),
    ],
)
def test_the_command_says_in_a_line_what_it_cannot_do(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_source(tmp_path / "source")
    assert main(["embed", str(tmp_path / "source"), "--output", str(tmp_path / "target"), *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and "\n" not in error
    assert main(["embed", str(tmp_path / "source"), "--output", str(tmp_path / "target.hdf5"), "--ray"]) == 2
    assert "name one without .hdf5" in capsys.readouterr().err
