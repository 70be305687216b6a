"""Training, keeping and using the network of any task."""
