"""Text to ids, without torch: characters, the word vocabulary, tokenizers."""
