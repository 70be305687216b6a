"""Push models to the Hugging Face Hub: the files of elmokit's format and a card with metadata, in
one commit.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from elmokit import __version__
from elmokit.checkpoints.hub import hub_model, reason_of
from elmokit.checkpoints.loading import ModelSource, load, save
from elmokit.checkpoints.native import FILES
from elmokit.checkpoints.pretrained import Pretrained

TAGS = ("elmo", "word-embeddings")

_CARD = """# {name}

A bidirectional language model (ELMo) in the format of elmokit: {dim} dimensions in {layers} layers.

```python
import elmokit

embedder = elmokit.Embedder.load("{name}")
vectors = embedder.embed(["A sentence."])
```
"""


def card_with_metadata(model: Pretrained, name: str, license: str | None = None) -> str:
    """The card of a model with the metadata by which the Hub lists it; metadata that the card has
    is kept.

    Args:
        model: The model; one without a card gets a short one.
        name: OWNER/NAME.
        license: The Hub's identifier of the license, such as cc-by-sa-4.0; None: the card's.

    Raises:
        ValueError: The metadata of the card is not valid.
    """
    from huggingface_hub import ModelCard

    config = model.config
    short = _CARD.format(name=name, dim=config.output_dim, layers=config.num_representations)
    text = model.card or short
    try:
        card = ModelCard(text if text.startswith("---\n") else f"---\n{{}}\n---\n{text}")
    except Exception as error:  # PyYAML's, which huggingface_hub depends on
        raise ValueError(
            f"the metadata at the beginning of the model's card is not valid YAML: {error}"
        ) from error
    data = card.data
    data["library_name"] = data.get("library_name", "elmokit")
    data["pipeline_tag"] = data.get("pipeline_tag", "feature-extraction")
    data["tags"] = list(dict.fromkeys([*(data.get("tags") or []), *TAGS]))
    data["license"] = license or data.get("license")
    data["language"] = data.get("language") or model.language
    return str(card)


def push_to_hub(
    model: ModelSource,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    license: str | None = None,
    storage_dtype: str = "float32",
) -> str:
    """Push a model to the Hugging Face Hub, where `elmokit.load(repo_id)` finds it. Needs
    huggingface_hub.

    The repository is created if it does not exist. Its files are those of `elmokit.save`, replaced
    in one commit; other files stay. The card gets the metadata by which the Hub lists models.

    Args:
        model: A loaded model, or whatever `elmokit.load` takes.
        repo_id: OWNER/NAME, or the URL of its page.
        private: Create the repository as private; None: the Hub's default for its owner.
        revision: The branch to commit to, created if it does not exist; None: main.
        token: An access token; None: that of `hf auth login` or HF_TOKEN.
        license: The license for the card, by the Hub's identifier, such as cc-by-sa-4.0; None: what
            the card says.
        storage_dtype: As for `elmokit.save`.

    Returns:
        The URL of the commit.

    Raises:
        ValueError: `repo_id` is not a name on the Hub, the card's metadata is not valid, or
            huggingface_hub is not installed; or as `elmokit.save`.
        OSError: The network or the Hub fails, or the token may not write there.
    """
    repository = hub_model(repo_id, revision)
    if repository is None:
        raise ValueError(
            f"{repo_id!r} is not the name of a repository on the Hugging Face Hub: write OWNER/NAME"
        )
    try:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    except ImportError as error:
        raise ValueError(
            "to push a model, pip install huggingface_hub (elmokit's extra hub)"
        ) from error
    name, branch, loaded = repository.name, repository.revision, load(model)
    api = HfApi(token=token, library_name="elmokit", library_version=__version__)
    with tempfile.TemporaryDirectory(prefix="elmokit-") as temporary:
        directory = Path(temporary) / "model"
        carded = replace(loaded, card=card_with_metadata(loaded, name, license))
        save(carded, directory, storage_dtype=storage_dtype)
        files = {path.name: path for path in sorted(directory.iterdir())}
        # All in one commit, which `upload_folder` does not promise.
        changes: list[Any] = [CommitOperationAdd(name, path) for name, path in files.items()]
        try:
            api.create_repo(name, private=private, exist_ok=True)
            if branch is not None:
                api.create_branch(name, branch=branch, exist_ok=True)
            # The files of a model that the new one lacks are removed.
            outdated = set(api.list_repo_files(name, revision=branch)) & set(FILES) - set(files)
            changes += map(CommitOperationDelete, sorted(outdated))
            message = "Upload a model of elmokit"
            commit = api.create_commit(name, changes, commit_message=message, revision=branch)
            return str(commit.commit_url)
        # Connections fail with errors of the HTTP library, which differs between versions.
        except Exception as error:
            raise OSError(
                f"{name} cannot be written on the Hugging Face Hub ({reason_of(error)}): log in "
                "with `hf auth login`, or set HF_TOKEN to a token that may write there"
            ) from error
