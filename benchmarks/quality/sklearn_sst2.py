"""SST-2 in scikit-learn: a grid search over pipelines that begin with ElmoVectorizer, with TF-IDF, and with both.

    python benchmarks/quality/sklearn_sst2.py --eval DIRECTORY [--model NAME_OR_PATH]

DIRECTORY/sst holds stsa.binary.train, .dev and .test. What the grid chooses, the penalty of a logistic regression and
for ELMo layers and pooling, is best on dev; the classifier is then trained on train and dev.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from result_files import RESULTS, write_result  # noqa: E402
from sentiment import read_sst2  # noqa: E402

from elmokit.checkpoints.loading import DEFAULT_MODEL  # noqa: E402
from elmokit.integrations.sklearn import ElmoVectorizer  # noqa: E402

STRENGTHS = {"TF-IDF": (1.0, 10.0), "ELMo": (1e-3, 1e-2, 1e-1), "both": (1e-3, 1e-2, 1e-1)}  # scikit-learn's C
OF_ELMO = {"layers": [0, 1, 2, "mix"], "pooling": ["mean", "max"]}


def vectorizers(model: str) -> dict[str, tuple[Any, dict[str, list[Any]]]]:
    """Each kind of features: a transformer of tokenized texts, and the grid of its parameters."""
    tf_idf = TfidfVectorizer(lowercase=False, token_pattern=r"\S+")
    elmo = make_pipeline(ElmoVectorizer(model, tokenize=False), StandardScaler())
    grid = {f"elmovectorizer__{name}": values for name, values in OF_ELMO.items()}
    both = FeatureUnion([("tf_idf", tf_idf), ("elmo", elmo)])
    return {
        "TF-IDF": (tf_idf, {}),
        "ELMo": (elmo, grid),
        "both": (both, {f"elmo__{name}": values for name, values in grid.items()}),
    }


def search(name: str, model: str, texts: dict[str, list[str]], labels: dict[str, np.ndarray], cache: str) -> dict:
    """Accuracies in percent on dev, by which the grid chooses, and on test."""
    vectorizer, grid = vectorizers(model)[name]
    pipeline = Pipeline([("vectors", vectorizer), ("classifier", LogisticRegression(max_iter=2000))], memory=cache)
    parameters = {f"vectors__{key}": values for key, values in grid.items()} | {"classifier__C": STRENGTHS[name]}
    fold = PredefinedSplit(np.repeat([-1, 0], [len(texts["train"]), len(texts["dev"])]))
    started = time.perf_counter()
    found = GridSearchCV(pipeline, parameters, cv=fold).fit(
        texts["train"] + texts["dev"], np.concatenate([labels["train"], labels["dev"]])
    )
    return {
        "dev": round(100 * float(found.best_score_), 2),
        "test": round(100 * found.score(texts["test"], labels["test"]), 2),
        "parameters": {key.rpartition("__")[2]: value for key, value in found.best_params_.items()},
        "candidates": len(found.cv_results_["params"]),
        "seconds": round(time.perf_counter() - started, 1),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--output", type=Path, default=RESULTS / "integrations.json")
    arguments = parser.parse_args(argv)
    sentences, labels = read_sst2(arguments.eval / "sst")
    texts = {part: list(map(" ".join, of_part)) for part, of_part in sentences.items()}
    figures = {}
    with tempfile.TemporaryDirectory() as cache:
        for name in STRENGTHS:
            figures[name] = search(name, arguments.model, texts, labels, cache)
            print(name, figures[name], flush=True)
    sizes = {part: len(of_part) for part, of_part in texts.items()}
    write_result(arguments.output, {"model": arguments.model, "sentences": sizes, **figures}, "scikit-learn")


if __name__ == "__main__":
    main()
