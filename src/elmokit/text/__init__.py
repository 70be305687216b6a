"""Text to ids, without torch: character ids, word vocabulary, tokenizers."""
