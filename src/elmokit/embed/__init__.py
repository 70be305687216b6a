"""Text to vectors: in memory and from file to file."""
