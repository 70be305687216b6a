"""Models on disk: the native format, and those of older systems."""
