"""Exact integer kernels on tensors: modular products and the ChaCha20 block function. No classes, no state."""

from . import cpu
from .chacha20 import key_words
from .cpu import canonical_, chacha20_blocks, matmul, reduce_
from .gpu import (
    decode_lift,
    embed_int8,
    fused_kernels,
    matmul_int8,
    rounding_noise,
    stream_words,
    uniform_residues,
)
from .residues import SLACK, exact_inner_length
