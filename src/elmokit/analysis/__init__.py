"""What the vectors say: the uses of a word, compared and searched."""
