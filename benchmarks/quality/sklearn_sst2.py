"""SST-2 in scikit-learn: a grid search over pipelines that begin with ElmoVectorizer, with TF-IDF, and with both.

    python benchmarks/quality/sklearn_sst2.py --eval DIRECTORY [--model NAME_OR_PATH]

DIRECTORY/sst holds stsa.binary.train, .dev and .test. The grid search chooses by dev the penalty of a logistic
regression, the layers of ELMo and, if they are combined with TF-IDF, the scale of ELMo's features. The classifier is
then trained on train and dev.
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

# The grid of each kind of features: parameters of the transformer, and scikit-learn's C.
GRIDS: dict[str, dict[str, list[Any]]] = {
    "TF-IDF": {"classifier__C": [1.0, 10.0]},
    "ELMo": {"vectors__elmovectorizer__layers": [0, 1, 2, "mix"], "classifier__C": [1e-3, 1e-2, 1e-1]},
    "both": {"vectors__transformer_weights": [{"elmo": 0.01}, {"elmo": 0.1}], "classifier__C": [1.0, 10.0]},
}


def vectorizer(name: str, model: str) -> Any:
    """A transformer (in scikit-learn's sense) of tokenized texts."""
    tf_idf = TfidfVectorizer(lowercase=False, token_pattern=r"\S+")
    elmo = make_pipeline(ElmoVectorizer(model, tokenize=False), StandardScaler())
    return {"TF-IDF": tf_idf, "ELMo": elmo, "both": FeatureUnion([("tf_idf", tf_idf), ("elmo", elmo)])}[name]


def search(name: str, model: str, texts: dict[str, list[str]], labels: dict[str, np.ndarray], cache: str) -> dict:
    """Accuracies in percent on dev, by which the grid search chooses, and on test."""
    steps = [("vectors", vectorizer(name, model)), ("classifier", LogisticRegression(max_iter=2000))]
    fold = PredefinedSplit(np.repeat([-1, 0], [len(texts["train"]), len(texts["dev"])]))
    started = time.perf_counter()
    found = GridSearchCV(Pipeline(steps, memory=cache), GRIDS[name], cv=fold).fit(
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
        for name in GRIDS:
            figures[name] = search(name, arguments.model, texts, labels, cache)
            print(name, figures[name], flush=True)
    sizes = {part: len(of_part) for part, of_part in texts.items()}
    write_result(arguments.output, {"model": arguments.model, "sentences": sizes, **figures}, "scikit-learn")


if __name__ == "__main__":
    main()
