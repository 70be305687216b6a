"""Zip archives of the NLPL repository: models in them are loaded, and nothing is written elsewhere."""

import gzip
import json
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from same_weights import assert_same_bilm

from elmokit.checkpoints.formats.bilm_hdf5 import write_bilm_hdf5
from elmokit.checkpoints.loading import CheckpointError, describe, load
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM

WORDS = "<S>\n</S>\n<UNK>\nnaïve\n"


@pytest.fixture(scope="module")
def bilm() -> BiLM:
    torch.manual_seed(0)
    return BiLM(BiLMConfig.preset("tiny"))


@pytest.fixture
def members(bilm: BiLM, tmp_path: Path) -> dict[str, bytes]:
    write_bilm_hdf5(bilm, tmp_path)
    return {
        "model.hdf5": (tmp_path / "weights.hdf5").read_bytes(),
        "options.json": (tmp_path / "options.json").read_bytes(),
        "vocab.txt.gz": gzip.compress(WORDS.encode()),
        "meta.json": json.dumps({"language": "nob", "corpus": "Norsk Aviskorpus – bokmål"}).encode(),
    }


def write_zip(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_archive_loads_with_vocabulary_and_metadata(bilm: BiLM, members: dict[str, bytes], tmp_path: Path) -> None:
    path = write_zip(tmp_path / "217.zip", members)
    model = load(path)
    assert_same_bilm(model.bilm, bilm)
    assert model.vocab is not None and model.vocab.words == tuple(WORDS.split())
    assert '"corpus": "Norsk Aviskorpus – bokmål"' in model.card
    told = describe(path)
    assert (told["format"], told["vocabulary"], list(told["files"])) == ("NLPL zip", 4, ["217.zip"])


def test_members_may_be_in_a_directory_and_weights_have_any_name(
    bilm: BiLM, members: dict[str, bytes], tmp_path: Path
) -> None:
    moved = {f"217/{name}": content for name, content in members.items()}
    moved["217/weights.hdf5"] = moved.pop("217/model.hdf5")
    assert_same_bilm(load(write_zip(tmp_path / "model.zip", moved)).bilm, bilm)


def test_attributes_that_macos_adds_are_ignored(bilm: BiLM, members: dict[str, bytes], tmp_path: Path) -> None:
    attributes = {f"__MACOSX/._{name}": b"\0\5\x16\7" for name in members}
    assert_same_bilm(load(write_zip(tmp_path / "model.zip", attributes | members)).bilm, bilm)


@pytest.mark.parametrize(
    ("options", "weights"), [("elmo_options.json", "elmo_weights.hdf5"), ("options_file", "weights_file")]
)
def test_options_and_weights_may_have_other_names(
    options: str, weights: str, bilm: BiLM, members: dict[str, bytes], tmp_path: Path
) -> None:
    members[f"uniref/{options}"], members[f"uniref/{weights}"] = members.pop("options.json"), members.pop("model.hdf5")
    assert_same_bilm(load(write_zip(tmp_path / "model.zip", members)).bilm, bilm)


def test_unpacked_archive_loads_equal(bilm: BiLM, members: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    folder.mkdir()
    for name, content in members.items():
        (folder / name).write_bytes(content)
    model = load(folder)
    assert_same_bilm(model.bilm, bilm)
    assert model.vocab is not None and "nob" in model.card


def test_unpacking_writes_nothing_outside_its_directory(members: dict[str, bytes], tmp_path: Path) -> None:
    escaping = {f"../../outside/{name}": content for name, content in members.items()}
    escaping |= {"../evil.txt": b"evil", str(tmp_path / "evil.txt"): b"evil"}
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    before = set(tmp_path.rglob("*"))
    load(write_zip(folder / "model.zip", escaping))
    assert set(tmp_path.rglob("*")) - before == {folder / "model.zip"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options.json": None}, r"lacks options\.json"),
        ({"model.hdf5": None}, r"lacks model\.hdf5"),
        ({"other.hdf5": b""}, r"both model\.hdf5 and other\.hdf5"),
        ({"encoder.pkl": b""}, "ELMoForManyLangs: unpack it"),
        ({"vocab.txt": bytes(1 << 26)}, r"vocab\.txt claims to unpack to 67108864 bytes"),
        ({"meta.json": b"{"}, r"meta\.json is damaged"),
        ({"options.json": b"[]"}, r"/model\.zip: options\.json is not the options\.json"),
        ({"model.hdf5": b"PK"}, "cannot be read as HDF5"),
    ],
)
def test_archive_without_a_model_is_refused(
    members: dict[str, bytes], tmp_path: Path, change: dict[str, bytes | None], message: str
) -> None:
    changed = {name: content for name, content in (members | change).items() if content is not None}
    with pytest.raises(CheckpointError, match=message):
        load(write_zip(tmp_path / "model.zip", changed))


def test_unbounded_compression_methods_are_refused(members: dict[str, bytes], tmp_path: Path) -> None:
    for compression in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(CheckpointError, match="unusual method"):
            load(write_zip(tmp_path / "model.zip", members, compression))


def test_false_member_size_is_refused(members: dict[str, bytes], tmp_path: Path) -> None:
    path = write_zip(tmp_path / "model.zip", members)
    whole = path.read_bytes()
    at = whole.rindex(b"PK\x01\x02", 0, whole.index(b"options.json", whole.index(b"PK\x01\x02")))
    for size in (1, 0xFFFFFFF0):
        path.write_bytes(whole[: at + 24] + struct.pack("<I", size) + whole[at + 28 :])
        with pytest.raises(CheckpointError, match="cannot be"):
            load(path)


def test_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.zip").write_bytes(b"<html>404</html>")
    with pytest.raises(CheckpointError, match="cannot be read as a model in a zip archive"):
        load(tmp_path / "model.zip")


def test_member_offset_before_the_file_is_refused(members: dict[str, bytes], tmp_path: Path) -> None:
    path = write_zip(tmp_path / "model.zip", members)
    content = bytearray(path.read_bytes())
    content[-6] ^= 0xFF  # where the directory begins
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="zip archive"):
        load(path)
