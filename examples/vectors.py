"""Read the vectors that `elmokit embed` wrote: python examples/vectors.py DIRECTORY"""

import sys

import elmokit

store = elmokit.EmbeddingStore(sys.argv[1])
print(store)
for words, vectors in store[:5]:
    print(f"{' '.join(words):60} {vectors.dtype} {vectors.shape}")
