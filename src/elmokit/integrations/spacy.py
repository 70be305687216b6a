"""ELMo in spaCy (extra spacy): an architecture for its components, and one component.

`elmokit.Elmo.v1` is a layer from which spaCy's own tagger, parser and entity recognizer learn;
`nlp.add_pipe("elmo")` puts its vectors into `doc.tensor`, from where `token.vector` and
`similarity` take them. Installed entry points let spaCy's configurations find both without an
import.
"""

# spaCy reads annotations at run time, so they must not be strings here.
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain as chain_iterables
from typing import Any, cast

import numpy as np
from spacy.language import Language
from spacy.pipeline.tok2vec import Tok2Vec
from spacy.tokens import Doc, Span, Token
from spacy.util import registry
from spacy.vocab import Vocab
from thinc.api import Dropout, Model, chain
from thinc.shims import Shim
from thinc.types import Floats2d

from elmokit.checkpoints import MixWeights
from elmokit.embed import Embedder, layer_weights
from elmokit.integrations.lazy_embedder import LazyEmbedder

# --- The layer ------------------------------------------------------------------------------------


class FrozenModel(Shim):
    """A frozen biLM in a layer of thinc, saved as its fingerprint.

    Attributes:
        lazy_embedder: The model's embedder; copies of a pipeline share it.
    """

    def __init__(self, lazy_embedder: LazyEmbedder) -> None:
        super().__init__(None)
        self.lazy_embedder = lazy_embedder

    def finish_update(self, optimizer: Any) -> None:
        """Do nothing: the biLM is frozen."""

    def to_device(self, device_type: str, device_id: int) -> None:
        """Do nothing: the biLM stays on the embedder's device, and only its vectors are moved."""

    def to_bytes(self) -> bytes:
        return self.lazy_embedder.content.encode()

    def from_bytes(self, data: bytes) -> "FrozenModel":
        if data != self.to_bytes():
            raise ValueError(
                f"{self.lazy_embedder.arguments[0]!r} is not the model that this pipeline was "
                f"saved with: restore that "
                "model, or give its path, as in "
                'spacy.load(path, config={"components.elmo.model.model": "path/of/the/model"})'
            )
        return self


def embed_docs(embedder: Embedder, docs: Sequence[Doc], layers: str | int = "mix") -> list[Any]:
    """Embed documents, sentence by sentence where sentences are known.

    Args:
        embedder: The model.
        docs: Documents, whose tokens are taken as they are.
        layers: See `Embedder.embed`.

    Returns:
        For each document an array (T, 2D) float32, or (L+1, T, 2D) for all layers, zeros for white
        space. Words that are longer than the model can read are truncated without a warning.
    """
    parts = [list(doc.sents) if doc.has_annotation("SENT_START") else [doc] for doc in docs]
    words = [
        [token.text for token in part if not token.is_space] for of_doc in parts for part in of_doc
    ]
    state = embedder.model.single_sentence_state
    arrays = chain_iterables.from_iterable(embedder.embed_stream(words, layers, state))
    shape = (embedder.num_layers,) if layers == "all" else ()
    vectors = []
    for doc, of_doc in zip(docs, parts, strict=True):
        of_all = np.zeros((*shape, len(doc), embedder.dim), np.float32)
        is_word = [not token.is_space for token in doc]
        of_parts = (next(arrays) for _ in of_doc)
        of_all[..., is_word, :] = np.concatenate([of_all[..., :0, :], *of_parts], axis=-2)
        vectors.append(of_all)
    return vectors


def _forward(
    layers: str | int, model: Model, docs: list[Doc], is_train: bool
) -> tuple[list[Any], Callable]:
    """Vectors of documents; for "mix" with the gradients of its weights and gamma."""
    embedder = cast(FrozenModel, model.shims[0]).lazy_embedder.get()
    xp: Any = model.ops.xp
    if layers != "mix":
        return [
            xp.asarray(of_doc) for of_doc in embed_docs(embedder, docs, layers)
        ], lambda gradients: []
    hidden = [xp.asarray(of_doc) for of_doc in embed_docs(embedder, docs, "all")]
    gamma: Any = model.get_param("gamma")
    shares: Any = model.ops.softmax(cast(Any, model.get_param("weights")))

    def backprop(gradients: list[Any]) -> list[Doc]:
        # gradient with respect to each layer's share, up to the factor gamma
        by_layer = sum(xp.einsum("ltd,td->l", h, d) for h, d in zip(hidden, gradients, strict=True))
        of_gamma = (shares * by_layer).sum(keepdims=True)
        model.inc_grad("gamma", of_gamma)
        model.inc_grad("weights", gamma * shares * (by_layer - of_gamma))
        return []

    return [xp.tensordot(gamma * shares, h, axes=1) for h in hidden], backprop


@registry.architectures("elmokit.Elmo.v1")
def elmo_tok2vec(
    model: str = "en-small",
    layers: str | int = "mix",
    device: str | None = None,
    dtype: str | None = None,
) -> Model[list[Doc], list[Floats2d]]:
    """A frozen biLM as a layer: documents -> vectors of tokens, zeros for white space.

    Args:
        model: A name or path that `elmokit.load` takes. A saved pipeline stores only this name, not
            the model.
        layers: "mix", whose weights are trained, or "average", "sum", "top" or the index of a
            layer, which are fixed.
        device: "cpu", "cuda" or "cuda:N"; None: a GPU if there is one, else the CPU.
        dtype: The number type to compute in, see `Embedder`.

    Returns:
        A layer of width 2D, with spaCy's dropout on the vectors in training.

    Raises:
        ValueError: The model has no such layers.
        FileNotFoundError, CheckpointError: As `elmokit.load`.
    """
    lazy_embedder = LazyEmbedder(model, device, dtype)
    embedder = lazy_embedder.get()
    layer_weights(embedder.model, layers)  # an invalid choice is reported before the first text
    params: dict[str, Any] = {}
    if layers == "mix":
        mix = embedder.model.mix or MixWeights((0.0,) * embedder.num_layers)
        params = {
            "weights": np.array(mix.weights, np.float32),
            "gamma": np.array([mix.gamma], np.float32),
        }
    shims: list[Any] = [FrozenModel(lazy_embedder)]
    layer = Model(
        "elmo", partial(_forward, layers), params=params, dims={"nO": embedder.dim}, shims=shims
    )
    with_dropout = chain(layer, Dropout())
    with_dropout.set_dim("nO", embedder.dim)
    return with_dropout


# --- The component --------------------------------------------------------------------------------


def _vector(part: Doc | Span | Token) -> Any:
    """A token's vector, or the mean of the words' vectors; zeros if there are no words."""
    if isinstance(part, Token):
        return part.doc.tensor[part.i]
    tensor = part.doc.tensor if isinstance(part, Span) else part.tensor
    words = [token.i for token in part if not token.is_space]
    return tensor[words].mean(axis=0) if words else tensor[:0].sum(axis=0)


def _vector_norm(part: Any) -> float:
    """The length of the current vector: spaCy itself would keep the one that it computed first."""
    return float(part.vector @ part.vector) ** 0.5


def _similarity(part: Doc | Span | Token, other: Any) -> float:
    """The cosine similarity of both vectors; 0 if one of them is zero."""
    norms = _vector_norm(part) * _vector_norm(other)
    return float(part.vector @ other.vector / norms) if norms else 0.0


HOOKS: dict[str, Callable] = {
    "vector": _vector,
    "has_vector": lambda part: True,
    "vector_norm": _vector_norm,
    "similarity": _similarity,
}


class ElmoPipe(Tok2Vec):
    """A `Tok2Vec` with the layer `elmokit.Elmo.v1`: sets `doc.tensor`, trains with listeners.

    With `hooks`, `vector` and `similarity` of tokens, spans and documents use ELMo even in
    pipelines with static vectors, spans and documents leave out white space, and two tokens of the
    same word are compared by their vectors, where spaCy itself would return 1. Hooks are not saved
    with documents, of which spaCy warns.
    """

    def __init__(self, vocab: Vocab, model: Model, name: str = "elmo", hooks: bool = True) -> None:
        super().__init__(vocab, model, name)
        self.hooks = hooks

    def set_annotations(self, docs: Sequence[Doc], tokvecses: Sequence[Any]) -> None:
        """Set `doc.tensor`, (T, 2D), and the hooks."""
        super().set_annotations(docs, tokvecses)
        for doc in docs if self.hooks else ():
            doc.user_token_hooks |= HOOKS
            doc.user_span_hooks |= HOOKS
            doc.user_hooks |= HOOKS


@Language.factory(
    "elmo",
    assigns=["doc.tensor"],
    default_config={
        "model": {"@architectures": "elmokit.Elmo.v1", "model": "en-small", "layers": "mix"},
        "hooks": True,
    },
)
def make_elmo(
    nlp: Language, name: str, model: Model[list[Doc], list[Floats2d]], hooks: bool
) -> ElmoPipe:
    """The component `elmo` of a pipeline; spaCy calls it with the settings of a configuration."""
    return ElmoPipe(nlp.vocab, model, name, hooks)
