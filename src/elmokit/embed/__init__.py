"""Text to vectors: in memory and from file to file."""

from elmokit.embed.embedder import Embedder, Embeddings, TruncationWarning, resolve_embedder
from elmokit.embed.files import embed_fasta, embed_file, encode_file
from elmokit.embed.outputs import OutputSpec, Pooling, layer_names, layer_weights, plain_layers

__all__ = [
    "Embedder",
    "Embeddings",
    "OutputSpec",
    "Pooling",
    "TruncationWarning",
    "embed_fasta",
    "embed_file",
    "encode_file",
    "layer_names",
    "layer_weights",
    "plain_layers",
    "resolve_embedder",
]
