"""Files of a word map: JSON, a self-contained HTML page, and a PNG figure."""

from __future__ import annotations

import html
import json
import warnings
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmokit.analysis.config import MapConfig
from elmokit.analysis.uses import Use, window
from elmokit.analysis.word_map import WordMap, count_of_uses, word_map
from elmokit.embed.embedder import Embedder
from elmokit.embed.outputs import layer_names
from elmokit.fs.atomic import atomic_directory, check_output
from elmokit.plots import COLORS, SHAPES, new_figure, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JSON_NAME, PAGE_NAME, PICTURE_NAME = "senses.json", "senses.html", "senses.png"
# A sentence may be a whole document, which each use in it would repeat.
WORDS_AROUND = 200
# JSON escapes of the characters that could end a script element or a line of JavaScript.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def use_to_json(use: Use) -> dict[str, Any]:
    """A use as JSON values: up to `WORDS_AROUND` words on either side of it, and its position among them."""
    words, position = window(use, WORDS_AROUND)
    return {"words": list(words), "position": position}


def to_json(word_map: WordMap) -> dict[str, Any]:
    """The map as JSON values; coordinates are rounded to four decimals, sentences cut to `WORDS_AROUND`."""
    uses = [
        {**use_to_json(use), "cluster": cluster}
        for use, cluster in zip(word_map.uses, word_map.labels.tolist(), strict=True)
    ]
    return {
        "word": word_map.word,
        "summary": word_map.summary,
        "layers": word_map.layers,
        "silhouette": word_map.silhouette,
        "uses_in_corpus": word_map.uses_in_corpus,
        "fingerprint": word_map.fingerprint,
        "clusters": [asdict(cluster) for cluster in word_map.clusters],
        "uses": uses,
        "planes": word_map.planes.astype(float).round(4).tolist(),
    }


def page_part(name: str) -> str:
    """A part of the page, such as word_map.css or word_map.js, which the server's page uses too."""
    return resources.files("elmokit.analysis").joinpath(name).read_text(encoding="utf-8").strip()


def page(word_map: WordMap) -> str:
    """A self-contained HTML document, which needs no network. Corpus text is escaped."""
    head, _, rest = page_part("word_map.html").partition("{data}")
    data = json.dumps(to_json(word_map), ensure_ascii=False, separators=(",", ":")).translate(ESCAPES)
    head = head.replace("{style}", page_part("word_map.css"))
    head = head.replace("{title}", html.escape(f"{word_map.word}: its uses"))
    return head + data + rest.replace("{script}", page_part("word_map.js"))


def picture(word_map: WordMap) -> Figure:
    """A figure with one panel per layer. ValueError without matplotlib (the extra "plots")."""
    layers = len(word_map.planes)
    figure = new_figure(3.6 * layers, 4.3)
    panels = figure.subplots(1, layers, squeeze=False)[0]
    centres = [(plane.min(axis=0) + plane.max(axis=0)) / 2 for plane in word_map.planes]
    reach = max(abs(plane - centre).max() for plane, centre in zip(word_map.planes, centres, strict=True))
    # One scale for all layers: on its own scale, a layer whose uses do not differ would show their rounding errors.
    reach = 1.08 * reach or 1.0
    names = layer_names(len(word_map.planes))
    for layer, (axes, plane) in enumerate(zip(panels, word_map.planes, strict=True)):
        for number in range(len(word_map.clusters)):
            points = plane[word_map.labels == number]
            look = {"color": COLORS[number % len(COLORS)], "marker": SHAPES[number % len(SHAPES)]}
            axes.scatter(*points.T, s=16, alpha=0.8, linewidth=0, **look)
        axes.set_title(names[layer], loc="left", fontsize=10)
        (left, bottom), (right, top) = centres[layer] - reach, centres[layer] + reach
        axes.set(xticks=[], yticks=[], xlim=(left, right), ylim=(bottom, top))
        axes.spines[:].set_color("#c8c8c8")
        axes.set_aspect("equal")
    figure.suptitle(word_map.word, x=0.01, ha="left", fontsize=13, weight="bold", parse_math=False)
    labels = [
        f"{count_of_uses(cluster.size)}: {', '.join(cluster.substitutes[:5])}".removesuffix(": ")
        for cluster in word_map.clusters
    ]
    legend = figure.legend(
        panels[-1].collections, labels, loc="outside lower left", ncols=2, frameon=False, fontsize=8, markerscale=1.5
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a dollar sign in a word is no formula
    return figure


def _check_free(directory: Path, overwrite: bool) -> None:
    """Check that the directory can be written; only a map is overwritten."""
    check_output(directory, overwrite=overwrite, directory_of=JSON_NAME)


def write_word_map(word_map: WordMap, directory: str | Path, overwrite: bool = False) -> None:
    """Write senses.json, senses.html and senses.png to a directory, atomically.

    Without matplotlib the figure is left out, with a warning.

    Args:
        word_map: The map.
        directory: Created if it does not exist.
        overwrite: Replace an existing map.

    Raises:
        FileExistsError: The directory is not empty, and holds no map or `overwrite` is not set.
    """
    _check_free(Path(directory), overwrite)
    with atomic_directory(directory, overwrite) as partial:
        (partial / JSON_NAME).write_text(json.dumps(to_json(word_map), ensure_ascii=False) + "\n", encoding="utf-8")
        (partial / PAGE_NAME).write_text(page(word_map), encoding="utf-8")
        try:
            require_matplotlib()
        except ValueError as error:
            warnings.warn(f"no {PICTURE_NAME}: {error}", stacklevel=2)
        else:
            picture(word_map).savefig(partial / PICTURE_NAME)


def map_senses(
    word: str,
    corpus: str | Path,
    output: str | Path | None = None,
    model: Embedder | str | Path | None = None,
    layers: str | int = "top",
    device: str | None = None,
    config: MapConfig | None = None,
    overwrite: bool = False,
    tokenize: bool = True,
) -> WordMap:
    """Compute a `word_map`, and write its files to the directory `output` if given.

    Args:
        word: As in `word_map`.
        corpus: As in `word_map`.
        output: Directory for the files of `write_word_map`.
        model: As in `word_map`.
        layers: As in `word_map`.
        device: As in `word_map`.
        config: As in `word_map`.
        overwrite: Replace an existing map.
        tokenize: As in `word_map`.

    Returns:
        The map.

    Raises:
        ValueError: As in `word_map`.
        FileExistsError: As in `write_word_map`; raised before the map is computed.
    """
    if output is not None:
        _check_free(Path(output), overwrite)
    senses = word_map(word, corpus, model, layers, device, config, tokenize)
    if output is not None:
        write_word_map(senses, output, overwrite)
    return senses
