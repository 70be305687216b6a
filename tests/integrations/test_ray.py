"""Tables embedded by Ray Data in a local cluster, against `Embedder`; what the command refuses
needs no cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-integrations")
import pyarrow as pa
from pyarrow import parquet

from elmokit.embed.embedder import Embedder
from elmokit.integrations.tables import EmbedWords, embed_parquet

SOURCES = Path(__file__).parents[2] / "src"
TEXTS = ["The children play in the garden.", "Shakespeare wrote the play.", "", "Hä? 中文 🙂"]
ROWS = 40  # in two files of 24 and 16


def write_source(path: Path) -> list[str]:
    """Write two files, one of them in a directory and with groups of seven rows; the texts by
    id.
    """
    texts = [f"{TEXTS[number % 4]} {number} times." for number in range(ROWS)]
    for name, rows in (("a", range(24)), ("de/b", range(24, ROWS))):
        file = path / f"{name}.parquet"
        file.parent.mkdir(parents=True)
        parquet.write_table(
            pa.table({"id": rows, "text": [texts[n] for n in rows]}), file, row_group_size=7
        )
    return texts


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of two processors."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: make test-integrations")
    path = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    environment = {"env_vars": {"PYTHONPATH": path}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield
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


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings(
    *(f"ignore::{kind}Warning" for kind in ("Deprecation", "Future", "User", "Resource"))
)
class TestCluster:
    def test_every_row_is_embedded_in_order_although_a_process_dies(self, tmp_path: Path) -> None:
        texts = write_source(tmp_path / "source")
        embed = Deadly(tmp_path / "died")
        report = embed_parquet(
            tmp_path / "source", tmp_path / "target", embed, sentences_per_part=10, batch_size=3
        )
        assert embed.marker.exists()
        assert report.rows == ROWS
        files = sorted((tmp_path / "target").iterdir())
        assert [parquet.read_metadata(file).num_rows for file in files] == [10] * 4
        expected = Embedder().embed(texts)
        rows = parquet.read_table(tmp_path / "target").to_pylist()
        assert [row["id"] for row in rows] == list(range(ROWS))
        assert [row["text"] for row in rows] == texts
        assert [row["tokens"] for row in rows] == expected.tokens
        for row, vectors in zip(rows, expected, strict=True):
            np.testing.assert_allclose(np.array(row["vectors"]), vectors, atol=1e-5, rtol=1e-3)

    def test_a_job_that_fails_leaves_no_output(self, tmp_path: Path) -> None:
        from ray.exceptions import RayError

        parquet.write_table(pa.table({"text": ["a", None]}), tmp_path / "source.parquet")
        with pytest.raises(RayError):
            embed_parquet(tmp_path / "source.parquet", tmp_path / "target", num_actors=1)
        assert [path.name for path in tmp_path.iterdir()] == ["source.parquet"]
