"""Measuring and exploring the vectors: similarity, neighbors, probes, word senses."""
