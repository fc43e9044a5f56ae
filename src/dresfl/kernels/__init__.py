"""Exact integer kernels on tensors: modular products and the ChaCha20 block function. No classes, no state."""

from .chacha20 import chacha20_blocks, key_words
from .residues import SLACK, canonical_, exact_inner_length, matmul, reduce_

__all__ = ["SLACK", "canonical_", "chacha20_blocks", "exact_inner_length", "key_words", "matmul", "reduce_"]
