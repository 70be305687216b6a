"""Models in tar and zip archives are loaded, and nothing is written elsewhere."""

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from same_weights import assert_same_bilm
from tiny_model import tiny_bilm

from elmokit.checkpoints import archives
from elmokit.checkpoints.bilm_hdf5 import write_bilm_hdf5
from elmokit.checkpoints.loading import describe, load
from elmokit.checkpoints.pretrained import CheckpointError

NAMES = ["model.tar.gz", "model.tgz", "model.tar", "model.zip"]
WORDS = "<S>\n</S>\n<UNK>\nnaïve\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory as in the archives of the NLPL repository."""
    (tmp_path / "elmo").mkdir()
    write_bilm_hdf5(tiny_bilm(), tmp_path / "elmo")
    (tmp_path / "elmo" / "vocab.txt.gz").write_bytes(gzip.compress(WORDS.encode()))
    return tmp_path / "elmo"


def write(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def pack(folder: Path, name: str, prefix: str = "") -> Path:
    files = {
        str(file.relative_to(folder)): file for file in sorted(folder.rglob("*")) if file.is_file()
    }
    return write(
        folder.parent / name, {prefix + file: path.read_bytes() for file, path in files.items()}
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prefix", ["", "./", "some/where/"])
def test_archive_loads_as_its_directory(name: str, prefix: str, model: Path) -> None:
    known = load(model)
    for file in sorted(model.iterdir()):
        (model / f"._{file.name}").write_bytes(b"\0\5\x16\7")  # the attributes that macOS adds
    found = load(pack(model, name, prefix))
    assert_same_bilm(found.bilm, known.bilm)
    assert found.vocab == known.vocab
    assert found.vocab.words == tuple(WORDS.split())
    assert found.card == known.card
    told = describe(model.parent / name)
    assert (told["format"], told["vocabulary"], list(told["files"])) == ("archive", 4, [name])


@pytest.mark.parametrize("name", ["model.tar", "model.zip"])
def test_members_that_lead_elsewhere_are_ignored(name: str, model: Path, tmp_path: Path) -> None:
    members = {f"elmo/{file.name}": file.read_bytes() for file in model.iterdir()}
    outside = (
        "../escaped.txt",
        "a/../../escaped.txt",
        "..\\escaped.txt",
        str(tmp_path / "absolute.txt"),
    )
    path = write(tmp_path / name, members | dict.fromkeys(outside, b"text"))
    if name == "model.tar":
        with tarfile.open(path, "a") as file:
            kinds = {
                tarfile.SYMTYPE: "/etc/passwd",
                tarfile.LNKTYPE: "/etc/passwd",
                tarfile.FIFOTYPE: "",
            }
            for kind, target in kinds.items():
                member = tarfile.TarInfo(f"elmo/link{kind.decode()}.json")
                member.type = kind
                member.linkname = target
                file.addfile(member)
    before = set(tmp_path.rglob("*"))
    with archives.unpacked(path) as folder:
        files = {
            file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()
        }
        assert files == {
            *members,
            f"{tmp_path}/absolute.txt"[1:],
        }  # the absolute name is a relative one
        assert not list(folder.parent.glob("escaped*"))
    assert load(path).bilm.state_dict()
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["model.tar.gz", "model.zip"])
def test_archive_that_expands_beyond_reason_is_refused(
    name: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / "zeros").write_bytes(bytes(1 << 24))
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 1 << 20)
    path = pack(model, name)
    assert path.stat().st_size * archives.MAX_EXPANSION < 1 << 24
    with pytest.raises(CheckpointError, match="claims to unpack to more"):
        load(path)


def cut(model: Path) -> Path:
    path = pack(model, "model.tar.gz")
    path.write_bytes(path.read_bytes()[:-1000])
    return path


def of_false_size(model: Path) -> Path:
    path = pack(model, "model.zip")
    whole = path.read_bytes()
    at = whole.rindex(b"PK\x01\x02", 0, whole.index(b"options.json", whole.index(b"PK\x01\x02")))
    path.write_bytes(whole[: at + 24] + struct.pack("<I", 0xFFFFFFF0) + whole[at + 28 :])
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (cut, r"model\.tar\.gz"),
        (of_false_size, "claims to unpack to more"),
        (
            lambda model: write(model.parent / "m.zip", {"x": b"x"}, zipfile.ZIP_LZMA),
            "unusual method",
        ),
        (
            lambda model: write(
                model.parent / "m.tar", {"a/weights.hdf5": b"", "a/options.json": b"[]"}
            ),
            r"m\.tar: a/",
        ),
        (lambda model: (model / "weights.hdf5").rename(model / "model.zip"), r"model\.zip"),
        (lambda model: (model / "weights.hdf5").rename(model / "model.tar"), r"model\.tar"),
    ],
)
def test_archive_without_a_sound_model_is_refused(
    make: Callable[[Path], Path], message: str, model: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(make(model))
