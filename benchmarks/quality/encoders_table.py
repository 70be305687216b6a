"""The table of results/encoders.json, for tools/make_results.py. Needs only the standard library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from intrinsic_table import layer_scores

Figures = dict[str, Any]
NOT_MEASURED = "–"


def _right(found: Figures) -> str:
    return f"{found['right']['contextual']} of {found['of']}"


def _tags(found: Figures) -> str:
    scores = {method: score["test"] for method, score in found["scores"].items()}
    return " / ".join(f"{score:.1f}" for score in layer_scores(scores))


def _perplexity(found: Figures, measure: str, field: str) -> str:
    """The value, if it is of the measure that the column shows (perplexity or pseudo-perplexity); else a dash."""
    return f"{found['all'][field]:.1f}" if found["measure"] == measure else NOT_MEASURED


# For each column: its name, the stage that measures it, and a function from that stage's figures to the cell.
COLUMNS: tuple[tuple[str, str, Callable[[Figures], str]], ...] = (
    ("Minutes", "pretrain", lambda found: f"{found['processor_minutes']:.0f}"),
    ("Words read", "pretrain", lambda found: f"{found['words'] / 1e6:.1f} M"),
    ("Perplexity", "heldout", lambda found: _perplexity(found, "perplexity", "mean")),
    ("Pseudo-perplexity", "heldout", lambda found: _perplexity(found, "pseudo-perplexity", "pseudo_perplexity")),
    ("Tags, by layer", "probe", _tags),
    ("Sense pairs", "senses", lambda found: _right(found["pairs"])),
    ("Nearest uses", "senses", lambda found: _right(found["uses"])),
    ("CoarseWSD-20, best layer", "senses", lambda found: f"{max(layer_scores(found['coarsewsd']['f1']['mean'])):.1f}"),
    ("Entities", "ner", lambda found: f"{100 * found['test']:.1f}"),
    ("Processor", "pretrain", lambda found: found["machine"]["processor"]),
)
HEAD = ("Encoder", "Parameters", *(name for name, _, _ in COLUMNS))


def row(encoder: str, stages: Mapping[str, Figures]) -> list[str]:
    """The cells of an encoder, from the figures of its stages; a dash if a stage was not run."""
    parameters = next(iter(stages.values()))["parameters"]["sequence_encoder"]
    cells = (show(stages[stage]) if stage in stages else NOT_MEASURED for _, stage, show in COLUMNS)
    return [f"`{encoder}`", f"{parameters / 1e6:.1f} M", *cells]
