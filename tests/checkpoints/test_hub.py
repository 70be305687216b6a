"""Models on the Hugging Face Hub, without a network: a simulated download, and a cache made by the tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants, errors
from huggingface_hub.utils import filter_repo_objects
from same_weights import assert_same_bilm

from elmokit.checkpoints.hub import HubModel, hub_model
from elmokit.checkpoints.loading import Pretrained, describe, fingerprint, load, save
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory with all that a repository may hold of a model of ours."""
    torch.manual_seed(0)
    vocab = Vocab(["<S>", "</S>", "<UNK>"])
    bilm, softmax = BiLM(BiLMConfig.preset("tiny")), FullSoftmax(len(vocab), 16)
    save(Pretrained(bilm, softmax=softmax, vocab=vocab, card="# Tiny\n"), tmp_path / "saved")
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


def fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def snapshot_download(repo_id: str, **options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


def cached(model: Path, cache: Path, leave_out: str = "") -> None:
    """The model as huggingface_hub keeps owner/name: files are links to blobs, a ref names the commit."""
    repository = cache / "models--owner--name"
    snapshot = repository / "snapshots" / COMMIT
    for folder in (snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for number, file in enumerate(sorted(model.iterdir())):
        if file.name != leave_out:
            (repository / "blobs" / str(number)).write_bytes(file.read_bytes())
            (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))


def assert_is(found: Pretrained, saved: Path) -> None:
    expected = load(saved)
    assert found.vocab == expected.vocab and found.card == "# Tiny\n" and found.softmax is not None
    assert_same_bilm(found.bilm, expected.bilm)


# --- Names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("owner/name", HubModel("owner/name")),
        ("lysandre/elmo-2x4096_512_2048cnn_2xhighway", HubModel("lysandre/elmo-2x4096_512_2048cnn_2xhighway")),
        ("https://huggingface.co/owner/na.me/", HubModel("owner/na.me")),
        ("https://hf.co/owner/name/tree/refs%2Fpr%2F1", HubModel("owner/name", "refs/pr/1")),
        ("hf:owner/name", HubModel("owner/name")),
        ("owner", None),
        ("../name", None),
        ("/owner/name", None),
        ("./owner/name", None),
        ("owner/name/more", None),
        ("folder/weights.hdf5", None),
        ("folder/model.tar.gz", None),
        ("folder/model.tgz", None),
        ("folder/model.tar", None),
        ("folder/weights.th", None),
        ("folder/options.json", None),
        ("folder/model.safetensors", None),
        ("", None),
    ],
)
def test_hub_model_parses_names_and_addresses(name: str, expected: HubModel | None) -> None:
    assert hub_model(name) == expected


def test_addresses_of_other_sites_are_refused() -> None:
    with pytest.raises(ValueError, match="fetch it yourself"):
        load("https://example.org/owner/name")
    with pytest.raises(ValueError, match="write hf:OWNER/NAME"):
        load("hf:owner")


# --- What is asked for -----------------------------------------------------------------------------------------------


def test_model_of_the_hub_is_loaded_and_described(asked: list[dict[str, Any]], saved: Path) -> None:
    assert_is(load("owner/name"), saved)
    assert_is(load("owner/name", revision="v1", local_files_only=True), saved)
    assert_is(load("https://huggingface.co/owner/name/tree/v2"), saved)
    embedder = Embedder.load("owner/name", "cpu", revision="v3", local_files_only=True)
    assert embedder.fingerprint() == fingerprint(load(saved))
    told = describe("owner/name")
    assert told["format"] == "elmokit 1" and told["vocabulary"] == 3
    assert [(call["repo_id"], call["revision"], call["local_files_only"]) for call in asked] == [
        ("owner/name", None, False),
        ("owner/name", "v1", True),
        ("owner/name", "v2", False),
        ("owner/name", "v3", True),
        ("owner/name", None, False),
    ]


def test_local_and_bundled_models_take_precedence(
    asked: list[dict[str, Any]], saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    saved.rename(tmp_path / "owner" / "name")
    assert load("owner/name").card == "# Tiny\n"
    with pytest.raises(ValueError, match="only models on the Hugging Face Hub have revisions"):
        load("owner/name", revision="v1")
    (tmp_path / "owner" / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no model 'owner/empty': looked for a directory"):
        load("owner/empty")
    monkeypatch.setattr("elmokit.checkpoints.loading.BUNDLED_MODELS", tmp_path)
    monkeypatch.chdir("/")
    assert load("owner/name").card == "# Tiny\n"
    with pytest.raises(FileNotFoundError, match="no model 'name'"):
        load("name")
    assert not asked


def test_path_with_an_existing_first_part_is_not_asked_of_the_hub(
    asked: list[dict[str, Any]], saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no model 'owner/mistyped'.*write hf:OWNER/NAME"):
        load("owner/mistyped")
    shutil.copytree(saved, tmp_path / "owner" / "name")
    load("owner/name")
    assert not asked
    load("hf:owner/name", revision="v1")
    assert [(call["repo_id"], call["revision"]) for call in asked] == [("owner/name", "v1")]


def test_download_requests_only_files_of_models(asked: list[dict[str, Any]]) -> None:
    load("owner/name")
    wanted = [
        "config.json", "model.safetensors", "softmax.safetensors", "state.safetensors", "vocab.txt", "README.md",
        "options.json", "elmo_options.json", "elmo_weights.hdf5", "elmo_weights.h5", "weights_file",
        "weight_file", "weights", "options_file", "options", "vocab.txt.gz", "meta.json",
        "checkpoint", "model.ckpt-124.index", "model.ckpt-124.data-00000-of-00001",
        "variables/variables.index", "variables/variables.data-00000-of-00001",
        "char.dic", "word.dic", "token_embedder.pkl", "encoder.pkl", "cnn_50_100_512_4096_sample.json",
        "best.th", "weights.th", "fta/model.token_embedders.elmo.options_file",
    ]  # fmt: skip
    others = [
        "modeling.py",
        "setup.py",
        "data.pkl",
        "pytorch_model.bin",
        "tf_model.h5",
        "fr/weights.hdf5",
        "fr/weights.h5",
        "a.safetensors",
    ]
    call = asked[0]
    found = filter_repo_objects(
        wanted + others, allow_patterns=call["allow_patterns"], ignore_patterns=call["ignore_patterns"]
    )
    assert list(found) == wanted


# --- The cache -------------------------------------------------------------------------------------------------------


def test_cache_is_read_without_a_network(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(FileNotFoundError, match=r"no model owner/name on this disk, and the cache"):
        load("owner/name", local_files_only=True)
    cached(saved, tmp_path / "cache")
    assert_is(load("owner/name", local_files_only=True), saved)
    assert_is(load("owner/name", revision=COMMIT, local_files_only=True), saved)
    with pytest.raises(FileNotFoundError, match=r"owner/name \(revision v7\) on this disk, and the cache"):
        load("owner/name", revision="v7", local_files_only=True)
    assert describe(tmp_path / "cache" / "models--owner--name" / "snapshots" / COMMIT)["files"]


def test_repository_without_a_model_is_refused(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    cached(saved, tmp_path / "cache", leave_out="config.json")
    with pytest.raises(FileNotFoundError, match="owner/name on the Hugging Face Hub is not a model: looked for"):
        load("owner/name", local_files_only=True)


@pytest.mark.slow
def test_hf_hub_offline_prevents_downloads(saved: Path, tmp_path: Path) -> None:
    """HF_HUB_OFFLINE is read when huggingface_hub is imported, so in a process of its own; as `elmokit info` here."""
    cached(saved, tmp_path / "cache")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "cache")}

    def info(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "elmokit", "info", name]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)

    found, missing = info("owner/name"), info("owner/other")
    assert found.returncode == 0 and "format: elmokit 1" in found.stdout and "# Tiny" in found.stdout
    assert missing.returncode == 2 and "no model owner/other on this disk" in missing.stderr
    assert "HF_HUB_OFFLINE" in missing.stderr and missing.stderr.count("\n") == 1


# --- Trouble ---------------------------------------------------------------------------------------------------------


def without_answer(kind: type[Exception]) -> Exception:
    """An error of huggingface_hub, whose constructors want the answer of a server."""
    return kind.__new__(kind, "said the server")


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (without_answer(errors.RepositoryNotFoundError), FileNotFoundError, "neither on this disk nor publicly"),
        (errors.HFValidationError("two dots"), FileNotFoundError, "neither on this disk nor publicly"),
        (
            without_answer(errors.GatedRepoError),
            PermissionError,
            r"accept them on https://huggingface\.co/owner/name",
        ),
        (without_answer(errors.RevisionNotFoundError), FileNotFoundError, "owner/name .* has no revision v1"),
        (errors.LocalEntryNotFoundError("no route"), FileNotFoundError, "was not reached"),
        (RuntimeError("the cable is out"), OSError, r"cannot be fetched .*\(the cable is out\): try again later"),
    ],
)
def test_errors_of_the_hub_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[OSError], message: str
) -> None:
    fails(monkeypatch, error)
    with pytest.raises(expected, match=message):
        load("owner/name", revision="v1")


def test_error_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError, match=r"no model owner/name on this disk.*pip install huggingface_hub"):
        load("owner/name")


def test_huggingface_hub_is_imported_only_when_needed(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert load(saved).card == "# Tiny\n"
