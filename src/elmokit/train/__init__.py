"""Pretraining biLMs."""
