"""The language model: perplexity of a corpus, scores of words, substitutes, next words.

- `evaluate`: the perplexity of text files.
- `score`: the scores of sentences, from which surprisal and perplexity are sums.
- `score_file`: the scores of the sentences of a file, written as JSON lines or a table.
- `Perplexity`: sums of losses, which `Perplexity.of` computes for tokenized sentences.
- `substitutes`: the words most likely in the place of others.
- `batch_substitutes`: the same for several tokenized sentences, run side by side.
- `next_words`: the words most likely after, or before, given ones.
"""

from elmokit.lm.candidates import batch_substitutes, next_words, substitutes
from elmokit.lm.evaluation import evaluate, score_file
from elmokit.lm.scoring import Perplexity, score

__all__ = [
    "Perplexity",
    "batch_substitutes",
    "evaluate",
    "next_words",
    "score",
    "score_file",
    "substitutes",
]
