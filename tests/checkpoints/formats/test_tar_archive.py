"""Models in tar archives are loaded, and nothing is written elsewhere."""

import io
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from efml_files import write_efml
from same_weights import assert_same_bilm

from elmokit.checkpoints.errors import CheckpointError
from elmokit.checkpoints.formats import tar_archive
from elmokit.checkpoints.formats.bilm_hdf5 import write_bilm_hdf5
from elmokit.checkpoints.loading import Pretrained, describe, load, save
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "elmo").mkdir()
    torch.manual_seed(0)
    write_bilm_hdf5(BiLM(BiLMConfig.preset("tiny")), tmp_path / "elmo")
    return tmp_path / "elmo"


def pack(folder: Path, name: str = "model.tar.gz", prefix: str = "") -> Path:
    path = folder.parent / name
    with tarfile.open(path, "w:gz" if name.endswith("gz") else "w") as file:
        file.add(folder, prefix + folder.name)
    return path


@pytest.mark.parametrize("name", ["model.tar.gz", "model.tgz", "model.tar"])
@pytest.mark.parametrize("prefix", ["", "./", "some/where/"])
def test_archive_loads_as_its_directory(name: str, prefix: str, model: Path) -> None:
    assert_same_bilm(load(pack(model, name, prefix)).bilm, load(model).bilm)


def test_attributes_that_macos_adds_are_ignored(model: Path) -> None:
    known = load(model).bilm
    for name in ("options.json", "weights.hdf5"):
        (model / f"._{name}").write_bytes(b"\0\5\x16\7")
    assert_same_bilm(load(pack(model)).bilm, known)


def test_archive_of_a_saved_model_loads(tmp_path: Path) -> None:
    saved_model = Path(__file__).parents[2] / "fixtures/tf_hub_like"
    shutil.copytree(saved_model, tmp_path / "elmo_3")
    found = load(pack(tmp_path / "elmo_3"))
    assert found.mix == load(saved_model).mix is not None


def test_archives_of_other_formats_load(model: Path, tmp_path: Path) -> None:
    save(Pretrained(load(model).bilm), tmp_path / "native")
    for folder in (tmp_path / "native", write_efml(tmp_path / "efml")):
        assert_same_bilm(load(pack(folder)).bilm, load(folder).bilm)
    assert describe(tmp_path / "model.tar.gz")["format"] == "tar archive"


def test_archive_of_several_models_or_of_none_is_refused(model: Path, tmp_path: Path) -> None:
    write_bilm_hdf5(load(model).bilm, model)
    (model / "another").mkdir()
    write_bilm_hdf5(load(model).bilm, model / "another")
    with pytest.raises(CheckpointError, match=r"holds elmo/weights\.hdf5, elmo/another/weights\.hdf5: unpack it"):
        load(pack(model))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"model\.tar\.gz: it must hold one model, but holds none"):
        load(pack(tmp_path / "empty"))


def test_members_that_lead_elsewhere_are_ignored(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.tar"
    with tarfile.open(path, "w") as file:
        file.add(model, "elmo")
        for name in ("../escaped.txt", "/escaped.txt", "a/../../escaped.txt"):
            member = tarfile.TarInfo(name)
            member.size = 4
            file.addfile(member, io.BytesIO(b"text"))
        for kind, target in (
            (tarfile.SYMTYPE, "/etc/passwd"),
            (tarfile.LNKTYPE, "/etc/passwd"),
            (tarfile.FIFOTYPE, ""),
        ):
            member = tarfile.TarInfo(f"elmo/link{kind.decode()}.json")
            member.type, member.linkname = kind, target
            file.addfile(member)
    with tar_archive.unpacked(path) as folder:
        files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir())
        assert files == ["elmo/options.json", "elmo/weights.hdf5", "escaped.txt"]  # the absolute name is a relative one
        assert not (folder.parent / "escaped.txt").exists()
    assert load(path).bilm.state_dict()


def test_archive_that_expands_beyond_reason_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "zeros").write_bytes(bytes(1 << 24))
    monkeypatch.setattr(tar_archive, "ALWAYS_ALLOWED", 1 << 20)
    path = pack(model)
    assert path.stat().st_size * tar_archive.MAX_EXPANSION < 1 << 24
    with pytest.raises(CheckpointError, match="claims to unpack to more"):
        load(path)


@pytest.mark.parametrize("damage", [lambda whole: whole[: len(whole) // 2], lambda whole: b"no archive", lambda _: b""])
def test_damaged_archive_is_refused(damage, model: Path) -> None:
    path = pack(model)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"model\.tar\.gz"):
        load(path)
