"""Weights as named in the original libraries: by path, or by a URL, whose file is in that library's cache."""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import cast

from elmokit.checkpoints.errors import check_finite
from elmokit.checkpoints.formats.bilm_hdf5 import read_bilm_hdf5
from elmokit.checkpoints.loading import load
from elmokit.checkpoints.native import filled
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.nn.bilm import BiLM

ORIGINAL = (
    "https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/elmo_2x4096_512_2048cnn_2xhighway"
)
DEFAULT_OPTIONS_FILE = f"{ORIGINAL}_options.json"
DEFAULT_WEIGHT_FILE = f"{ORIGINAL}_weights.hdf5"


def _not_cached(name: str | Path, cache: Path) -> FileNotFoundError:
    return FileNotFoundError(f"{name} is not in {cache}, and elmokit does not download it: give the path of a copy")


def local_path(name: str | Path) -> Path:
    """The path of a file, or of a URL's file in AllenNLP's cache (its `cached_path`)."""
    if "://" not in str(name):
        return Path(name).expanduser()
    root = Path(os.environ.get("ALLENNLP_CACHE_ROOT", "~/.allennlp")).expanduser()
    cached = root.glob(f"*/{hashlib.sha256(str(name).encode()).hexdigest()}*")
    if versions := [path for path in cached if path.suffix not in (".json", ".lock")]:
        return max(versions, key=lambda path: path.stat().st_mtime_ns)
    raise _not_cached(name, root)


def open_bilm(options_file: str | Path | None, weight_file: str | Path | None) -> BiLM:
    """Load a biLM from options.json and HDF5 weights.

    Args:
        options_file: Path or URL; None: `weight_file` is any model that `elmokit.load` accepts.
        weight_file: Path or URL of the HDF5 weights.

    Raises:
        FileNotFoundError: A URL is not in AllenNLP's cache.
    """
    if options_file is None:
        return load(weight_file, softmax=False).bilm
    config, tensors = read_bilm_hdf5(local_path(options_file), local_path(cast(Path, weight_file)))
    check_finite(weight_file, tensors)
    return filled(lambda: BiLM(config), tensors)


def open_hub_module(handle: str | Path) -> Pretrained:
    """Load the model of a path or name that `elmokit.load` accepts, or of a URL in TensorFlow Hub's cache."""
    if "://" not in str(handle):
        return load(handle, softmax=False)
    cache = Path(os.environ.get("TFHUB_CACHE_DIR", Path(tempfile.gettempdir()) / "tfhub_modules"))
    module = cache / hashlib.sha1(str(handle).encode()).hexdigest()
    if not module.is_dir():
        raise _not_cached(handle, cache)
    return load(module, softmax=False)
