"""Measuring and exploring the vectors: similarity, neighbors, probes, clusters of a word's uses."""
