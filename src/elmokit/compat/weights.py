"""Weights as old code names them: by path, or by a URL that the old library fetched once and kept."""

import hashlib
import os
import tempfile
from pathlib import Path

from elmokit.checkpoints.formats.bilm_hdf5 import read_bilm_hdf5
from elmokit.checkpoints.loading import load
from elmokit.checkpoints.native import filled
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.nn.bilm import BiLM


def _is_url(name: str | Path) -> bool:
    return "://" in str(name)


def _allennlp_file(name: str | Path) -> Path:
    """The file itself, or what AllenNLP's cache holds of a URL (its `cached_path`)."""
    if not _is_url(name):
        return Path(name)
    root = Path(os.environ.get("ALLENNLP_CACHE_ROOT", "~/.allennlp")).expanduser()
    found = sorted(root.glob(f"*/{hashlib.sha256(str(name).encode()).hexdigest()}*"))
    for path in found:
        if path.suffix not in (".json", ".lock"):
            return path
    raise FileNotFoundError(
        f"nothing is downloaded, and {root} holds no {name}: fetch the file and give its path "
        "(the original weights are on the Hugging Face Hub, lysandre/elmo-2x4096_512_2048cnn_2xhighway)"
    )


def open_bilm(options_file: str | Path | None, weight_file: str | Path | None) -> BiLM:
    """The biLM of options.json and its HDF5 weights; without options, of whatever `elmokit.load` takes."""
    if options_file is None:
        return load(weight_file, softmax=False).bilm
    if weight_file is None:
        raise ValueError(f"options {options_file} were given without weights: name the weight_file too")
    config, tensors = read_bilm_hdf5(_allennlp_file(options_file), _allennlp_file(weight_file))
    return filled(lambda: BiLM(config), tensors)


def open_hub_module(handle: str | Path) -> Pretrained:
    """The model of a path or name that `elmokit.load` takes, or what TensorFlow Hub's cache holds of a URL."""
    if not _is_url(handle):
        return load(handle, softmax=False)
    cache = Path(os.environ.get("TFHUB_CACHE_DIR", Path(tempfile.gettempdir()) / "tfhub_modules"))
    module = cache / hashlib.sha1(str(handle).encode()).hexdigest()
    if not module.is_dir():
        raise FileNotFoundError(
            f"nothing is downloaded, and {cache} holds no {handle}: fetch the module and name its directory, "
            "or name another model"
        )
    return load(module, softmax=False)
