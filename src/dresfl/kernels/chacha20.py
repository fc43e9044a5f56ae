"""The ChaCha20 block function (RFC 8439, section 2.3) in 32-bit integer operations on tensors.

One call computes any number of blocks, each with its own key, counter and nonce, on the tensors' own device. Integer
arithmetic wraps around, so the bytes are the same everywhere.
"""

import torch
from torch import Tensor

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"

# Blocks per pass: 1 MiB of state, which a core's second-level cache holds, at the least cost in calls.
_PASS = 16384


def key_words(key: bytes) -> Tensor:
    """A 32-byte key as the eight int32 words `chacha20_blocks` takes."""
    if len(key) != 32:
        raise ValueError(f"a ChaCha20 key has 32 bytes, not {len(key)}")
    return torch.frombuffer(bytearray(key), dtype=torch.int32)


def _rotate_(x: Tensor, left: int) -> Tensor:
    # >> on int32 fills up with copies of the sign: mask them out
    low = torch.bitwise_right_shift(x, 32 - left).bitwise_and_((1 << left) - 1)
    return x.bitwise_left_shift_(left).bitwise_or_(low)


def _quarter_rounds_(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    a.add_(b)
    _rotate_(d.bitwise_xor_(a), 16)
    c.add_(d)
    _rotate_(b.bitwise_xor_(c), 12)
    a.add_(b)
    _rotate_(d.bitwise_xor_(a), 8)
    c.add_(d)
    _rotate_(b.bitwise_xor_(c), 7)


def _permute(start: Tensor) -> Tensor:
    """The ten double rounds and the final addition, over state (16,blocks)."""
    a, b, c, d = start.clone().view(4, 4, -1).unbind(0)  # rows of the 4x4 state, each (4,blocks)
    for _ in range(10):
        _quarter_rounds_(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)  # columns become diagonals
        _quarter_rounds_(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat((a, b, c, d)).add_(start)


def chacha20_blocks(keys: Tensor, counters: Tensor, nonces: Tensor) -> Tensor:
    """The keystream blocks of keys (R,8), counters (R,), nonces (R,3), all int32 -> words (R,16) int32."""
    blocks = counters.shape[0]
    constants = torch.tensor(_CONSTANTS, dtype=torch.int32, device=keys.device).view(4, 1)
    out = torch.empty((blocks, 16), dtype=torch.int32, device=keys.device)
    for low in range(0, blocks, _PASS):
        part = slice(low, min(low + _PASS, blocks))
        size = part.stop - low
        start = torch.cat(
            (constants.expand(4, size), keys[part].T, counters[part].view(1, -1), nonces[part].T)
        )  # (4+8+1+3, size) = (16,size)
        out[part] = _permute(start).T
    return out
