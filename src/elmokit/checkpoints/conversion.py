"""Convert a model from any format that can be read to one that can be written."""

import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from elmokit.checkpoints.formats.bilm_hdf5 import write_bilm_hdf5
from elmokit.checkpoints.formats.onnx_graph import write_onnx
from elmokit.checkpoints.loading import ModelSource, load, save
from elmokit.checkpoints.native import LAYOUT, write_card
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


def _warn_of_losses(model: Pretrained, format: str, kept: Collection[str] = ()) -> None:
    """Warn of parts that the format cannot hold, but for those named in `kept`."""
    lost = {
        "softmax": model.softmax is not None,
        "mix of layers": model.mix is not None,
        "warm state": model.warm_state is not None,
        f"state policy {model.state_policy}": model.state_policy != "zeros",
        "name of the tokenizer": model.tokenizer is not None,
        "vocabulary": model.vocab is not None,
        # Readers look them up in the vocabulary, and without one take the first rows.
        "rows of <S> and </S>": model.config.boundary_words != (0, 1) and model.vocab is None,
        "card": bool(model.card),
    }
    if names := ", ".join(name for name, is_there in lost.items() if is_there and name not in kept):
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
    _warn_of_losses(model, "HDF5", kept=("vocabulary", "card"))


def convert(
    input: ModelSource, output: str | Path, to: Target = "native", *, overwrite: bool = False
) -> dict[str, str | int]:
    """Read a model in any format and write it in another. Repeating the call changes nothing.

    Args:
        input: The model, as `elmokit.load` takes it.
        output: A directory; for "onnx" a file.
        to: "native", elmokit's own format; "hdf5", that of AllenNLP and bilm-tf; or "onnx", the
            biLM for onnxruntime.
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
