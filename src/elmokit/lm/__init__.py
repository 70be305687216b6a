"""The language model as such: perplexity of a corpus."""
