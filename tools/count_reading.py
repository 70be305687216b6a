"""Count the files that a newcomer has to read to follow three calls, on the reference backend.

A file counts if one of its functions is entered, or if a field of a configuration that it defines is read. The C files
of the native backend are not on these paths. The exit status is 1 if a path enters more files than its limit.

    python tools/count_reading.py              # prints the files of each path, and the limits
    python tools/count_reading.py --markdown   # prints the lists for docs/architecture.md
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

import elmokit
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.nn.bilm import BiLM
from elmokit.text.vocab import Vocab
from elmokit.train import config as train_config
from elmokit.train.trainer import Trainer

PACKAGE = Path(elmokit.__file__).parent
SENTENCES = ["I like to eat apple.", "I like apple products!"]
CONFIG_FILES = [sys.modules[BiLMConfig.__module__], train_config]


class ReadingPath(NamedTuple):
    """A call whose files are counted, and the largest number of files that it may enter (`bar`)."""

    name: str
    bar: int
    prepare: Callable[[], Callable[[], object]]


# --- Counting --------------------------------------------------------------------------------------------------------


@contextmanager
def _noting_config_fields(files: dict[str, None]) -> Iterator[None]:
    """Record the files of configurations whose fields are read, which does not enter a function."""
    kinds = [
        kind
        for module in CONFIG_FILES
        for kind in vars(module).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
    ]

    def noting(self: Any, name: str) -> Any:
        if name in type(self).__dataclass_fields__:
            files[sys.modules[type(self).__module__].__file__ or ""] = None
        return object.__getattribute__(self, name)

    for kind in kinds:
        kind.__getattribute__ = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind in kinds:
            del kind.__getattribute__


def files_entered(call: Callable[[], object]) -> list[str]:
    """The files of elmokit whose functions a call enters, on any thread that it starts, in the order of first entry."""
    files: dict[str, None] = {}

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            files[frame.f_code.co_filename] = None

    with _noting_config_fields(files):
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    own = (Path(file) for file in list(files))
    return [file.relative_to(PACKAGE).as_posix() for file in own if file.is_relative_to(PACKAGE)]


# --- The paths -------------------------------------------------------------------------------------------------------


def _forward() -> Callable[[], object]:
    bilm = BiLM(BiLMConfig.preset("tiny"))
    ids = bilm.token_encoder.ids(SENTENCES[0].split())[None]
    return lambda: bilm(ids)


def _embed() -> Callable[[], object]:
    embedder = Embedder(Pretrained(BiLM(BiLMConfig.preset("tiny")), tokenizer="english-1"), device="cpu")
    return lambda: embedder.embed(SENTENCES)


def _training_step() -> Callable[[], object]:
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    vocab = Vocab(["<S>", "</S>", "<UNK>", *words])
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.txt"
        corpus.write_text("\n".join(SENTENCES * 10) + "\n", encoding="utf-8")
        settings = train_config.PretrainConfig(
            corpus, Path("run"), batch_size=2, unroll_steps=4, num_samples=3, device="cpu"
        )
        trainer = Trainer(settings, BiLMConfig.preset("tiny"), vocab, [corpus], total_steps=10)
        trainer.train_step()  # the first step reads the corpus
    return trainer.train_step


PATHS = (  # with the largest numbers of files that decision 19 allows
    ReadingPath("BiLM.forward", 8, _forward),
    ReadingPath("Embedder.embed", 20, _embed),
    ReadingPath("Trainer.train_step", 18, _training_step),
)


def main() -> int:
    elmokit.set_backend("reference")
    torch.set_num_threads(2)
    is_markdown, is_within = "--markdown" in sys.argv[1:], True
    for path in PATHS:
        files = files_entered(path.prepare())
        is_within &= len(files) <= path.bar
        if is_markdown:
            print(f"**`{path.name}`**, {len(files)} files: " + ", ".join(f"`{file}`" for file in files) + ".\n")
        else:
            print(f"{path.name}: {len(files)} files, at most {path.bar}", *files, sep="\n    ")
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
