"""The networks: torch only, no files, no logging."""
