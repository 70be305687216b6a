"""Part-of-speech tagging of UD English EWT: does a biLM help, and is it its pretraining that helps?

The same tagger (learned word vectors, one BiLSTM, a softmax) is trained with one of three kinds of additional features:

    elmo        a learned mix of the layers of the pretrained biLM
    untrained   the same for a biLM of the same configuration with random weights
    baseline    a character CNN trained with the tagger

It is trained on the whole training set and on every tenth sentence of it, with three seeds each. The score is the
accuracy of universal tags (UPOS).

    python benchmarks/quality/pos_ewt.py --data DIRECTORY_OF_CONLLU_FILES [--model NAME_OR_PATH]

Every run is written to the results as soon as it is finished; repeating the command resumes with the missing runs.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch

from elmokit.checkpoints.loading import DEFAULT_MODEL, load
from elmokit.checkpoints.pretrained import Pretrained, fingerprint
from elmokit.nn.bilm import BiLM
from elmokit.tasks.config import FitConfig, WordsConfig
from elmokit.tasks.fit import fit
from elmokit.tasks.tagging import TaggingConfig, TaggingTask
from elmokit.tasks.word_encoder import CHARACTERS

sys.path.append(str(Path(__file__).parents[1]))
from result_files import RESULTS, write_result

FILES = {
    "train": "en_ewt-ud-train.reassembled.conllu",
    "dev": "en_ewt-ud-dev.conllu",
    "test": "en_ewt-ud-test.conllu",
}
FEATURES = ("baseline", "elmo", "untrained")
SIZES = {"whole": 1, "tenth": 10}  # every n-th sentence of the training set
SEEDS = (1, 2, 3)
UNTRAINED_SEED = 0

TAGGER = TaggingConfig(hidden_dim=128)
WORDS = {
    "elmo": WordsConfig(word_dim=100),
    "untrained": WordsConfig(word_dim=100),
    "baseline": WordsConfig(word_dim=100, elmo="none", character_dim=100),
}
FIT = FitConfig(max_epochs=20, patience=3, batch_size=32, learning_rate=4e-3, device="cpu")


class Results:
    """The results file: the setup of the measurement, and one record for each finished run."""

    def __init__(self, path: Path, setup: dict) -> None:
        self.path, self.setup, self.runs = path, setup, []
        self._read()

    def _read(self) -> None:
        """Read the results written so far; another process may be adding those of other features."""
        if not self.path.exists():
            return
        stored = json.loads(self.path.read_text(encoding="utf-8"))
        if stored["setup"] != self.setup:
            raise SystemExit(f"{self.path} holds results of another setup: move it away or give another --output")
        self.runs = stored["runs"]

    def has(self, features: str, size: str, seed: int) -> bool:
        return any((run["features"], run["size"], run["seed"]) == (features, size, seed) for run in self.runs)

    def add(self, run: dict) -> None:
        self._read()
        self.runs.append(run)
        write_result(self.path, {"setup": self.setup, "summary": list(self.summary()), "runs": self.runs})

    def summary(self) -> Iterator[dict]:
        """One row for each size and kind of features: the results of its runs, averaged over the seeds."""
        for size, features in product(SIZES, FEATURES):
            runs = [run for run in self.runs if (run["features"], run["size"]) == (features, size)]
            if runs:
                yield {
                    "size": size,
                    "features": features,
                    "seeds": len(runs),
                    **averages(runs),
                    "mix": average_mix(runs),
                }

    def table(self) -> str:
        rows = ["| training set | features | dev | test | layer weights | gamma |", "|---|---|---|---|---|---|"]
        for row in self.summary():
            scores = [f"{row[part]:.2f} ± {row[f'{part}_sd']:.2f}" for part in ("dev", "test")]
            mix = row["mix"] or {"weights": [], "gamma": None}
            weights = ", ".join(f"{weight:.2f}" for weight in mix["weights"])
            gamma = "" if mix["gamma"] is None else f"{mix['gamma']:.2f}"
            rows.append("| " + " | ".join([row["size"], row["features"], *scores, weights, gamma]) + " |")
        return "\n".join(rows)


def averages(runs: list[dict]) -> dict[str, float]:
    """Mean and standard deviation of the scores, in percent."""
    found = {}
    for part in ("dev", "test"):
        scores = [100 * run[part] for run in runs]
        found[part], found[f"{part}_sd"] = round(mean(scores), 2), round(stdev(scores), 2) if len(scores) > 1 else 0.0
    return found


def average_mix(runs: list[dict]) -> dict | None:
    """Layer weights (after the softmax) and gamma, each averaged over the runs."""
    mixes = [run["mixes"][0] for run in runs if run["mixes"]]
    if not mixes:
        return None
    weights = np.mean([mix["weights"] for mix in mixes], axis=0)
    gamma = mean(mix["gamma"] for mix in mixes)
    return {"weights": [round(weight, 4) for weight in weights.tolist()], "gamma": round(gamma, 4)}


def setup_of(data: Path, model: str | None, pretrained: Pretrained) -> dict:
    """Everything that the scores depend on; results of different setups never share a file."""
    hashes = {name: hashlib.sha256((data / name).read_bytes()).hexdigest() for name in FILES.values()}
    return json.loads(
        json.dumps(
            {
                "model": model or DEFAULT_MODEL,
                "fingerprint": fingerprint(pretrained),
                "bilm": pretrained.bilm.config.to_dict(),
                "data": hashes,
                "tagger": asdict(TAGGER),
                "words": {name: asdict(config) for name, config in WORDS.items()},
                "character_cnn": asdict(CHARACTERS),
                "fit": {key: value for key, value in asdict(FIT).items() if key != "seed"},
            }
        )
    )


def model_for(features: str, pretrained: Pretrained) -> Pretrained | None:
    """The biLM whose layers the tagger reads."""
    if features == "untrained":
        torch.manual_seed(UNTRAINED_SEED)
        return Pretrained(BiLM(pretrained.bilm.config), vocab=pretrained.vocab)
    return pretrained if features == "elmo" else None


def run(features: str, size: str, seed: int, data: Path, pretrained: Pretrained, cache: Path | None) -> dict:
    """Train and score one tagger."""
    task = TaggingTask(TAGGER)
    sets = {name: list(task.read(data / file)) for name, file in FILES.items()}
    train = sets["train"][:: SIZES[size]]
    options = {"words": WORDS[features], "config": replace(FIT, seed=seed), "cache": cache}
    _, report = fit(task, train, sets["dev"], sets["test"], model=model_for(features, pretrained), **options)
    assert report.test is not None
    return {**asdict(report), "dev": report.dev["accuracy"], "test": report.test["accuracy"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with " + ", ".join(FILES.values()))
    parser.add_argument("--model", help="name or directory of the biLM; the bundled one when not given")
    parser.add_argument("--output", type=Path, default=RESULTS / "pos_ewt.json")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--features", choices=FEATURES, nargs="+", default=FEATURES, help="kinds of features to run")
    parser.add_argument("--cache", type=Path, help="directory in which the biLMs' layers are cached")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)

    pretrained = load(arguments.model)
    results = Results(arguments.output, setup_of(arguments.data, arguments.model, pretrained))
    for features, size, seed in product(arguments.features, SIZES, SEEDS):
        if not results.has(features, size, seed):
            record = run(features, size, seed, arguments.data, pretrained, arguments.cache)
            results.add({"features": features, "size": size, "seed": seed, **record})
            scores = f"dev {record['dev']:.4f} test {record['test']:.4f}"
            print(f"{features} {size} {seed}: {scores} in {record['seconds']:.0f} s", flush=True)
    print(results.table())


if __name__ == "__main__":
    main()
