"""Exports models: to formats that other programs read, and to the Hugging Face Hub."""

from __future__ import annotations

import re
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from elmokit import __version__
from elmokit.checkpoints.bilm_hdf5 import write_bilm_hdf5
from elmokit.checkpoints.hub import hub_model, reason_of
from elmokit.checkpoints.loading import ModelSource, load, save
from elmokit.checkpoints.native import FILES, LAYOUT, write_card
from elmokit.checkpoints.onnx_graph import write_onnx
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.fs import atomic_directory, check_output
from elmokit.settings import conform

Target = Literal["native", "hdf5", "onnx"]
# By which `check_output` knows a model that may be replaced.
HDF5_LAYOUT: dict[str, Any] = {
    "directory_of": "options.json",
    "keys": {"lstm"},
    "own_files": re.compile(r"weights\.hdf5|vocab\.txt|README\.md"),
}

TAGS = ("elmo", "word-embeddings")

_CARD = """# {name}

A bidirectional language model (ELMo) in the format of elmokit: {dim} dimensions in {layers} layers.

```python
import elmokit

embedder = elmokit.Embedder("{name}")
vectors = embedder.embed(["A sentence."])
```
"""

# --- Other formats --------------------------------------------------------------------------------


def _warn_of_losses(model: Pretrained, format: str) -> None:
    """Warn of parts of a model that the format cannot hold."""
    lost = {
        "softmax": model.softmax is not None,
        "mix of layers": model.mix is not None,
        "warm state": model.warm_state is not None,
        "map to vectors of texts": model.text_map is not None,
        f"state policy {model.state_policy}": model.state_policy != "zeros",
        "name of the tokenizer": model.tokenizer is not None,
        # Readers look them up in the vocabulary, and without one take the first rows.
        "rows of <S> and </S>": model.config.boundary_words != (0, 1) and model.vocab is None,
    }
    if names := ", ".join(name for name, is_there in lost.items() if is_there):
        warnings.warn(
            f"{format} cannot hold the {names}: left out, keep the original", stacklevel=3
        )


def save_hdf5(model: Pretrained, directory: str | Path, *, overwrite: bool = False) -> None:
    """Write a model as AllenNLP and bilm-tf read it: options.json and weights.hdf5, with vocab.txt
    and README.md.

    Args:
        model: A biLM over characters or word ids.
        directory: A new or empty directory, which appears whole or not at all.
        overwrite: Replace a directory that holds a model in this format, and nothing else.

    Raises:
        FileExistsError: The path is a file, or a directory that is not empty, and `overwrite` is
            not set or it holds no such model, or other files.
        ValueError: The format cannot express the model's configuration.

    Warns:
        UserWarning: The model has parts that the format cannot hold: softmax, mix, state policy,
            warm state, tokenizer, or without a vocabulary the rows of the boundary words.
    """
    if overwrite:
        check_output(directory, [], overwrite=True, **HDF5_LAYOUT)
    with atomic_directory(directory, overwrite) as partial:
        write_bilm_hdf5(model.bilm, partial)
        if model.vocab is not None:
            model.vocab.write(partial / "vocab.txt")
        if model.card:
            write_card(model.card, partial)
    _warn_of_losses(model, "HDF5")


def convert(
    input: ModelSource, output: str | Path, to: Target = "native", *, overwrite: bool = False
) -> dict[str, str | int]:
    """Read a model in any format and write it in another. Repeating the call changes nothing.

    Args:
        input: The model, as `elmokit.load` takes it.
        output: A directory; for "onnx" a file.
        to: "native", elmokit's own format; "hdf5", the format of AllenNLP and bilm-tf; or "onnx",
            the biLM for onnxruntime.
        overwrite: Replace another model; for "onnx", the file, whatever it holds.

    Returns:
        The output's path, format and bytes.

    Raises:
        FileExistsError: The output exists, and `overwrite` is not set or it is a directory that is
            not a model.
        ValueError: The format cannot express the model.

    Warns:
        UserWarning: "hdf5" or "onnx" cannot hold parts of the model, which are named.
    """
    conform(Target, to, "to")
    output = Path(output).expanduser()
    layout = {"native": LAYOUT, "hdf5": HDF5_LAYOUT}.get(to, {})
    check_output(output, [input], overwrite=overwrite, directory_of=layout.get("directory_of"))
    model = load(input)
    if to == "native":
        save(model, output, overwrite=overwrite)
    elif to == "hdf5":
        save_hdf5(model, output, overwrite=overwrite)
    else:
        write_onnx(model.bilm, output, overwrite)
        _warn_of_losses(model, "ONNX")
    files = output.iterdir() if output.is_dir() else [output]
    return {"path": str(output), "format": to, "bytes": sum(file.stat().st_size for file in files)}


# --- The Hugging Face Hub -------------------------------------------------------------------------


def card_with_metadata(model: Pretrained, name: str, license: str | None = None) -> str:
    """Add Hub metadata to a card, keeping existing entries.

    Args:
        model: The model; one without a card gets a short one.
        name: OWNER/NAME.
        license: The Hub's identifier of the license, such as cc-by-sa-4.0; None: the card's.
    """
    from huggingface_hub import ModelCard

    config = model.config
    short = _CARD.format(name=name, dim=config.output_dim, layers=config.num_representations)
    text = model.card or short
    card = ModelCard(text if text.startswith("---\n") else f"---\n{{}}\n---\n{text}")
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
        ValueError: `repo_id` is not a name on the Hub, or huggingface_hub is not installed; or as
            `elmokit.save`.
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
