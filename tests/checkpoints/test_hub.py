"""Models on the Hugging Face Hub, without a network: a simulated download, and a cache made by the
tests.
"""

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from huggingface_hub.utils import filter_repo_objects
from same_weights import assert_same_bilm
from tiny_model import tiny_model

from elmokit.checkpoints.hub import HubModel, hub_model
from elmokit.checkpoints.loading import Pretrained, describe, load, save
from elmokit.embed.embedder import Embedder

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory with all that a repository may hold of a model of ours."""
    save(tiny_model([], card="# Tiny\n"), tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, saved: Path) -> list[dict[str, Any]]:
    """Records the requests to the Hub, and answers them with the saved model."""
    calls: list[dict[str, Any]] = []

    def snapshot_download(repo_id: str, **options: Any) -> str:
        calls.append({"repo_id": repo_id, **options})
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def cached(model: Path, cache: Path) -> None:
    """The model as huggingface_hub keeps owner/name: files are links to blobs, a ref names the
    commit.
    """
    repository = cache / "models--owner--name"
    snapshot = repository / "snapshots" / COMMIT
    for folder in (snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for number, file in enumerate(sorted(model.iterdir())):
        (repository / "blobs" / str(number)).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))


def assert_is(found: Pretrained, saved: Path) -> None:
    expected = load(saved)
    assert found.vocab == expected.vocab
    assert found.card == "# Tiny\n"
    assert found.softmax is not None
    assert_same_bilm(found.bilm, expected.bilm)


# --- Names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("owner/name", HubModel("owner/name")),
        ("https://huggingface.co/owner/na.me/", HubModel("owner/na.me")),
        ("https://hf.co/owner/name/tree/refs%2Fpr%2F1", HubModel("owner/name", "refs/pr/1")),
        ("hf:owner/name", HubModel("owner/name")),
        ("owner", None),
        ("../name", None),
        ("/owner/name", None),
        ("owner/name/more", None),
        ("folder/weights.hdf5", None),
        ("folder/model.tar.gz", None),
        ("", None),
    ],
)
def test_hub_model_parses_names_and_addresses(name: str, expected: HubModel | None) -> None:
    assert hub_model(name) == expected


# --- What is asked for ----------------------------------------------------------------------------


def test_model_of_the_hub_is_loaded(asked: list[dict[str, Any]], saved: Path) -> None:
    assert_is(load("owner/name"), saved)
    assert_is(load("owner/name", revision="v1", local_files_only=True), saved)
    assert_is(load("https://huggingface.co/owner/name/tree/v2"), saved)
    embedder = Embedder("owner/name", "cpu", revision="v3", local_files_only=True)
    assert embedder.fingerprint() == load(saved).fingerprint()
    assert [(call["repo_id"], call["revision"], call["local_files_only"]) for call in asked] == [
        ("owner/name", None, False),
        ("owner/name", "v1", True),
        ("owner/name", "v2", False),
        *[("owner/name", "v3", True)] * 2,  # and again for the fingerprint
    ]


def test_local_models_take_precedence(
    asked: list[dict[str, Any]], saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "empty").mkdir(parents=True)
    shutil.copytree(saved, tmp_path / "owner" / "name")
    assert load("owner/name").card == "# Tiny\n"
    with pytest.raises(ValueError, match="only models on the Hugging Face Hub have revisions"):
        load("owner/name", revision="v1")
    for name in ("owner/empty", "owner/mistyped"):  # as there is a directory owner, these are paths
        with pytest.raises(FileNotFoundError, match=f"no model '{name}'.*write hf:OWNER/NAME"):
            load(name)
    assert not asked
    load("hf:owner/name", revision="v1")
    assert [(call["repo_id"], call["revision"]) for call in asked] == [("owner/name", "v1")]


def test_download_requests_only_files_of_models(asked: list[dict[str, Any]]) -> None:
    load("owner/name")
    wanted = "config.json model.safetensors vocab.txt.gz README.md elmo_options.json weights_file "
    wanted += "elmo_weights.hdf5 checkpoint variables/variables.index char.dic token_embedder.pkl "
    wanted += "weights.th fta/model.token_embedders.elmo.options_file"
    others = "modeling.py data.pkl pytorch_model.bin tf_model.h5 fr/weights.hdf5 a.safetensors"
    patterns = {name: asked[0][name] for name in ("allow_patterns", "ignore_patterns")}
    names = f"{wanted} {others}".split()
    assert " ".join(filter_repo_objects(names, **patterns)) == wanted


# --- The cache ------------------------------------------------------------------------------------


def test_cache_is_read_without_a_network(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError, match=r"no model owner/name on this disk"):
        load("owner/name", local_files_only=True)
    cached(saved, tmp_path / "cache")
    assert_is(load("owner/name", local_files_only=True), saved)
    assert_is(load("owner/name", revision=COMMIT, local_files_only=True), saved)
    with pytest.raises(FileNotFoundError, match=r"owner/name \(revision v7\) on this disk"):
        load("owner/name", revision="v7", local_files_only=True)
    snapshot = tmp_path / "cache" / "models--owner--name" / "snapshots" / COMMIT
    assert describe(snapshot)["files"]
    (snapshot / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="no model 'owner/name': looked for"):
        load("owner/name", local_files_only=True)


# --- Trouble --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "is_absent"),
    [
        (errors.LocalEntryNotFoundError("no route"), True),
        (RuntimeError("the cable\nis out"), False),
    ],
)
def test_errors_of_the_hub_are_one_line_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_absent: bool
) -> None:
    def snapshot_download(repo_id: str, **options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(
        OSError, match=r"no model owner/name \(revision v1\) on this disk.*`hf auth login`"
    ) as caught:
        load("owner/name", revision="v1")
    assert isinstance(caught.value, FileNotFoundError) == is_absent
    assert "\n" not in str(caught.value)
