"""A hash of everything that the weights of a task model depend on, by which a run is resumed or found finished."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmokit.checkpoints.pretrained import Pretrained, fingerprint
from elmokit.tasks.task import Task
from elmokit.tasks.transformer_encoder import TransformerEncoder
from elmokit.tasks.word_vectors import WordVectors

# Settings on which the weights do not depend: the device, and the path of word vectors, which are hashed themselves.
NOT_DECISIVE = {"device", "vectors"}
PLAIN = {str, int, float, bool, type(None)}  # whose text is their content


def _code_of(task: Task) -> bytes:
    """The source of a task that is not elmokit's own, as its code may change between calls; else empty."""
    try:
        file = None if type(task).__module__.startswith("elmokit.") else inspect.getsourcefile(type(task))
        return b"" if file is None else Path(file).read_bytes()
    except (OSError, TypeError):  # a class that was typed into an interpreter has no file
        return b""


def _content(value: Any) -> Iterator[bytes]:
    """The content of an example. `repr` is not that of arrays, which it abbreviates, sets, or objects in general."""
    if isinstance(value, torch.Tensor):  # its bytes, as NumPy lacks some number types
        yield repr((value.dtype, value.shape)).encode()
        value = value.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield repr((value.dtype.str, value.shape)).encode() + value.tobytes()
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value).__name__.encode()
        for field in fields(value):
            yield from _content(getattr(value, field.name))
    elif isinstance(value, dict):
        yield from _content(list(value.items()))
    elif isinstance(value, np.ndarray):  # of objects
        yield repr(value.shape).encode()
        yield from _content(value.ravel().tolist())
    elif isinstance(value, set | frozenset):  # whose order is another in every process
        yield from _content(sorted(b"".join(_content(each)) for each in value))
    elif isinstance(value, list | tuple) and not set(map(type, value)) <= PLAIN:
        yield len(value).to_bytes(8, "little")
        for each in value:
            yield from _content(each)
    elif type(value).__repr__ is object.__repr__:  # which gives an address in memory
        yield type(value).__name__.encode()
        yield from _content(_attributes(value))
    else:
        yield repr(value).encode("utf-8", "surrogatepass")


def _attributes(value: object) -> dict[str, Any]:
    """The attributes of an object of any class, by name."""
    attributes = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        attributes |= {name: getattr(value, name) for name in names if hasattr(value, name)}
    return attributes


def identity_of(
    task: Task,
    sets: Sequence[Sequence[Any]],
    pretrained: Sequence[Pretrained | WordVectors | TransformerEncoder | None],
    settings: dict[str, Any],
) -> str:
    """A hash of everything that the weights depend on; `pretrained` is what the network reads."""
    decisive = {
        part: {name: value for name, value in of_part.items() if name not in NOT_DECISIVE}
        for part, of_part in settings.items()
    }
    content = blake2b(json.dumps(decisive, sort_keys=True, default=str).encode(), digest_size=16)
    content.update(repr((task.name, task.config, task.labels)).encode() + _code_of(task))
    for read in pretrained:
        if isinstance(read, WordVectors):
            content.update(repr(read.words).encode())
            content.update(read.vectors.tobytes())
        elif read is not None:
            content.update((read.name if isinstance(read, TransformerEncoder) else fingerprint(read)).encode())
    for examples in sets:
        content.update(len(examples).to_bytes(8, "little"))  # the same examples may be split otherwise
        for example in examples:
            for part in _content(example):
                content.update(part)
    return content.hexdigest()
