"""Mean ELMo vectors as sentence vectors: the tasks of SentEval and MTEB for which data sets are available locally.

    python benchmarks/quality/sentence_transformers_tasks.py --eval DIRECTORY [--model NAME_OR_PATH]

DIRECTORY holds sick, mrpc, senteval (MR and SUBJ), sst and scws. SICK-R is MTEB's task on the local test part
(Spearman's correlation of cosines with the ratings). MRPC is the average precision of cosines, by the evaluator of
sentence-transformers. MR, SUBJ and SST-2 are accuracies of a logistic regression on the vectors. All scores are those
of the test part, in percent. "trained on SICK" is the same model after one epoch of sentence-transformers' trainer on
the training part of SICK, which trains the biLM and the mix. Needs mteb, datasets and accelerate.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mteb
import numpy as np
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import StandardScaler

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from result_files import RESULTS, write_result  # noqa: E402
from sentiment import PARTS, accuracies, read_sst2, tf_idf  # noqa: E402

from elmokit.analysis.scws import scws  # noqa: E402
from elmokit.checkpoints.loading import DEFAULT_MODEL, load  # noqa: E402
from elmokit.correlation import spearman  # noqa: E402
from elmokit.integrations.sentence_transformers import ElmoModule  # noqa: E402

LAYERS = (0, 1, 2, "mix")
MAX_RATING = 5
Scores = dict[str, float]
Pairs = dict[str, list[Any]]  # sentence1, sentence2, and score or label
Labelled = dict[str, tuple[list[str], np.ndarray]]  # by part (training, development, test): texts and labels


# --- Data ------------------------------------------------------------------------------------------------------------


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def read_sick(path: Path) -> Pairs:
    """Pairs of sentences, and their relatedness from 1 to 5."""
    rows = list(_rows(path))
    scores = [float(row["relatedness_score"]) for row in rows]
    return {"sentence1": [r["sentence_A"] for r in rows], "sentence2": [r["sentence_B"] for r in rows], "score": scores}


def read_mrpc(path: Path) -> Pairs:
    """Pairs of sentences, and 1 if one paraphrases the other."""
    rows = list(_rows(path))
    labels = [int(row["Quality"]) for row in rows]
    return {"sentence1": [r["#1 String"] for r in rows], "sentence2": [r["#2 String"] for r in rows], "label": labels}


def read_senteval(path: Path) -> Labelled:
    """Lines "LABEL TEXT" in Latin-1, split at random into 80, 10 and 10 %, as in task_sets.py."""
    # Not splitlines, which would also split lines at the character 0x85 within the texts.
    lines = [line.partition(" ") for line in path.read_text(encoding="latin-1").split("\n") if line.strip()]
    lines = [lines[number] for number in np.random.default_rng(0).permutation(len(lines))]
    ends = len(lines) * 8 // 10, len(lines) * 9 // 10
    parts = lines[: ends[0]], lines[ends[0] : ends[1]], lines[ends[1] :]
    return {
        part: ([text for *_, text in of_part], np.array([int(label) for label, *_ in of_part]))
        for part, of_part in zip(PARTS, parts, strict=True)
    }


def read_probes(data: Path) -> dict[str, Labelled]:
    sentences, labels = read_sst2(data / "sst")
    sst2 = {part: (list(map(" ".join, sentences[part])), labels[part]) for part in PARTS}
    of_senteval = {"MR": "rt-polarity.all", "SUBJ": "subj.all"}
    return {name: read_senteval(data / "senteval" / file) for name, file in of_senteval.items()} | {"SST-2": sst2}


# --- Scores ----------------------------------------------------------------------------------------------------------


def sick_r(model: SentenceTransformer, pairs: Pairs) -> float:
    """MTEB's task SICK-R on local pairs."""
    task = mteb.get_task("SICK-R")
    task.dataset, task.data_loaded = {"default": {"test": Dataset.from_dict(pairs)}}, True
    found = mteb.evaluate(model, task, cache=None, encode_kwargs={"batch_size": 128}, show_progress_bar=False)
    return 100 * found.task_results[0].get_score()


def mrpc(model: SentenceTransformer, pairs: Pairs) -> float:
    evaluator = BinaryClassificationEvaluator(
        pairs["sentence1"], pairs["sentence2"], pairs["label"], batch_size=128, similarity_fn_names=["cosine"]
    )
    return 100 * evaluator(model)["cosine_ap"]


def probe(model: SentenceTransformer, examples: Labelled) -> float:
    vectors = {part: model.encode(texts, batch_size=128) for part, (texts, _) in examples.items()}
    scaler = StandardScaler().fit(vectors["train"])
    scaled = {part: scaler.transform(of_part) for part, of_part in vectors.items()}
    return accuracies(scaled, {part: labels for part, (_, labels) in examples.items()})["test"]


def by_tf_idf(sick: dict[str, Pairs], paraphrases: Pairs, probes: dict[str, Labelled]) -> Scores:
    """The same scores for words weighted by TF-IDF, with document frequencies from the sentences that are compared."""

    def cosines(pairs: Pairs) -> np.ndarray:
        vectorizer = TfidfVectorizer().fit(pairs["sentence1"] + pairs["sentence2"])
        first, second = (vectorizer.transform(pairs[side]) for side in ("sentence1", "sentence2"))
        return np.asarray(first.multiply(second).sum(axis=1)).ravel()

    scores = {"SICK-R": 100 * spearman(cosines(sick["test"]), np.array(sick["test"]["score"]))}
    scores["MRPC"] = 100 * average_precision_score(paraphrases["label"], cosines(paraphrases))
    for name, examples in probes.items():
        sentences = {part: [text.split() for text in texts] for part, (texts, _) in examples.items()}
        scores[name] = tf_idf(sentences, {part: labels for part, (_, labels) in examples.items()})["test"]
    return scores


# --- Models ----------------------------------------------------------------------------------------------------------


def sentence_transformer(model: str, layers: str | int = "mix", freeze: bool = True) -> SentenceTransformer:
    elmo = ElmoModule(load(model, softmax=False), layers, freeze=freeze)
    return SentenceTransformer(modules=[elmo, Pooling(elmo.get_embedding_dimension())], device="cpu")


def train_on(model: SentenceTransformer, pairs: Pairs) -> None:
    """Train for one epoch; the target of the cosine is the rating, divided by the highest rating."""
    shares = {**pairs, "score": [score / MAX_RATING for score in pairs["score"]]}
    with tempfile.TemporaryDirectory() as output:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=output, num_train_epochs=1, per_device_train_batch_size=32, learning_rate=1e-3, warmup_steps=14,
            report_to="none", save_strategy="no", use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True, seed=1,
        )  # fmt: skip
        dataset, loss = Dataset.from_dict(shares), CosineSimilarityLoss(model)
        SentenceTransformerTrainer(model, args=arguments, train_dataset=dataset, loss=loss).train()


def rounded(scores: Scores, started: float) -> Scores:
    return {name: round(float(score), 2) for name, score in scores.items()} | {
        "seconds": round(time.perf_counter() - started, 1)
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--output", type=Path, default=RESULTS / "integrations.json")
    arguments = parser.parse_args(argv)
    data, name = arguments.eval, arguments.model
    sick = {part: read_sick(data / "sick" / f"SICK_{part}.txt") for part in ("train", "test_annotated")}
    sick["test"] = sick.pop("test_annotated")
    paraphrases, probes = read_mrpc(data / "mrpc" / "msr-para-test.tsv"), read_probes(data)
    in_context = scws(data / "scws" / "ratings.txt", name).correlations

    rows: dict[str, Scores] = {}
    started = time.perf_counter()
    rows["TF-IDF"] = rounded(by_tf_idf(sick, paraphrases, probes), started)
    for layers in LAYERS:
        started, model = time.perf_counter(), sentence_transformer(name, layers)
        scores = {"SICK-R": sick_r(model, sick["test"]), "MRPC": mrpc(model, paraphrases)}
        if layers == "mix":
            scores |= {each: probe(model, examples) for each, examples in probes.items()}
        label = layers if isinstance(layers, str) else f"layer {layers}"
        scores["SCWS"] = in_context[label]
        rows[label] = rounded(scores, started)
        print(label, rows[label], flush=True)
    started, model = time.perf_counter(), sentence_transformer(name, freeze=False)
    train_on(model, sick["train"])
    rows["mix, trained on SICK"] = rounded({"SICK-R": sick_r(model, sick["test"])}, started)
    for label, scores in rows.items():
        print(label, scores)
    write_result(arguments.output, {"model": name, "mteb": mteb.__version__, "scores": rows}, "sentence-transformers")


if __name__ == "__main__":
    main()
