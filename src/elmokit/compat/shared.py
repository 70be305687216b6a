"""Shared by the old interfaces: weights by path or URL, carried state, warnings."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.checkpoints import Pretrained, load
from elmokit.nn import BiLMState
from elmokit.text import count_truncated, encode_sentences

# --- Weights by path, or by a URL, whose file is in the cache of the library ----------------------

ORIGINAL = "https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/elmo_2x4096_512_2048cnn_2xhighway"
DEFAULT_OPTIONS_FILE = f"{ORIGINAL}_options.json"
DEFAULT_WEIGHT_FILE = f"{ORIGINAL}_weights.hdf5"


def _not_cached(name: str | Path, cache: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"{name} is not in {cache}, and elmokit does not download it: give the path of a copy"
    )


def local_path(name: str | Path) -> Path:
    """The path of a file, or of a URL's file in AllenNLP's cache (its `cached_path`)."""
    if "://" not in str(name):
        return Path(name).expanduser()
    root = Path(os.environ.get("ALLENNLP_CACHE_ROOT", "~/.allennlp")).expanduser()
    cached = root.glob(f"*/{hashlib.sha256(str(name).encode()).hexdigest()}*")
    if versions := [path for path in cached if path.suffix not in (".json", ".lock")]:
        return max(versions, key=lambda path: path.stat().st_mtime_ns)
    raise _not_cached(name, root)


def open_model(
    options_file: str | Path | None,
    weight_file: str | Path | None,
    vocab_file: str | Path | None = None,
) -> Pretrained:
    """Load a model from options.json and HDF5 weights.

    Args:
        options_file: Path or URL; None: `weight_file` is any model that `elmokit.load` accepts.
        weight_file: Path or URL of the HDF5 weights.
        vocab_file: The words of a model of word ids.

    Raises:
        FileNotFoundError: A URL is not in AllenNLP's cache.
    """
    if options_file is None:
        return load(weight_file, softmax=False)
    weights = local_path(cast(Path, weight_file))
    return load(weights, options=local_path(options_file), vocab=vocab_file or None)


def open_hub_module(handle: str | Path) -> Pretrained:
    """`elmokit.load` of a path or name, or of a URL in TensorFlow Hub's cache."""
    if "://" not in str(handle):
        return load(handle, softmax=False)
    cache = Path(os.environ.get("TFHUB_CACHE_DIR", Path(tempfile.gettempdir()) / "tfhub_modules"))
    module = cache / hashlib.sha1(str(handle).encode()).hexdigest()
    if not module.is_dir():
        raise _not_cached(handle, cache)
    return load(module, softmax=False)


# --- The state that is carried between calls; in the rest of elmokit, state is explicit -----------


class CarriedStates(nn.Module):
    """The state carried between calls (AllenNLP, encoder_base.py; bilm-tf, model.py).

    Row k of a call starts from the final state of row k of the previous call. Rows that a call does
    not use keep their state. With `stateful=False`, every call starts from zeros. This is a module
    because AllenNLP's trainers look for `stateful` and `reset_states` among `model.modules()`.
    """

    def __init__(self, stateful: bool = True) -> None:
        super().__init__()
        self.stateful = stateful
        self._current: BiLMState | None = None

    def initial(self, rows: int, device: torch.device) -> BiLMState | None:
        """The initial state of a call with `rows` rows; None for zeros."""
        if not self.stateful or self._current is None:
            return None
        # (2, L, B, .): rows that are too many are cut, rows that are missing are zeros.
        more = (0, 0, 0, rows - self._current.h.shape[2])
        return BiLMState(
            *(F.pad(part, more).to(device) for part in (self._current.h, self._current.c))
        )

    def update(self, final: BiLMState) -> None:
        """Store the final state of a call, detached from the graph."""
        if not self.stateful:
            return
        h, c = final.h.detach(), final.c.detach()
        if self._current is not None:
            rows, previous = h.shape[2], self._current
            h = torch.cat([h, previous.h[:, :, rows:].to(h.device)], dim=2)
            c = torch.cat([c, previous.c[:, :, rows:].to(c.device)], dim=2)
        self._current = BiLMState(h, c)

    def reset_states(self, mask: Tensor | None = None) -> None:
        """Reset the state of all rows to zeros, or of those where `mask` (B,) is True."""
        if mask is None or self._current is None:
            self._current = None
            return
        h, c = self._current.h, self._current.c
        carried = ~mask.bool().to(h.device).view(1, 1, h.shape[2], 1)
        self._current = BiLMState(h * carried, c * carried)


def without_boundaries(layers: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Remove <S> and </S> from layers (..., T+2, D), and from a mask that broadcasts to (..., T+2).

    Returns:
        The layers (..., T, D), zero where the mask is False, and the mask.
    """
    inner = mask[..., 2:]
    return layers[..., 1:-1, :] * inner.unsqueeze(-1), inner


# --- Warnings of what the original libraries did not report ---------------------------------------


@cache
def warn_once(message: str) -> None:
    """Issue a UserWarning; each message is issued once per process."""
    warnings.warn(message, UserWarning, stacklevel=3)


def encode_with_notices(
    sentences: Iterable[Iterable[str]], max_characters: int, library: str
) -> np.ndarray:
    """Sentences -> character ids (B, T, C) int64, with the two warnings below."""
    lists = word_lists(sentences)
    warn_of_truncated(chain.from_iterable(lists), max_characters, library)
    return encode_sentences(lists, max_characters).astype(np.int64)


def word_lists(sentences: Iterable[Iterable[str]]) -> list[list[str]]:
    """Sentences as lists of words, with a warning for a string, whose characters are its words."""
    sentences = list(sentences)
    if any(isinstance(sentence, str) for sentence in sentences):
        warn_once(
            "a sentence is a string instead of a list of tokens: each of its characters is read "
            "as a token"
        )
    return list(map(list, sentences))


def warn_of_truncated(words: Iterable[str], max_characters: int, library: str) -> None:
    """Warn if words do not fit into `max_characters`, which include the two marks around a word."""
    if count_truncated(list(words), max_characters):
        limit = max_characters - 2
        warn_once(
            f"some words have more than {limit} bytes: as in {library}, only the first {limit} "
            f"are read"
        )
