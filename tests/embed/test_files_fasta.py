"""Protein sequences to a file: the vectors of the embedder under the names of the headers."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from elmokit.checkpoints.loading import save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.cli import main
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import embed_fasta
from elmokit.embed.pipeline import Sizes
from elmokit.nn.bilm import BiLM

pytestmark = pytest.mark.any_backend

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"


def sequences(lengths: list[int]) -> dict[str, str]:
    draw = random.Random(3)
    return {f"P{number:05d}": "".join(draw.choices(RESIDUES, k=length)) for number, length in enumerate(lengths)}


def write_fasta(path: Path, proteins: dict[str, str]) -> Path:
    lines = []
    for name, residues in proteins.items():
        lines += [f">sp|{name}|{name}_HUMAN of chance"] + [residues[i : i + 60] for i in range(0, len(residues), 60)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    torch.manual_seed(5)
    bilm = BiLM(BiLMConfig.preset("tiny"))
    return Embedder(Pretrained(bilm), device="cpu", sizes=Sizes(batch_words=200, min_batch_words=200))


PROTEINS = sequences([7, 130, 1, 61, 90, 450, 0, 33])


def read_npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def read_h5(path: Path) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            arrays[name] = item[()]

    with h5py.File(path) as file:
        file.visititems(add)
    return arrays


READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {".npz": read_npz, ".h5": read_h5}


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize(
    "options",
    [{"layers": "sum"}, {"layers": "all"}, {"layers": 1, "storage_dtype": "float16"}, {"protein": True}],
    ids=str,
)
def test_embed_fasta_writes_the_vectors_by_name(
    tmp_path: Path, embedder: Embedder, suffix: str, options: dict[str, Any]
) -> None:
    file, output = write_fasta(tmp_path / "in.fasta", PROTEINS), tmp_path / f"out{suffix}"
    report = embed_fasta(file, output, embedder, sentences_per_part=3, **options)
    assert (report.sentences, report.words) == (len(PROTEINS), sum(map(len, PROTEINS.values())))
    found, dtype = READERS[suffix](output), options.get("storage_dtype", "float32")
    assert list(found) == list(PROTEINS)  # in the order of the file, though they are run by length
    for name, residues in PROTEINS.items():
        (expected,) = embedder.embed([list(residues)], layers=options.get("layers", "sum"))
        if "protein" in options:
            expected = expected.mean(axis=0) if residues else np.zeros(embedder.dim)
        assert found[name].dtype == dtype
        np.testing.assert_allclose(found[name], expected, atol=1e-6 if dtype == "float32" else 1e-3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.fasta", f"out{suffix}"]


@pytest.mark.parametrize("suffix", READERS)
def test_names_with_a_slash_are_groups_and_an_output_that_exists_needs_overwrite(
    tmp_path: Path, embedder: Embedder, suffix: str
) -> None:
    domains = {"P1/1-40": "MVLS", "P1/41-80": "PADK", "P2": "TNV"}
    file, output = write_fasta(tmp_path / "in.fasta", domains), tmp_path / f"out{suffix}"
    embed_fasta(file, output, embedder)
    lengths = {name: len(array) for name, array in READERS[suffix](output).items()}
    assert lengths == {"P1/1-40": 4, "P1/41-80": 4, "P2": 3}
    with pytest.raises(FileExistsError, match="exists"):
        embed_fasta(file, output, embedder, id_field=2)
    embed_fasta(file, output, embedder, id_field=-1, overwrite=True)
    assert all(name.endswith("_HUMAN of chance") for name in READERS[suffix](output))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("out.pt", {}, r"name the output out\.pt\.npz"),
        ("out.npz", {"protein": True, "layers": "all"}, "one vector is needed"),
        ("out.npz", {"state": "carry"}, "does not continue the one before it"),
        ("out.npz", {"sentences_per_part": 0}, "at least 1"),
    ],
)
def test_embed_fasta_refuses_what_it_cannot_write(
    tmp_path: Path, embedder: Embedder, name: str, options: dict[str, Any], message: str
) -> None:
    file = write_fasta(tmp_path / "in.fasta", PROTEINS)
    with pytest.raises(ValueError, match=message):
        embed_fasta(file, tmp_path / name, embedder, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["in.fasta"]


def test_command_embeds_proteins_with_the_options_of_the_old_script(
    tmp_path: Path, embedder: Embedder, capsys: pytest.CaptureFixture[str]
) -> None:
    save(embedder.model, tmp_path / "model")
    file, output = write_fasta(tmp_path / "in.fasta", PROTEINS), tmp_path / "out.npz"
    command = ["embed", "--fasta", str(file), "--output", str(output), "--model", str(tmp_path / "model")]
    assert main([*command, "--protein", "--split-char", "_", "--id", "0"]) == 0
    assert list(read_npz(output)) == [f"sp|{name}|{name}" for name in PROTEINS]
    assert read_npz(output)["sp|P00001|P00001"].shape == (embedder.dim,)
    assert main([*command[:1], *command[2:], "--protein"]) == 2
    assert "add --fasta" in capsys.readouterr().err
