"""Tables of results/integrations.json: ELMo in scikit-learn, sentence-transformers and spaCy. Needs only the standard
library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import mean, stdev
from typing import Any

NOT_MEASURED = "Not measured yet."
Figures = Mapping[str, Any]


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *(list(map(str, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _listed(parameters: Figures) -> str:
    """Parameters as text, without nested ones."""
    names = {"layers": "layers", "transformer_weights": "scale of ELMo", "C": "C"}
    values = {names[key]: value["elmo"] if isinstance(value, dict) else value for key, value in parameters.items()}
    return ", ".join(f"{name} {value}" for name, value in sorted(values.items()))


def of_scikit_learn(report: Figures) -> str:
    """Accuracies on SST-2, and the parameters that the grid search chose."""
    if "scikit-learn" not in report:
        return NOT_MEASURED
    rows = [
        [name, f"{found['dev']:.1f}", f"{found['test']:.1f}", _listed(found["parameters"])]
        for name, found in report["scikit-learn"].items()
        if isinstance(found, dict) and "parameters" in found
    ]
    return _table(["Features", "Dev", "Test", "Chosen by dev"], rows)


def of_sentence_transformers(report: Figures) -> str:
    """The scores of each task that was measured, by kind of sentence vector."""
    if "sentence-transformers" not in report:
        return NOT_MEASURED
    scores = report["sentence-transformers"]["scores"]
    tasks = list(dict.fromkeys(task for row in scores.values() for task in row if task != "seconds"))
    rows = [[name, *(f"{row[task]:.1f}" if task in row else "" for task in tasks)] for name, row in scores.items()]
    return _table(["Sentence vectors", *tasks], rows)


def of_spacy(report: Figures) -> str:
    """F1 of entities on WNUT17 over the seeds."""
    if "spaCy" not in report:
        return NOT_MEASURED
    rows = []
    for name, by_seed in report["spaCy"].items():
        runs = list(by_seed.values())
        cells = [[run[part] for run in runs] for part in ("dev", "test")]
        scores = [f"{mean(of):.1f}" + (f" ± {stdev(of):.1f}" if len(of) > 1 else "") for of in cells]
        steps = " / ".join(sorted({f"{run['max_steps']:,}" for run in runs}))
        rows.append([name, len(runs), steps, *scores, f"{mean(run['seconds'] for run in runs):,.0f}"])
    return _table(["Word vectors", "Seeds", "Steps at most", "Dev F1", "Test F1", "Seconds of training"], rows)
