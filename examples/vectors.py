"""Read the vectors that `elmokit embed` wrote: python examples/vectors.py DIRECTORY"""

import sys

from elmokit.storage.store import EmbeddingStore

for words, vectors in EmbeddingStore(sys.argv[1]):
    print(f"{' '.join(words):55} {vectors.dtype} {vectors.shape}")
