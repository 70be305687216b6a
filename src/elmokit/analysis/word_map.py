"""Map of a word: its uses in a corpus, clustered, and projected to the plane for each layer.

Each cluster is described by its most typical uses (the nearest to its mean) and by the substitutes
that the language model predicts for them. Its page is word_map.html.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from elmokit.analysis import Report
from elmokit.analysis.clusters import align, cluster, principal_components
from elmokit.analysis.corpora import Source, open_corpus
from elmokit.analysis.uses import (
    USE,
    Use,
    UseVectors,
    Word,
    WordForms,
    sample_uses,
    unit_vectors,
)
from elmokit.embed import Embedder
from elmokit.fs import atomic_path, suffixes_of
from elmokit.lm import batch_substitutes

# Of a map; uses beyond are sampled.
LEAST_USES = 3
MAX_USES = 500
SEED = 0
CLUSTERED_DIMENSIONS = 8
TYPICAL_USES = 5
CONTEXT_WORDS = 3  # typical uses must differ in this many words on either side
EXCERPT_WORDS = 12  # on each side of a printed use
USES_SUBSTITUTED = 20  # per cluster, whose substitutes are combined
CANDIDATES = 100  # per use
SUBSTITUTES = 8  # per cluster
# The most frequent words, with which no cluster is described: function words in any language.
COMMON_WORDS = 150
# Words on each side of a use from which its substitutes are predicted. Words further away hardly
# change them, and the language model runs for each use: over the whole of a sentence of thousands
# of words, it would take many minutes.
SUBSTITUTE_CONTEXT = 50

# JSON escapes of the characters that could end a script element or a line of JavaScript.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class UseCluster:
    """A cluster of uses.

    Attributes:
        size: The number of its uses.
        typical: The indices of the most typical ones.
        substitutes: Words that the language model predicts in their place.
    """

    size: int
    typical: list[int]
    substitutes: list[str]


@dataclass(frozen=True, eq=False, repr=False)
class WordMap(Report):
    """N uses of a word, projected to the plane for each layer, and their clusters.

    Attributes:
        word: The word.
        uses: The sampled uses, in corpus order.
        planes: Coordinates (L+1, N, 2), each layer aligned to the one above it (of stored vectors
            of one representation (1, N, 2)); with `layers` "use" those of the uses last.
        labels: Index of the cluster of each use, (N,).
        clusters: The clusters, the largest first.
        silhouette: Mean silhouette of the clustering, in [-1, 1].
        layers: The representation that was clustered.
        uses_in_corpus: Number of uses in the corpus, of which `uses` is a sample.
    """

    word: str
    uses: list[Use]
    planes: np.ndarray
    labels: np.ndarray
    clusters: list[UseCluster]
    silhouette: float
    layers: str | int
    uses_in_corpus: int
    FORMATS: ClassVar = (*Report.FORMATS, ".html")

    @property
    def summary(self) -> str:
        """One line: the number of uses and clusters, the clustered layers, the silhouette."""
        is_part = self.uses_in_corpus > len(self.uses)
        sampled = f" distinct of {self.uses_in_corpus}" if is_part else ""
        layers = f"layer {self.layers}" if isinstance(self.layers, int) else f"{self.layers} layer"
        layers = "word and text" if self.layers == USE else layers
        count = f"{len(self.clusters)} clusters" if len(self.clusters) > 1 else "no clear senses"
        named = {frozenset(group.substitutes) for group in self.clusters}
        if len(named) == 1 < len(self.clusters) and named != {frozenset()}:
            count += " with the same substitutes, so hardly senses"
        return (
            f"{len(self.uses)}{sampled} uses, {count} ({layers}, silhouette {self.silhouette:.2f})"
        )

    def __str__(self) -> str:
        lines = [f"{self.word}: {self.summary}"]
        for number, group in enumerate(self.clusters, start=1):
            words = f": {', '.join(group.substitutes)}" if group.substitutes else ""
            count = "1 use" if group.size == 1 else f"{group.size} uses"
            lines += ["", f"cluster {number}, {count}{words}"]
            for use in (self.uses[index] for index in group.typical):
                before = "… " if use.position > EXCERPT_WORDS else ""
                after = " …" if use.position + EXCERPT_WORDS + 1 < len(use.sentence) else ""
                lines.append(f"    {before}{use.window(EXCERPT_WORDS)}{after}")
        return "\n".join(lines)

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each use, with its cluster and its place in the plane of each layer."""
        for number, use in enumerate(self.uses):
            row = use.to_row() | {"cluster": int(self.labels[number]) + 1}
            for layer, (x, y) in enumerate(self.planes[:, number].tolist()):
                row |= {f"x{layer}": x, f"y{layer}": y}
            yield row

    def plot(self, figure: Any) -> None:
        """The uses in the plane of each layer, coloured by cluster."""
        figure.set_size_inches(3.2 * len(self.planes), 4)
        panels = figure.subplots(1, len(self.planes), squeeze=False)[0]
        for layer, (axes, plane) in enumerate(zip(panels, self.planes, strict=True)):
            is_use = self.layers == USE and layer == len(panels) - 1
            axes.set(title="word and text" if is_use else f"layer {layer}", xticks=[], yticks=[])
            for label, group in enumerate(self.clusters):
                name = f"{group.size} uses: {', '.join(group.substitutes[:3])}"
                axes.scatter(*plane[self.labels == label].T, s=12, alpha=0.7, label=name)
        handles, names = panels[-1].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", fontsize="small")
        figure.suptitle(f"{self.word}: {self.summary}", fontsize="medium")

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """As other results, or as a page with the maps of all layers (.html)."""
        if suffixes_of(path) == (".html", ""):
            with atomic_path(path, overwrite) as partial:
                partial.write_text(page(self), encoding="utf-8")
        else:
            super().save(path, overwrite)

    def to_json(self) -> dict[str, Any]:
        """The map as JSON values: each use with its cluster, coordinates with four decimals."""
        values: dict[str, Any] = super().to_json() | {"summary": self.summary}
        for use, label in zip(values["uses"], values.pop("labels"), strict=True):
            use["cluster"] = label
        values["planes"] = self.planes.astype(float).round(4).tolist()
        return values


def _substitutes(embedder: Embedder, uses: list[Use]) -> list[str]:
    """The most likely replacements of the word in some uses; none without a language model."""
    model = embedder.model
    predicts_words = model.config.sequence_encoder.predicts_words
    if model.softmax is None or model.vocab is None or not predicts_words:
        return []
    near = [use.window(SUBSTITUTE_CONTEXT) for use in uses]
    sentences = []
    positions = []
    for use in near:  # a phrase is replaced as a whole
        before = use.sentence[: use.position]
        after = use.sentence[use.stop :]
        sentences.append([*before, " ".join(use.words), *after])
        positions.append([use.position])
    state = model.single_sentence_state
    replaced = batch_substitutes(sentences, positions, model, CANDIDATES, state=state)
    frequent = model.vocab.words[: min(COMMON_WORDS, len(model.vocab) // 100)]
    common = set(map(str.lower, frequent))
    weights: Counter[str] = Counter()
    for use, candidates in zip(near, replaced, strict=True):
        excluded = common | {" ".join(use.words).lower()}
        probabilities = np.exp([candidate.log_probability for candidate in candidates])
        for candidate, weight in zip(candidates, probabilities / probabilities.sum(), strict=True):
            lowered = candidate.word.lower()
            if any(map(str.isalpha, lowered)) and lowered not in excluded:
                weights[candidate.word] += weight
    return [word for word, _ in weights.most_common(SUBSTITUTES)]


def _describe(
    points: np.ndarray,
    members: np.ndarray,
    uses: list[Use],
    embedder: Embedder,
) -> UseCluster:
    """Describe the cluster of the uses with indices `members`; `points` (N, d) are of all uses."""
    clustered = points[members]
    distances = np.linalg.norm(clustered - clustered.mean(axis=0), axis=1)
    nearest: dict[tuple[str, ...], int] = {}  # the most typical use with each context
    for number in members[np.argsort(distances, kind="stable")].tolist():
        near = uses[number].window(CONTEXT_WORDS)
        before = near.sentence[: near.position]
        after = near.sentence[near.stop :]
        nearest.setdefault((*before, "", *after), number)
    typical = list(nearest.values())
    words = _substitutes(embedder, [uses[number] for number in typical[:USES_SUBSTITUTED]])
    return UseCluster(len(members), typical[:TYPICAL_USES], words)


def _regardless_of_case(uses: Sequence[Use], words: np.ndarray) -> np.ndarray:
    """The vectors of words (N, L+1, 2D), moved so that those of each spelling have the same mean.

    Otherwise capitals, as in titles, form clusters of their own, whatever the sense.
    """
    spellings = np.array([" ".join(use.words) for use in uses])
    lowered = np.array(list(map(str.lower, spellings)))
    moved = words.copy()
    for spelling in set(spellings):
        same = spellings == spelling
        of_word = lowered == spelling.lower()
        moved[same] += words[of_word].mean(axis=0) - words[same].mean(axis=0)
    return moved


def map_uses(
    word: str,
    uses: list[Use],
    vectors: UseVectors,
    embedder: Embedder,
    layers: str | int = USE,
    *,
    clusters: int | None = None,
    seed: int = SEED,
    uses_in_corpus: int | None = None,
) -> WordMap:
    """Cluster uses of a word by their vectors, and project them to the plane for each layer.

    Clustering is k-means on the first 8 principal components of the unit vectors, in which words
    in capitals and in small letters do not differ by their spelling. Substitutes are predicted
    from the 50 words on each side of a use.

    Args:
        word: The word.
        uses: At least three distinct uses of it.
        vectors: Their vectors.
        embedder: The model.
        layers: Representation to cluster, as `UseVectors.select` names them.
        clusters: Number of clusters; None: as `cluster` finds it.
        seed: Seed of the clustering.
        uses_in_corpus: Number of uses in the corpus, if `uses` is a sample of them.

    Returns:
        The map.
    """
    vectors = UseVectors(_regardless_of_case(uses, vectors.words), vectors.texts)
    chosen = unit_vectors(vectors.select(embedder.model, layers))
    points = principal_components(chosen, CLUSTERED_DIMENSIONS)
    labels, silhouette = cluster(points, clusters, seed)
    members = [np.flatnonzero(labels == number) for number in range(labels.max() + 1)]
    shown = list(np.moveaxis(vectors.words, 1, 0))
    if layers == USE:
        shown.append(chosen)
    planes = [principal_components(unit_vectors(each), 2) for each in shown]
    for number in reversed(range(len(planes) - 1)):  # to the layer above
        planes[number] = align(planes[number], planes[number + 1])
    return WordMap(
        word=word,
        uses=uses,
        planes=np.stack(planes),
        labels=labels,
        clusters=[_describe(points, numbers, uses, embedder) for numbers in members],
        silhouette=silhouette,
        layers=layers,
        uses_in_corpus=uses_in_corpus or len(uses),
    )


def senses(
    word: Word,
    corpus: Source,
    model: Embedder | str | Path | None = None,
    layers: str | int | None = None,
    tokenize: bool = True,
    *,
    column: str | None = None,
    max_uses: int = MAX_USES,
    clusters: int | None = None,
    seed: int = SEED,
) -> WordMap:
    """Collect the uses of a word in a corpus, and cluster them by their vectors; see `map_uses`.

    Args:
        word: A word or a phrase ("New York"), or several forms of it ("play,plays,played", or a
            list); case is ignored in sentences without an exact match.
        corpus: Text (plain, .gz or .zst) with one sentence per line, or a directory of such files,
            which is streamed; a table, or a list or column of sentences; or a directory that
            `embed_file` wrote with the same model, whose vectors are read.
        model: An `Embedder`, which has substitutes if it was loaded with `softmax=True`; or a model
            as it takes one.
        layers: Representation to cluster: "use", the word beside its text; or of the word alone
            "mix", "average", "sum", "top" or the number of a layer; None: "use", or the one that is
            stored.
        tokenize: Split raw lines with the model's tokenizer; else, and lines of `elmokit prepare`,
            at white space.
        column: The column of a table; None: "text".
        max_uses: Maximum number of uses; a random sample if the corpus has more.
        clusters: Number of clusters, fewer where fewer uses differ; None: from 2 to 5, each with
            5 % of the uses at least, by the largest silhouette; one where that is low.
        seed: Seed of the sampling and the clustering.

    Returns:
        The map. Its clusters are senses only as far as these differ in grammar or topic.

    Raises:
        ValueError: The corpus has fewer than three distinct uses of the word, `layers` is invalid,
            or the stored vectors are of another model or other layers.
        FileNotFoundError: There is no such corpus.
    """
    embedder = Embedder.of(model, softmax=True)
    searched = open_corpus(corpus, embedder, tokenize, column)
    layers = searched.choose_layers(layers)  # an invalid choice is reported before the search
    forms = WordForms.of(word, searched.split)
    in_corpus = (use for in_sentence in searched.uses(forms) for use in in_sentence)
    uses, count = sample_uses(in_corpus, max_uses, seed)
    check_enough(forms.name, uses)
    vectors = searched.vectors(uses)
    options: Any = {"clusters": clusters, "seed": seed, "uses_in_corpus": count}
    return map_uses(forms.name, uses, vectors, embedder, layers, **options)


def check_enough(word: str, uses: list[Use]) -> None:
    """ValueError if there are too few uses for a map."""
    if len(uses) < LEAST_USES:
        raise ValueError(
            f"a map needs {LEAST_USES} distinct uses of {word!r}, and there are {len(uses)}: add "
            "sentences"
        )


# --- The page -------------------------------------------------------------------------------------


def page_part(name: str) -> str:
    """A part of the page, such as word_map.css or word_map.js, which the server's page uses too."""
    return resources.files("elmokit.analysis").joinpath(name).read_text(encoding="utf-8").strip()


def page(word_map: WordMap) -> str:
    """A self-contained HTML document, which needs no network. Corpus text is escaped."""
    head, _, rest = page_part("word_map.html").partition("{data}")
    data = json.dumps(word_map.to_json(), ensure_ascii=False, separators=(",", ":"))
    head = head.replace("{style}", page_part("word_map.css"))
    head = head.replace("{title}", html.escape(f"{word_map.word}: its uses"))
    return head + data.translate(ESCAPES) + rest.replace("{script}", page_part("word_map.js"))
