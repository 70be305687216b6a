"""The table of results/intrinsic.json, for intrinsic.py and tools/make_results.py. Needs only the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Figures = dict[str, Any]


def layer_scores(scores: Mapping[str, float]) -> list[float]:
    """The scores of layers 0, 1, ..., without those of other methods."""
    return [score for method, score in scores.items() if method.startswith("layer ")]


def nearest(k: str) -> str:
    """The name of a method in which the `k` nearest training uses vote for a sense."""
    return "nearest use" if k == "1" else f"{k} nearest uses"


def _listed(values: list[float]) -> str:
    return " / ".join(f"{value:.1f}" if isinstance(value, float) else str(value) for value in values)


def summary(parts: Mapping[str, Figures], start: str) -> dict[str, str]:
    """The scores of a model by measure, as text: those of layers 0, 1, ... and of some other methods.

    Args:
        parts: The figures of one model in the result file, by part.
        start: The state that sentences start from.
    """
    found = {name: figures["by state"][start] for name, figures in parts.items() if start in figures["by state"]}
    rows = {}
    if "coarsewsd" in found:
        f1 = found["coarsewsd"]["f1"]
        rows["CoarseWSD-20, mean of ten words"] = _listed(layer_scores(f1["mean"]))
        rows["CoarseWSD-20, apple"] = _listed(layer_scores(f1["apple"]))
    for k, report in found.get("coarsewsd_uses", {}).items():
        for name, row in (("mean", "mean of ten words"), ("apple", "apple")):
            rows[f"CoarseWSD-20, {row}; {nearest(k)}"] = _listed(layer_scores(report["f1"][name]))
    if "wsd" in found:
        rows["All-words WSD, ALL"] = _listed(layer_scores(found["wsd"]["f1"]["ALL"]))
    for k, report in found.get("wsd_uses", {}).items():
        rows[f"All-words WSD, ALL; {nearest(k)}"] = _listed(layer_scores(report["f1"]["ALL"]))
    for k, report in found.get("wsd_development", {}).items():
        rows[f"All-words WSD, SemEval-2007; {nearest(k)}"] = _listed(layer_scores(report["f1"]["semeval2007"]))
    if "probe" in found:
        scores = {method: score["test"] for method, score in found["probe"]["scores"].items()}
        rows["Part of speech, UD EWT"] = _listed(layer_scores(scores))
    if "pairs" in found:
        right = found["pairs"]["right"]
        rows["Sense pairs, of 20: contextual; layers"] = (
            f"{right['contextual']}; {_listed([right[k] for k in right if k.isdigit()])}"
        )
    if "uses" in found:
        right = found["uses"]["right"]
        rows["Nearest uses, of 60: contextual; layers"] = f"{right['contextual']}; {_listed(layer_scores(right))}"
    if "apples" in found:
        holds = {True: "holds", False: "fails"}
        rows["Apples eaten and sold: layers"] = " / ".join(
            holds[found["apples"][k]["holds"]] for k in found["apples"] if k != "contextual"
        )
    if "sst2" in found:
        tests = {method: score["test"] for method, score in found["sst2"].items()}
        rows["SST-2, mean vectors: mix; layers"] = f"{tests['mix']:.1f}; {_listed(layer_scores(tests))}"
    if "state" in found:
        forward, both = found["state"]["forward"], found["state"]["mean"]
        places = _listed([value for place, value in forward.items() if place != "all"])
        rows["Perplexity: forward, words 1, 2, 3, 4-5, 6-10, 11-; both directions, all words"] = (
            f"{places}; {both['all']:.1f}"
        )
    return rows


def table(report: Mapping[str, Mapping[str, Figures]]) -> str:
    """A Markdown table with a column for each model and state of a result file {label: {part: figures}}."""
    columns = {
        f"{label}, {start}": rows
        for label, parts in report.items()
        for start in ("zeros", "warm", "carry")
        if (rows := summary(parts, start))
    }
    measures = list(dict.fromkeys(measure for rows in columns.values() for measure in rows))
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [
        f"| {measure} | {' | '.join(rows.get(measure, '') for rows in columns.values())} |" for measure in measures
    ]
    return "\n".join(lines)
