"""The language model as such: perplexity of a corpus, scores of words, substitutes, next words."""
