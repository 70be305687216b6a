"""Measure the Chinese model directly: senses, parts of speech, texts, pairs of texts.

    python benchmarks/quality/chinese.py --eval DIRECTORY [--model NAME_OR_PATH] [--only PART ...]

DIRECTORY holds the data sets, each in a folder (senses.tsv: a file). Trained taggers and
classifiers are measured by tasks.py --language zh, perplexity by heldout_perplexity.py.

- senses: senses.tsv; a use counts as right if the nearest other use of the word has its sense.
- wsd: wsd_modern_chinese, trained on train, answered on val; words of at least two senses there.
- probe: ud_gsdsimp, universal parts of speech; trained on dev without its last tenth, which
  chooses the penalty.
- titles, reviews: logistic regression on the vectors of `encode` and on TF-IDF of characters.
- similarity: sts_b_zh; the correlation of cosines with the scores of the test set.
- wic: wic_mcl_zh; whether a word has one sense in two sentences, by the cosine of its uses. The
  threshold is chosen on one half of the development set for the other.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.feature_extraction.text import TfidfVectorizer

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from result_files import RESULTS, write_result
from sentiment import PARTS, accuracies
from word_senses import (
    Instance,
    Sentence,
    Tally,
    instance_vectors,
    lemma_senses,
    names_of,
    use_cosines,
)

from elmokit.analysis.probe import probe_files
from elmokit.analysis.uses import unit_vectors
from elmokit.embed import Embedder
from elmokit.fs import read_lines

Figures = dict[str, Any]


def split_around(embedder: Embedder, text: str, start: int, stop: int) -> tuple[list[str], int]:
    """The words of a text in which the characters start to stop are one word, and its position."""
    before, after = embedder.tokenize(text[:start]), embedder.tokenize(text[stop:])
    return [*before, text[start:stop], *after], len(before)


# --- Senses ---------------------------------------------------------------------------------------


def read_senses(file: Path) -> Iterator[Sentence]:
    """Lines "WORD, SENSE, SENTENCE IN WORDS" with tabs; the word stands in brackets."""
    for line in read_lines(file):
        word, sense, text = line.split("\t")
        words = text.split()
        position = words.index(f"[{word}]")
        words[position] = word
        yield Sentence(tuple(words), (Instance(word, position, position + 1, (sense,)),))


def senses(embedder: Embedder, data: Path) -> Figures:
    uses = list(instance_vectors(read_senses(data / "senses.tsv"), embedder, "zeros"))
    names, vectors = [use for use, _ in uses], unit_vectors(np.stack([found for _, found in uses]))
    right: dict[str, Counter[str]] = defaultdict(Counter)
    cosines = use_cosines(np.einsum("nld,mld->lnm", vectors, vectors))
    for layer, matrix in names_of(cosines).items():
        for number, use in enumerate(names):
            others = [
                other
                for other, same in enumerate(names)
                if same.lemma == use.lemma and other != number
            ]
            nearest = others[int(np.argmax(matrix[number, others]))]
            right[layer][use.lemma] += names[nearest].senses == use.senses
    return {
        "of": dict(Counter(use.lemma for use in names)),
        "right": {layer: dict(words) for layer, words in right.items()},
    }


def read_modern_chinese(embedder: Embedder, file: Path) -> Iterator[Sentence]:
    """Lines "SENTENCE WORD SENSES"; each part, also the sentence, may have spaces. $$ separates
    the senses, any of which is right.
    """
    for line in read_lines(file):
        parts = line.split(" ")
        for number in range(1, len(parts) - 1):
            text, word = "".join(parts[:number]), parts[number]
            if word and word in text:
                start = text.index(word)
                words, position = split_around(embedder, text, start, start + len(word))
                senses = tuple(" ".join(parts[number + 1 :]).split("$$"))
                yield Sentence(tuple(words), (Instance(word, position, position + 1, senses),))
                break


def wsd(embedder: Embedder, data: Path) -> Figures:
    training, test = (
        list(read_modern_chinese(embedder, data / "wsd_modern_chinese" / f"{part}.data.txt"))
        for part in ("train", "val")
    )
    senses_of: dict[str, set[str]] = defaultdict(set)
    for _, (use,) in training:
        senses_of[use.lemma].update(use.senses)
    asked = [sentence for sentence in test if len(senses_of[sentence.instances[0].lemma]) > 1]
    found = {}
    for neighbors in (1, 5):
        tally = Tally()
        known = lemma_senses(training, embedder, neighbors, "zeros")
        tally.answer(asked, known, embedder, "zeros", pool="val")
        found[str(neighbors)] = tally.f1()["val"]
    return {"f1": found, "instances": len(asked)}


def wic(embedder: Embedder, data: Path) -> Figures:
    pairs, answers = (
        json.loads((data / "wic_mcl_zh" / f"dev.zh-zh.{kind}").read_text(encoding="utf-8"))
        for kind in ("data", "gold")
    )
    is_same = np.array([answer["tag"] == "T" for answer in answers])
    vectors = []
    for side in ("1", "2"):
        sentences = []
        for pair in pairs:
            start, stop = int(pair[f"start{side}"]), int(pair[f"end{side}"])
            words, place = split_around(embedder, pair[f"sentence{side}"], start, stop)
            sentences.append(Sentence(tuple(words), (Instance("", place, place + 1, ()),)))
        found = instance_vectors(sentences, embedder, "zeros")
        vectors.append(unit_vectors(np.stack([layers for _, layers in found])))
    cosines = use_cosines(np.einsum("nld,nld->ln", *vectors))
    halves = np.arange(len(pairs)) % 2 == 0
    right = {}
    for layer, values in names_of(cosines).items():
        correct = 0
        for half in (halves, ~halves):
            thresholds = values[half]
            scores = [np.mean((thresholds > t) == is_same[half]) for t in thresholds]
            threshold = thresholds[int(np.argmax(scores))]
            correct += int(((values[~half] > threshold) == is_same[~half]).sum())
        right[layer] = 100 * correct / len(pairs)
    return {"accuracy": right, "always": 100 * max(is_same.mean(), 1 - is_same.mean())}


# --- Words and texts ------------------------------------------------------------------------------


def probe(embedder: Embedder, data: Path) -> Figures:
    folder = data / "ud_gsdsimp"
    sentences = (folder / "zh_gsdsimp-ud-dev.conllu").read_text(encoding="utf-8").split("\n\n")
    cut = len(sentences) * 9 // 10
    with tempfile.TemporaryDirectory() as directory:
        train, dev = Path(directory, "train.conllu"), Path(directory, "dev.conllu")
        train.write_text("\n\n".join(sentences[:cut]) + "\n", encoding="utf-8")
        dev.write_text("\n\n".join(sentences[cut:]) + "\n", encoding="utf-8")
        return asdict(probe_files(train, dev, folder / "zh_gsdsimp-ud-test.conllu", embedder))


def classify(embedder: Embedder, texts: Sequence[str], labels: Sequence[str]) -> Figures:
    """Accuracies on the last tenth of texts, with settings that are best on the tenth before."""
    ends = np.array([0, 8, 9, 10]) * len(texts) // 10
    spans = {part: slice(*ends[at : at + 2]) for at, part in enumerate(PARTS)}
    classes = {part: np.array(labels[span]) for part, span in spans.items()}
    words = TfidfVectorizer(analyzer="char", ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    words.fit(texts[spans["train"]])
    tf_idf = {part: words.transform(texts[span]) for part, span in spans.items()}
    encoded = {part: embedder.encode(texts[span]) for part, span in spans.items()}
    mean, deviation = encoded["train"].mean(axis=0), encoded["train"].std(axis=0)
    scaled = {part: (vectors - mean) / deviation for part, vectors in encoded.items()}
    return {"TF-IDF": accuracies(tf_idf, classes), "encode": accuracies(scaled, classes)}


def titles(embedder: Embedder, data: Path) -> Figures:
    folder = data / "cls_thucnews_titles"
    rows = [
        line.rsplit("\t", 1)
        for part in ("dev", "test")
        for line in read_lines(folder / f"{part}.txt")
    ]
    return classify(embedder, *map(list, zip(*rows, strict=True)))


def reviews(embedder: Embedder, data: Path) -> Figures:
    file = data / "cls_chnsenticorp_hotel" / "ChnSentiCorp_htl_all.csv"
    with file.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))  # ordered by label
    order = np.random.default_rng(0).permutation(len(rows))
    texts, labels = ([rows[number][name] for number in order] for name in ("review", "label"))
    return classify(embedder, texts, labels)


def similarity(embedder: Embedder, data: Path) -> Figures:
    lines = [
        [line.split("\t") for line in read_lines(data / "sts_b_zh" / f"sts-b-{part}.txt")]
        for part in ("train", "test")
    ]
    training, test = lines
    gold = np.array([float(score) for _, _, score in test])
    characters = TfidfVectorizer(analyzer="char", ngram_range=(1, 2), sublinear_tf=True)
    characters.fit([text for line in training for text in line[:2]])
    sides = [[line[side] for line in test] for side in (0, 1)]
    left, right = map(characters.transform, sides)  # rows of length one
    tf_idf = np.asarray(left.multiply(right).sum(axis=1)).ravel()
    encoded = [embedder.encode(texts, normalize_embeddings=True) for texts in sides]
    cosines = {"TF-IDF": tf_idf, "encode": np.einsum("nd,nd->n", *encoded)}
    return {
        name: {
            "pearson": 100 * float(pearsonr(values, gold)[0]),
            "spearman": 100 * float(spearmanr(values, gold)[0]),
        }
        for name, values in cosines.items()
    }


PARTS_OF_TABLE: dict[str, Callable[[Embedder, Path], Figures]] = {
    part.__name__: part for part in (senses, wsd, probe, titles, reviews, similarity, wic)
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--eval", type=Path, required=True, help="directory of the data sets")
    parser.add_argument("--model", default="zh-small", help="directory or name")
    parser.add_argument("--label", help="the model's name in the results")
    parser.add_argument("--only", nargs="+", choices=PARTS_OF_TABLE, default=list(PARTS_OF_TABLE))
    parser.add_argument("--output", type=Path, default=RESULTS / "chinese.json")
    arguments = parser.parse_args()
    embedder = Embedder(arguments.model)
    label = arguments.label or Path(arguments.model).name
    for name in arguments.only:
        started = time.perf_counter()
        found = PARTS_OF_TABLE[name](embedder, arguments.eval)
        seconds = round(time.perf_counter() - started, 1)
        model = {"model": arguments.model, "fingerprint": embedder.fingerprint()}
        write_result(arguments.output, {**model, "seconds": seconds, **found}, label, name)
        print(f"{name}: {seconds} s\n{json.dumps(found, indent=1, ensure_ascii=False)}", flush=True)


if __name__ == "__main__":
    main()
