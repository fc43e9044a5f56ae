"""Test vectors for other implementations."""

from .round_vectors import FORMAT, check_vectors, make_vectors, write_vectors
