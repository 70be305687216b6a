"""Models pushed to the Hugging Face Hub and loaded from there: the Hub is a directory, its client
records calls.
"""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import yaml
from huggingface_hub import CommitOperationAdd
from tiny_model import tiny_model

from elmokit.checkpoints.exporting import card_with_metadata, push_to_hub
from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import Pretrained

FILES = {"config.json", "model.safetensors", "softmax.safetensors", "vocab.txt", "README.md"}


@pytest.fixture(scope="module")
def model() -> Pretrained:
    return tiny_model([], card="# Tiny\n\nSmall.\n")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The calls that change the Hub, in which the branch BRANCH of OWNER/NAME is the directory
    hub/BRANCH.
    """
    calls: list[tuple[str, Any]] = []

    class Api:
        def __init__(self, token: str | None, **library: str) -> None:
            self.token = token or os.environ.get("HF_TOKEN")

        def create_repo(self, name: str, private: bool | None, exist_ok: bool) -> None:
            if self.token != "good":
                raise RuntimeError("401: invalid\ntoken")
            calls.append(("repository", (name, private)))
            (tmp_path / "hub" / "main").mkdir(parents=True, exist_ok=exist_ok)

        def create_branch(self, name: str, branch: str, exist_ok: bool) -> None:
            (tmp_path / "hub" / branch).mkdir(exist_ok=exist_ok)

        def list_repo_files(self, name: str, revision: str | None) -> list[str]:
            return [path.name for path in (tmp_path / "hub" / (revision or "main")).iterdir()]

        def create_commit(
            self, name: str, changes: list[Any], commit_message: str, revision: str | None
        ) -> Any:
            for change in changes:
                path = tmp_path / "hub" / (revision or "main") / change.path_in_repo
                if isinstance(change, CommitOperationAdd):
                    path.write_bytes(Path(change.path_or_fileobj).read_bytes())
                else:
                    path.unlink()
            return SimpleNamespace(commit_url="its commit")

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    snapshot = lambda name, revision, **options: str(tmp_path / "hub" / (revision or "main"))  # noqa: E731
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    return calls


def test_pushed_model_is_loaded_from_the_hub_and_a_second_push_replaces_it(
    calls: list[tuple[str, Any]], model: Pretrained, tmp_path: Path
) -> None:
    assert push_to_hub(model, "owner/name", token="good", private=True) == "its commit"
    assert {path.name for path in (tmp_path / "hub" / "main").iterdir()} == FILES
    found = load("owner/name")
    assert found.fingerprint() == model.fingerprint()
    assert found.vocab == model.vocab
    assert "# Tiny" in found.card
    assert found.softmax is not None
    (tmp_path / "hub" / "main" / "figure.png").write_bytes(b"mine")
    push_to_hub(replace(model, softmax=None), "hf:owner/name", token="good")
    assert {path.name for path in (tmp_path / "hub" / "main").iterdir()} == {
        *FILES,
        "figure.png",
    } - {"softmax.safetensors"}
    other = replace(model, state_policy="carry")
    push_to_hub(other, "owner/name", token="good", revision="v2")
    assert [load("owner/name", revision=name).state_policy for name in ("main", "v2")] == [
        "zeros",
        "carry",
    ]
    assert calls[0] == ("repository", ("owner/name", True))


def test_card_gets_the_metadata_that_it_lacks(model: Pretrained) -> None:
    own = "---\nlicense: mit\ntags:\n- proteins\n---\n# Mine\n"
    card = card_with_metadata(replace(model, language="en", card=own), "owner/name")
    _, metadata, text = card.split("---\n", 2)
    assert text == "# Mine\n"
    assert yaml.safe_load(metadata) == {
        "library_name": "elmokit",
        "pipeline_tag": "feature-extraction",
        "tags": ["proteins", "elmo", "word-embeddings"],
        "license": "mit",
        "language": "en",
    }
    assert card_with_metadata(replace(model, card=card, language="en"), "owner/name") == card
    assert "license: mit" in card_with_metadata(model, "owner/name", "mit")
    assert "# owner/name" in card_with_metadata(replace(model, card=""), "owner/name")


@pytest.mark.parametrize(
    ("name", "card", "token", "error", "message"),
    [
        ("owner/name", "# Other", "bad", OSError, "log in with `hf auth login`"),
        ("../name", "# Other", "good", ValueError, "write OWNER/NAME"),
    ],
)
@pytest.mark.usefixtures("calls")
def test_push_that_fails_says_what_to_do_and_changes_nothing(
    name: str, card: str, token: str, error: type[Exception], message: str, model: Pretrained
) -> None:
    push_to_hub(model, "owner/name", token="good")
    with pytest.raises(error, match=message):
        push_to_hub(replace(model, card=card), name, token=token)
    assert "# Tiny" in load("owner/name").card
