"""Pretraining and fine-tuning of biLMs."""
