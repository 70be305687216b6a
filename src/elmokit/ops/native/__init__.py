"""Ops in C (csrc/), for a CPU: for any processor, and on prepacked weights for processors with AVX-512."""
