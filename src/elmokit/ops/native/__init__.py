"""Ops in C (csrc/), for a CPU: one source, compiled for several instruction sets."""
