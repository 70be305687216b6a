"""Models pushed to the Hugging Face Hub and loaded from there, by the real huggingface_hub.

The Hub is a stand-in on this machine (tests/support/hub_server.py): the real one was not reached.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from hub_server import TOKEN, Hub, running_hub, take_for_the_hub
from huggingface_hub import constants
from safetensors.torch import load_file

import elmokit
from elmokit.checkpoints.loading import describe, fingerprint, load, locate
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.checkpoints.push import card_with_metadata, push_to_hub
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocab import Vocab


@pytest.fixture(scope="module")
def model() -> Pretrained:
    torch.manual_seed(0)
    vocab = Vocab(["<S>", "</S>", "<UNK>"])
    softmax = FullSoftmax(len(vocab), 16)
    return Pretrained(BiLM(BiLMConfig.preset("tiny")), softmax=softmax, vocab=vocab, card="# Tiny\n\nSmall.\n")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A stand-in for the Hub, which huggingface_hub takes for the real one, and an empty cache."""
    with running_hub() as hub:
        take_for_the_hub(hub, monkeypatch, tmp_path)
        yield hub


def metadata_of(card: str) -> dict[str, object]:
    _, metadata, _ = card.split("---\n", 2)
    return yaml.safe_load(metadata)


def test_pushed_model_is_loaded_from_the_hub(hub: Hub, model: Pretrained) -> None:
    address = push_to_hub(model, "owner/name", token=TOKEN)
    assert address.startswith(f"{hub.address}/owner/name/commit/")
    files = {"config.json", "model.safetensors", "softmax.safetensors", "vocab.txt", "README.md"}
    assert set(hub.files("owner/name")) == files
    found = load("owner/name")
    assert fingerprint(found) == fingerprint(model) and found.vocab == model.vocab
    assert found.softmax is not None and model.softmax is not None
    assert torch.equal(found.softmax.weight, model.softmax.weight)
    assert describe("owner/name")["card"] == ["# Tiny", "", "Small."]


def test_second_push_is_one_commit_that_removes_what_the_model_lacks(hub: Hub, model: Pretrained) -> None:
    model.push_to_hub("owner/name", token=TOKEN, commit_message="First")
    hub.files("owner/name")["figure.png"] = b"mine"
    push_to_hub(replace(model, softmax=None), "hf:owner/name", token=TOKEN, storage_dtype="float16")
    assert hub.repositories["owner/name"].subjects == ["First", "Upload a model of elmokit"]
    files = {"config.json", "model.safetensors", "vocab.txt", "README.md", "figure.png"}
    assert set(hub.files("owner/name")) == files
    assert load("owner/name").softmax is None


def test_revision_is_a_branch_and_create_pr_a_pull_request(hub: Hub, model: Pretrained) -> None:
    push_to_hub(model, "owner/name", token=TOKEN)
    other = replace(model, state_policy="carry")
    push_to_hub(other, "owner/name", token=TOKEN, revision="v2")
    assert [load("owner/name", revision=name).state_policy for name in ("main", "v2")] == ["zeros", "carry"]
    push_to_hub(other, "owner/name", token=TOKEN, revision="v2")  # the branch exists
    assert push_to_hub(other, "owner/name", token=TOKEN, create_pr=True) == f"{hub.address}/owner/name/discussions/1"
    assert load("owner/name").state_policy == "zeros"


def test_private_model_needs_the_token(hub: Hub, model: Pretrained) -> None:
    push_to_hub(model, "owner/name", token=TOKEN, private=True)
    assert hub.repositories["owner/name"].private
    with pytest.raises(FileNotFoundError, match="log in with `hf auth login` if it is private"):
        load("owner/name")
    assert fingerprint(Pretrained.from_pretrained("owner/name", token=TOKEN)) == fingerprint(model)
    assert Embedder.load("owner/name", "cpu", token=TOKEN).fingerprint() == fingerprint(model)
    assert fingerprint(load("owner/name", local_files_only=True)) == fingerprint(model)


def test_cache_dir_and_force_download_are_those_of_huggingface_hub(hub: Hub, model: Pretrained, tmp_path: Path) -> None:
    push_to_hub(model, "owner/name", token=TOKEN)

    def fetched() -> int:
        before = len(hub.requests)
        load("owner/name", cache_dir=tmp_path / "here", force_download=force)
        return sum(request.startswith("GET /owner/name/resolve/") for request in hub.requests[before:])

    force = False
    assert (fetched(), fetched()) == (5, 0)
    force = True
    assert fetched() == 5
    assert (tmp_path / "here" / "models--owner--name").is_dir() and not (tmp_path / "cache").exists()


def test_save_pretrained_writes_a_directory_and_pushes_where_that_is_asked_for(
    hub: Hub, model: Pretrained, tmp_path: Path
) -> None:
    for _ in range(2):  # as transformers', it replaces what is there
        model.save_pretrained(tmp_path / "saved")
    assert not hub.requests
    assert fingerprint(Pretrained.from_pretrained(tmp_path / "saved")) == fingerprint(model)
    model.save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id="owner/name", token=TOKEN)
    assert fingerprint(load("owner/name")) == fingerprint(model)
    with pytest.raises(ValueError, match="repo_id='OWNER/NAME'"):
        model.save_pretrained(tmp_path / "other", push_to_hub=True)
    with pytest.raises(TypeError, match="has no argument storage_dtpe"):
        model.save_pretrained(tmp_path / "other", storage_dtpe="float16")
    assert not (tmp_path / "other").exists()


def test_save_pretrained_stores_in_the_dtype_asked_for_here_and_on_the_hub(
    hub: Hub, model: Pretrained, tmp_path: Path
) -> None:
    model.save_pretrained(
        tmp_path / "saved", storage_dtype="float16", push_to_hub=True, repo_id="owner/name", token=TOKEN
    )
    for directory in (tmp_path / "saved", locate("owner/name").path):
        assert {tensor.dtype for tensor in load_file(directory / "model.safetensors").values()} == {torch.float16}


# --- The card --------------------------------------------------------------------------------------------------------


def test_card_gets_the_metadata_that_it_lacks(model: Pretrained) -> None:
    card = card_with_metadata(model, "owner/name", "cc-by-sa-4.0", "en")
    assert card.endswith("---\n# Tiny\n\nSmall.\n")
    assert metadata_of(card) == {
        "library_name": "elmokit",
        "pipeline_tag": "feature-extraction",
        "tags": ["elmo", "word-embeddings"],
        "license": "cc-by-sa-4.0",
        "language": "en",
    }
    again = card_with_metadata(replace(model, card=card), "owner/name")
    assert again == card


def test_metadata_of_the_card_stay(model: Pretrained) -> None:
    own = "---\nlicense: mit\ntags:\n- proteins\ndatasets:\n- uniref50\n---\n# Mine\n"
    metadata = metadata_of(card_with_metadata(replace(model, card=own), "owner/name", language="de"))
    assert metadata["license"] == "mit" and metadata["datasets"] == ["uniref50"] and metadata["language"] == "de"
    assert metadata["tags"] == ["proteins", "elmo", "word-embeddings"]
    with pytest.raises(ValueError, match="not valid YAML"):
        card_with_metadata(replace(model, card="---\na: [\n---\n# Mine\n"), "owner/name")


def test_model_without_a_card_gets_one_that_names_it(model: Pretrained) -> None:
    card = card_with_metadata(replace(model, card=""), "owner/name")
    assert "# owner/name" in card and 'Embedder.load("owner/name")' in card and "32 dimensions in 3 layers" in card


# --- Trouble ---------------------------------------------------------------------------------------------------------


def test_push_without_a_token_says_how_to_log_in(hub: Hub, model: Pretrained) -> None:
    with pytest.raises(PermissionError, match="log in with `hf auth login`"):
        push_to_hub(model, "owner/name")
    with pytest.raises(PermissionError, match="does not let you write owner/name"):
        push_to_hub(model, "owner/name", token="hf_of_someone_else")
    push_to_hub(model, "owner/name", token=TOKEN)
    with pytest.raises(PermissionError, match="does not let you write owner/name"):
        push_to_hub(replace(model, card="# Other\n"), "owner/name")
    assert b"# Tiny" in hub.files("owner/name")["README.md"]


def test_push_without_a_hub_says_so(model: Pretrained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the port that discards
    with pytest.raises(OSError, match=r"owner/name cannot be written on the Hugging Face Hub \(.*\): try again later"):
        push_to_hub(model, "owner/name", token=TOKEN)


@pytest.mark.parametrize("name", ["name", "owner/name/more", "../name", ""])
def test_push_to_what_is_no_name_is_refused(model: Pretrained, name: str) -> None:
    with pytest.raises(ValueError, match="write OWNER/NAME"):
        push_to_hub(model, name)


def test_error_names_the_missing_package(model: Pretrained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="pip install huggingface_hub"):
        push_to_hub(model, "owner/name")


# --- The command -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_command_pushes_any_model_to_the_endpoint_of_the_environment(model: Pretrained, tmp_path: Path) -> None:
    elmokit.save(model, tmp_path / "model")
    with running_hub() as hub:
        environment = os.environ | {
            "HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        environment.pop("HF_HUB_OFFLINE", None)

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "elmokit", *arguments]
            return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

        done = run("push", "model", "owner/name", "--private", "--license", "mit", "--commit-message", "Mine")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].startswith(f"{hub.address}/owner/name/commit/")
        repository = hub.repositories["owner/name"]
        assert repository.private and repository.subjects == ["Mine"]
        environment["HF_TOKEN"] = "hf_of_someone_else"
        failed = run("push", "model", "owner/name")
        assert failed.returncode == 2 and "log in with `hf auth login`" in failed.stderr
        assert failed.stderr.count("\n") == 1
