"""Secret and public randomness: one primitive, ChaCha20, addressed by (domain, index, attempt).

Every value is a pure function of a 32-byte key and its address, so a row's masks can be expanded alone, in
any order, and are the same on every device.

- `SecretSeed` comes from the operating system's generator and never leaves its owner in clear.
- `PublicStream` is the explicit generator of everything that is not secret: batch rows, rounding noise,
  initial weights, simulated dropouts.

Nonce layout (three 32-bit words): domain·256 + attempt, index, 0. Counter: the block within the stream.
"""

import hashlib
import hmac
import secrets
from enum import IntEnum
from typing import NoReturn, final

import torch
from torch import Tensor

from dresfl.errors import FieldError
from dresfl.kernels import chacha20_blocks, cpu, fused_kernels, key_words

WORDS_PER_BLOCK = 16


class Domain(IntEnum):
    """What a stream is for. Two purposes never share keystream."""

    MASKS = 1
    BATCH = 2
    ROUNDING = 3
    WEIGHTS = 4
    DROPOUT_RATES = 5
    DROPOUTS = 6
    EXAMPLES = 7
    ARRIVALS = 8
    BASELINE = 9
    DEALER_CHECK = 12


@final
class SecretSeed:
    """A client's 32 secret bytes. Never printed, pickled or compared in the clear."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise FieldError(f"a secret seed has 32 bytes, not {len(key)}")
        self._key = bytes(key)

    @classmethod
    def fresh(cls) -> "SecretSeed":
        """Thirty-two new bytes from the operating system's generator."""
        return cls(secrets.token_bytes(32))

    def mask_key(self, sharing_id: bytes) -> Tensor:
        """The key words of one sharing's masks. Another sharing, other masks, even if a seed is kept."""
        return key_words(hmac.digest(self._key, b"dresfl masks" + sharing_id, "sha256"))

    def derive(self, purpose: bytes) -> "SecretSeed":
        """A seed of its own for one purpose; neither it nor several of them tell anything of this one."""
        return SecretSeed(hmac.digest(self._key, b"dresfl derive" + purpose, "sha256"))

    def tag(self) -> bytes:
        """16 public bytes that tell two seeds apart and say nothing else of them."""
        return hmac.digest(self._key, b"dresfl tag", "sha256")[:16]

    def __repr__(self) -> str:
        return "SecretSeed(<redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SecretSeed is not pickled")


@final
class PublicStream:
    """Deterministic public random words from an integer seed; the same for everybody who knows it.

    >>> PublicStream(7).words(Domain.BATCH, 0, 3).equal(PublicStream(7).words(Domain.BATCH, 0, 3))
    True
    """

    def __init__(self, seed: int, device: str = "cpu") -> None:
        self.seed = int(seed)
        self.device = device
        self._key = key_words(hashlib.sha256(b"dresfl public stream %d" % self.seed).digest()).to(device)

    def words(self, domain: Domain, index: int, count: int) -> Tensor:
        """`count` uniform 32-bit words of stream (domain, index), as int64 in [0, 2^32)."""
        return self.words_of(domain, torch.tensor([index], device=self.device), count)[0]

    def words_of(self, domain: Domain, indices: Tensor, count: int) -> Tensor:
        """`count` words of each of the streams (domain, index), indices (R,) -> (R,count)."""
        return _unsigned(_words(self._key.expand(indices.shape[0], 8), indices, count, domain, 0))

    def uniform(self, domain: Domain, index: int, count: int) -> Tensor:
        """`count` float64 values (w + ½)/2^32, w uniform: never 0 or 1, mean exactly ½."""
        return self.uniform_at(domain, torch.tensor([index], device=self.device), count)

    def uniform_at(self, domain: Domain, index: Tensor, count: int) -> Tensor:
        """`uniform` of the stream that a tensor (1,) on this stream's device names."""
        if fused_kernels(self.device):
            from dresfl.kernels.chacha_triton import rounding_noise

            return rounding_noise(self._key, domain, index, count)
        return self.uniform_of(domain, index, count)[0]

    def uniform_from(self, domain: Domain, index: int, first: int, count: int) -> Tensor:
        """Values first … first + count − 1 of `uniform`; `first` is a multiple of WORDS_PER_BLOCK."""
        at = torch.tensor([index], device=self.device)
        words = _words(self._key.expand(1, 8), at, count, domain, 0, first // WORDS_PER_BLOCK)
        return (_unsigned(words)[0].to(torch.float64) + 0.5) * 2.0**-32

    def uniform_of(self, domain: Domain, indices: Tensor, count: int) -> Tensor:
        """`uniform` of each of the streams (domain, index), indices (R,) -> (R,count)."""
        return (self.words_of(domain, indices, count).to(torch.float64) + 0.5) * 2.0**-32


def _nonces(domain: Domain, indices: Tensor, attempt: int) -> Tensor:
    """(R,3) int32 nonces for indices (R,) in [0, 2^32)."""
    nonces = torch.zeros((indices.shape[0], 3), dtype=torch.int32, device=indices.device)
    nonces[:, 0] = int(domain) * 256 + attempt
    nonces[:, 1] = torch.where(indices >= 2**31, indices - 2**32, indices).to(torch.int32)
    return nonces


def _words(keys: Tensor, rows: Tensor, count: int, domain: Domain, attempt: int, first_block: int = 0) -> Tensor:
    """Words (R,count) int32 of R streams, from a block on: keys (R,8), rows (R,)."""
    blocks = -(-count // WORDS_PER_BLOCK)
    num_rows = rows.shape[0]
    out = chacha20_blocks(
        keys.repeat_interleave(blocks, 0),
        torch.arange(first_block, first_block + blocks, dtype=torch.int32, device=keys.device).repeat(num_rows),
        _nonces(domain, rows, attempt).repeat_interleave(blocks, 0),
    )
    return out.view(num_rows, blocks * WORDS_PER_BLOCK)[:, :count]


def _unsigned(words: Tensor) -> Tensor:
    """int32 words as int64 in [0, 2^32)."""
    return words.to(torch.int64) & 0xFFFFFFFF


def uniform_elements(p: Tensor, inverses: Tensor, keys: Tensor, rows: Tensor, count: int) -> Tensor:
    """Values exactly uniform modulo each p, `count` for each row: symmetric residues (M,R,count) float64.

    Position j of a row takes the first of the words w_0, w_1, … (attempt 0, 1, …, at the same place of
    independent streams) that lies below the largest multiple of p in [0, 2^32); w mod p is then uniform.
    keys (R,8): the secret of each row's owner. rows (R,): the row's number in its owner's data.
    """
    limits = (2.0**32 / p).floor() * p  # exact: 2^32/p is at least 1/p away from every integer
    words = _words(keys, rows, len(p) * count, Domain.MASKS, 0).reshape(rows.shape[0], len(p), count)
    residues, rejected = cpu.residues_of_words(words, p, inverses, limits)  # rejected (J,3): row, channel, place
    attempt = 0
    while rejected.shape[0]:
        attempt += 1
        if attempt == 256:
            raise FieldError("256 rejected words in a row", "the keystream is broken; do not use its output")
        row, channel, place = rejected.unbind(1)
        word = channel * count + place
        blocks = chacha20_blocks(
            keys[row], (word // WORDS_PER_BLOCK).to(torch.int32), _nonces(Domain.MASKS, rows[row], attempt)
        )
        again = _unsigned(blocks.gather(1, (word % WORDS_PER_BLOCK).view(-1, 1)).squeeze(1))
        modulus = p[channel].to(torch.int64)
        residues[channel, row, place] = ((again + modulus // 2) % modulus - modulus // 2).to(torch.float64)
        rejected = rejected[again >= limits[channel]]
    return residues
