"""Exact integer kernels on tensors: modular products and the ChaCha20 block function. No classes, no state."""

from . import cpu
from .chacha20 import key_words
from .cpu import chacha20_blocks, matmul, reduce_
from .gpu import (
    elementwise_int8,
    embed_int8,
    fused_kernels,
    largest_magnitude,
    matmul_int8,
    squares_by_sixteen,
    stepped_integers,
)
from .residues import SLACK, canonical_, exact_inner_length, per_channel
