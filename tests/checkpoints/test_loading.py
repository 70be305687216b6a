"""Names of models: paths, files of a model, bundled names; what `describe` tells, and what may be
overwritten.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from same_weights import assert_same_bilm
from tiny_model import tiny_model

import elmokit.checkpoints.loading as loading
from elmokit.checkpoints.bilm_hdf5 import write_bilm_hdf5
from elmokit.checkpoints.exporting import save_hdf5
from elmokit.checkpoints.loading import describe, load, save
from elmokit.checkpoints.pretrained import CheckpointError, Pretrained

Writer = Callable[[Path], object]


@pytest.fixture(scope="module")
def model() -> Pretrained:
    return tiny_model(card="# Tiny\n")


@pytest.fixture
def hdf5(model: Pretrained, tmp_path: Path) -> Path:
    """A directory with options.json and weights.hdf5."""
    (tmp_path / "hdf5").mkdir()
    write_bilm_hdf5(model.bilm, tmp_path / "hdf5")
    return tmp_path / "hdf5"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_file_of_a_model_names_the_model(
    name: str, model: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    save(model, "~/model")
    paths = tmp_path / "model" / name, tmp_path / "model", "~/model"
    assert len({describe(path)["path"] for path in paths}) == 1


def test_bundled_models_are_loaded_by_name(
    model: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "BUNDLED_MODELS", tmp_path / "bundled")
    save(model, tmp_path / "bundled" / "en-small")
    monkeypatch.chdir(tmp_path)
    assert load().card == load("en-small").card == "# Tiny\n"
    save(replace(model, card="# Another\n"), "en-small")  # a path that is named comes first,
    assert load("en-small").card == "# Another\n"
    assert load().card == "# Tiny\n"  # but changes no default
    with pytest.raises(
        FileNotFoundError, match=r"no model 'en-large'.*config\.json.*there are: en-small"
    ):
        load("en-large")


def test_a_run_without_a_model_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="repeat its command"):
        load(tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ("options_file", "weights_file"),
        ("options", "weights"),
        ("options.json", "weights.h5"),
        ("small_options.json", "small_weights.hdf5"),
        ("elmo_2x16_options.json", "elmo_2x16_weights_PubMed_only.hdf5"),
    ],
)
def test_files_under_other_names_are_a_model(
    options: str, weights: str, model: Pretrained, hdf5: Path
) -> None:
    (hdf5 / "options.json").rename(hdf5 / options)
    (hdf5 / "weights.hdf5").rename(hdf5 / weights)
    (hdf5 / "README").write_text("no weights")
    (hdf5 / "config.json").write_text('{"model_type": "elmo"}')  # of another program
    for name in (f"._{options}", f"._{weights}"):  # the attributes that macOS keeps
        (hdf5 / name).write_bytes(b"\x00\x05\x16\x07")
    for path in (hdf5, hdf5 / weights):
        assert_same_bilm(load(path).bilm, model.bilm)


def test_a_byte_order_mark_is_skipped(model: Pretrained, hdf5: Path) -> None:
    mark = b"\xef\xbb\xbf"
    (hdf5 / "options.json").write_bytes(mark + (hdf5 / "options.json").read_bytes())
    assert_same_bilm(load(hdf5).bilm, model.bilm)


def test_one_of_several_pairs_is_read_by_the_path_of_its_weights(
    model: Pretrained, hdf5: Path
) -> None:
    for name in ("options.json", "weights.hdf5"):
        (hdf5 / name).rename(hdf5 / f"small_{name}")
    (hdf5 / "other_weights.hdf5").write_bytes(b"of another model")
    (hdf5 / "other_options.json").write_text("{}")
    assert_same_bilm(load(hdf5 / "small_weights.hdf5").bilm, model.bilm)
    with pytest.raises(
        CheckpointError, match=r"several HDF5 files.*other_weights\.hdf5, \S*small_weights\.hdf5"
    ):
        load(hdf5)
    weights = (hdf5 / "small_weights.hdf5").rename(hdf5 / "model.h5")
    with pytest.raises(FileNotFoundError, match="options"):
        load(weights)
    assert_same_bilm(load(weights, options=hdf5 / "small_options.json").bilm, model.bilm)


def test_describe_lists_sizes_and_settings(model: Pretrained, tmp_path: Path) -> None:
    save(model, tmp_path / "model")
    found = describe(tmp_path / "model")
    assert found["parameters"] == sum(parameter.numel() for parameter in model.bilm.parameters())
    assert set(found["files"]) == {"config.json", "model.safetensors", "README.md"}
    assert (found["format"], found["layers"], found["card"]) == ("elmokit 1", 3, ["# Tiny"])
    json.dumps(found)  # can be printed as JSON


# --- Overwriting ----------------------------------------------------------------------------------

TINY = tiny_model()
WRITERS: dict[str, Writer] = {
    "save": lambda path: save(TINY, path, overwrite=True),
    "save_hdf5": lambda path: save_hdf5(TINY, path, overwrite=True),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("foreign", ["config.json", "options.json", "cat.jpg", ".git"])
def test_only_models_are_replaced_with_nothing_else_beside_them(
    write: Writer, foreign: str, tmp_path: Path
) -> None:
    """What is there is not lost: the settings of another program, and other files, alone or beside
    a model.
    """
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / foreign).write_text('{"model_type": "bert"}')
    (tmp_path / "thesis").write_text("all of it")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for path in (tmp_path / "other", tmp_path / "thesis"):
        with pytest.raises((FileExistsError, ValueError)):
            write(path)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    if foreign in ("cat.jpg", ".git"):
        for _ in range(2):
            write(tmp_path / "model")
        (tmp_path / "model" / foreign).write_text("mine")
        with pytest.raises(FileExistsError, match=f"also holds {foreign}"):
            write(tmp_path / "model")
        assert (tmp_path / "model" / foreign).read_text() == "mine"
        assert load(tmp_path / "model")
