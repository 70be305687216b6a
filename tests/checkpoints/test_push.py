"""Models pushed to the Hugging Face Hub and loaded from there, by the real huggingface_hub.

The Hub is a stand-in on this machine (tests/support/hub_server.py): the real one was not reached.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hub_server import TOKEN, Hub, running_hub, take_for_the_hub
from huggingface_hub import constants
from safetensors.torch import load_file

from elmokit.checkpoints.loading import describe, fingerprint, load, locate, save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.checkpoints.push import card_with_metadata, push_to_hub
from elmokit.cli import main
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


def test_pushed_model_is_loaded_from_the_hub_and_a_second_push_replaces_it(hub: Hub, model: Pretrained) -> None:
    address = push_to_hub(model, "owner/name", token=TOKEN, commit_message="First")
    assert address.startswith(f"{hub.address}/owner/name/commit/")
    files = {"config.json", "model.safetensors", "softmax.safetensors", "vocab.txt", "README.md"}
    assert set(hub.files("owner/name")) == files
    found = load("owner/name")
    assert fingerprint(found) == fingerprint(model) and found.vocab == model.vocab
    assert found.softmax is not None and model.softmax is not None
    assert torch.equal(found.softmax.weight, model.softmax.weight)
    assert describe("owner/name")["card"] == ["# Tiny", "", "Small."]
    hub.files("owner/name")["figure.png"] = b"mine"
    push_to_hub(replace(model, softmax=None), "hf:owner/name", token=TOKEN, storage_dtype="float16")
    assert hub.repositories["owner/name"].subjects == ["First", "Upload a model of elmokit"]  # one commit
    assert set(hub.files("owner/name")) == {*files, "figure.png"} - {"softmax.safetensors"}
    stored = load_file(locate("owner/name").path / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}


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
    assert Embedder.load("owner/name", "cpu", token=TOKEN).fingerprint() == fingerprint(model)
    assert fingerprint(load("owner/name", local_files_only=True)) == fingerprint(model)


def test_cache_dir_and_force_download_are_those_of_huggingface_hub(hub: Hub, model: Pretrained, tmp_path: Path) -> None:
    push_to_hub(model, "owner/name", token=TOKEN)

    def fetched(force: bool) -> int:
        before = len(hub.requests)
        load("owner/name", cache_dir=tmp_path / "here", force_download=force)
        return sum(request.startswith("GET /owner/name/resolve/") for request in hub.requests[before:])

    assert (fetched(False), fetched(False), fetched(True)) == (5, 0, 5)
    assert (tmp_path / "here" / "models--owner--name").is_dir() and not (tmp_path / "cache").exists()


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
    assert card_with_metadata(replace(model, card=card), "owner/name") == card
    own = "---\nlicense: mit\ntags:\n- proteins\ndatasets:\n- uniref50\n---\n# Mine\n"
    metadata = metadata_of(card_with_metadata(replace(model, card=own), "owner/name", language="de"))
    assert metadata["license"] == "mit" and metadata["datasets"] == ["uniref50"] and metadata["language"] == "de"
    assert metadata["tags"] == ["proteins", "elmo", "word-embeddings"]
    card = card_with_metadata(replace(model, card=""), "owner/name")
    assert "# owner/name" in card and 'Embedder.load("owner/name")' in card and "32 dimensions in 3 layers" in card


# --- Trouble ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "card", "options", "error", "message"),
    [
        ("owner/name", "# Other", {"token": "hf_of_someone_else"}, OSError, "log in with `hf auth login`"),
        ("owner/name", "# Other", {}, OSError, "log in with `hf auth login`"),
        ("owner/name", "---\na: [\n---\n# Mine\n", {"token": TOKEN}, ValueError, "not valid YAML"),
        ("name", "# Other", {"token": TOKEN}, ValueError, "write OWNER/NAME"),
        ("../name", "# Other", {"token": TOKEN}, ValueError, "write OWNER/NAME"),
    ],
)
def test_push_that_fails_says_what_to_do_and_changes_nothing(
    name: str, card: str, options: dict[str, Any], error: type[Exception], message: str, hub: Hub, model: Pretrained
) -> None:
    push_to_hub(model, "owner/name", token=TOKEN)
    with pytest.raises(error, match=message):
        push_to_hub(replace(model, card=card), name, **options)
    assert b"# Tiny" in hub.files("owner/name")["README.md"]


def test_push_without_a_hub_or_without_its_package_says_so(model: Pretrained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the port that discards
    with pytest.raises(OSError, match="owner/name cannot be written on the Hugging Face Hub"):
        push_to_hub(model, "owner/name", token=TOKEN)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="pip install huggingface_hub"):
        push_to_hub(model, "owner/name")


def test_command_pushes_any_model(
    hub: Hub, model: Pretrained, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(model, tmp_path / "model")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    arguments = ["convert", str(tmp_path / "model"), "--to", "hub", "--output", "owner/name"]
    assert main([*arguments, "--private"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{hub.address}/owner/name/commit/")
    repository = hub.repositories["owner/name"]
    assert repository.private
    monkeypatch.setenv("HF_TOKEN", "hf_of_someone_else")
    assert main(arguments) == 2
    failed = capsys.readouterr().err
    assert "log in with `hf auth login`" in failed and failed.count("\n") == 1
