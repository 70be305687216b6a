"""The map of a word as files: JSON for programs, a page for a browser, a picture for a document."""

from __future__ import annotations

import html
import json
import warnings
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmokit.analysis.word_map import MapConfig, WordMap, word_map
from elmokit.embed.embedder import Embedder
from elmokit.fs.atomic import atomic_directory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JSON_NAME, PAGE_NAME, PICTURE_NAME = "senses.json", "senses.html", "senses.png"
# In the order of clusters; told apart by those who see colours differently, too.
COLORS = ("#0067a5", "#c24d00", "#00795a", "#a8447d", "#8a6a00", "#5b4bb5", "#b0202e", "#4d5a66")
# JSON's escapes of all that could end a script element or a line of JavaScript.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def as_json(found: WordMap) -> dict[str, Any]:
    """The map as JSON holds it; coordinates have four digits after the point."""
    uses = [
        {"words": list(use.sentence), "position": use.position, "cluster": cluster}
        for use, cluster in zip(found.uses, found.labels.tolist(), strict=True)
    ]
    return {
        "word": found.word,
        "summary": found.summary,
        "layers": found.layers,
        "silhouette": found.silhouette,
        "found": found.found,
        "fingerprint": found.fingerprint,
        "clusters": [asdict(each) for each in found.clusters],
        "uses": uses,
        "planes": found.planes.astype(float).round(4).tolist(),
    }


def page(found: WordMap) -> str:
    """One HTML document that needs nothing else, no network either. Text of the corpus cannot act as markup in it."""
    template = resources.files("elmokit.analysis").joinpath("word_map.html").read_text(encoding="utf-8")
    head, _, rest = template.partition("{data}")
    data = json.dumps(as_json(found), ensure_ascii=False, separators=(",", ":")).translate(ESCAPES)
    return head.replace("{title}", html.escape(f"{found.word}: its uses")) + data + rest


def picture(found: WordMap) -> Figure:
    """A figure with a panel for each layer. ModuleNotFoundError without the extra "plots"."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "a picture needs matplotlib: pip install matplotlib (elmokit's extra plots)"
        ) from error
    layers = len(found.planes)
    figure = Figure(figsize=(3.6 * layers, 4.3), dpi=160, layout="constrained")
    panels = figure.subplots(1, layers, squeeze=False)[0]
    for layer, (axes, plane) in enumerate(zip(panels, found.planes, strict=True)):
        for number in range(len(found.clusters)):
            points = plane[found.labels == number]
            axes.scatter(*points.T, s=16, color=COLORS[number % len(COLORS)], alpha=0.8, linewidth=0)
        axes.set_title(f"layer {layer}", loc="left", fontsize=10)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("#c8c8c8")
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.08)
    figure.suptitle(found.word, x=0.01, ha="left", fontsize=13, weight="bold", parse_math=False)
    labels = [f"{each.size} uses: {', '.join(each.substitutes[:5])}".removesuffix(": ") for each in found.clusters]
    legend = figure.legend(
        panels[-1].collections, labels, loc="outside lower left", ncols=2, frameon=False, fontsize=8, markerscale=1.5
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar sign is one
    return figure


def _check_free(directory: Path, overwrite: bool) -> None:
    """FileExistsError where there is something else than a map, or a map that is not to be replaced."""
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not overwrite:
        raise FileExistsError(f"{directory} exists: remove it, choose another name, or ask to overwrite it")
    if not (directory / JSON_NAME).is_file():
        raise FileExistsError(f"{directory} holds no {JSON_NAME}, so it is not overwritten: choose another name")


def write_word_map(found: WordMap, directory: str | Path, overwrite: bool = False) -> None:
    """Write senses.json, senses.html and senses.png into a directory, all or none.

    Without matplotlib there is no picture, and a warning says so. FileExistsError for a directory that is not empty,
    unless it holds a map and `overwrite` says to replace it.
    """
    _check_free(Path(directory), overwrite)
    with atomic_directory(directory, overwrite) as partial:
        (partial / JSON_NAME).write_text(json.dumps(as_json(found), ensure_ascii=False) + "\n", encoding="utf-8")
        (partial / PAGE_NAME).write_text(page(found), encoding="utf-8")
        try:
            picture(found).savefig(partial / PICTURE_NAME)
        except ModuleNotFoundError as error:
            warnings.warn(f"no {PICTURE_NAME}: {error}", stacklevel=2)


def map_senses(
    word: str,
    corpus: str | Path,
    output: str | Path | None = None,
    model: Embedder | str | Path | None = None,
    layers: str | int = "top",
    device: str | None = None,
    config: MapConfig | None = None,
    overwrite: bool = False,
) -> WordMap:
    """`word_map`, and its files in the directory `output` where there is one (`write_word_map`)."""
    if output is not None:
        _check_free(Path(output), overwrite)  # before the work, not after it
    found = word_map(word, corpus, model, layers, device, config)
    if output is not None:
        write_word_map(found, output, overwrite)
    return found
