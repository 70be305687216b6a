"""Text to vectors: in memory and from file to file.

Embedder: a model that turns sentences into vectors
Embeddings: its result, a list of arrays with the words
embed_file, encode_file: a text file to a file of vectors, one for each word or each line
fit_text_map: a map to the vectors of texts that another model computes
Pooling: how the vectors of a text's words become one
layer_weights: the weight of each layer in "mix", "average", "top", ...
"""

from elmokit.embed.embedder import Embedder, Embeddings
from elmokit.embed.files import embed_file, encode_file
from elmokit.embed.outputs import Pooling, layer_weights
from elmokit.embed.text_maps import fit_text_map

__all__ = [
    "Embedder",
    "Embeddings",
    "Pooling",
    "embed_file",
    "encode_file",
    "fit_text_map",
    "layer_weights",
]
