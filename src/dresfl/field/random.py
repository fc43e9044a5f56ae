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
from dresfl.kernels import canonical_, chacha20_blocks, cpu, fused_kernels, key_words
from dresfl.kernels.cpu import expansion

WORDS_PER_BLOCK = 16

MOST_BITS = 32 * expansion.MOST_LIMBS

_WORDS_HELD = 2**20  # keystream that torch holds at a time where no kernel is fused


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
    BLINDING = 10
    BOUNDED = 11
    DEALER_CHECK = 12
    DITHER = 13
    RANGE_SQUARES = 20
    RANGE_SUMS = 21


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

    def blinding_mac(self) -> hmac.HMAC:
        """HMAC-SHA256 under this seed, after "dresfl blinding": a copy of it, with the label of an opening, is a key.

        Many keys are made in a round. Copies of a prepared HMAC do not let Python's lock go each time, which costs much
        where many clients share a process.
        """
        return hmac.new(self._key, b"dresfl blinding", "sha256")

    def hidden_mac(self) -> hmac.HMAC:
        """The same after "dresfl hidden mask": for the masks of the hidden mode."""
        return hmac.new(self._key, b"dresfl hidden mask", "sha256")

    def derive(self, purpose: bytes) -> "SecretSeed":
        """A seed of its own for one purpose; neither it nor several of them tell anything of this one."""
        return SecretSeed(hmac.digest(self._key, b"dresfl derive" + purpose, "sha256"))

    def ratchet(self, label: bytes) -> "SecretSeed":
        """The seed that takes this one's place from now on. Who has erased this one can no longer compute it."""
        return SecretSeed(hmac.digest(self._key, b"dresfl ratchet" + label, "sha256"))

    def reveal(self) -> bytes:
        """The 32 bytes themselves: to be sealed for somebody else who may know them, and for nothing else."""
        return self._key

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

    def word_sums(self, domain: Domain, index: Tensor, terms: int, bits: int, count: int, start: int = 0) -> Tensor:
        """start + Σ_s x_s[j] (count,) int64, of `terms` integers below 2^bits, bits ≤ 62, in integers that wrap around.

        Limb i of x_s[j], 32 bits, is word (i·terms + s)·count + j of the stream that a tensor (1,) names; of the last
        limb the low bits count.
        """
        if fused_kernels(self.device):
            from dresfl.kernels.cut_triton import word_sums

            return word_sums(self._key, domain, index, terms, bits, count, start)
        limbs = -(-bits // 32)
        words = self.words_of(domain, index, limbs * terms * count).view(limbs, terms, count)
        words[-1] &= 2 ** (bits - 32 * (limbs - 1)) - 1
        total = words.sum(1)  # (limbs,count)
        return (total[0] if limbs == 1 else (total[1] << 32) + total[0]) + start

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
    limits = _limits(p)
    words = _words(keys, rows, len(p) * count, Domain.MASKS, 0).reshape(rows.shape[0], len(p), count)
    residues, rejected = cpu.residues_of_words(words, p, inverses, limits)  # rejected (J,3): row, channel, place
    row, channel, place = rejected.unbind(1)
    word = channel * count + place
    residues[channel, row, place] = _drawn_again(p, limits, channel, keys[row], rows[row], word, Domain.MASKS)
    return residues


def _limits(p: Tensor) -> Tensor:
    """The largest multiple of each p in [0, 2^32)."""
    return (2.0**32 / p).floor() * p  # exact: 2^32/p is at least 1/p away from every integer


def _drawn_again(
    p: Tensor, limits: Tensor, channels: Tensor, keys: Tensor, indices: Tensor, places: Tensor, domain: Domain
) -> Tensor:
    """The symmetric residues (J,) of words that attempt 0 rejected: of each, the first later attempt below its limit.

    channels, indices, places (J,), keys (J,8): the modulus, the stream and the word's place in it.
    """
    found = torch.empty(places.shape[0], dtype=torch.float64, device=p.device)
    left = torch.arange(places.shape[0], device=p.device)
    attempt = 0
    while left.shape[0]:
        attempt += 1
        if attempt == 256:
            raise FieldError("256 rejected words in a row", "the keystream is broken; do not use its output")
        channel, place = channels[left], places[left]
        blocks = chacha20_blocks(
            keys[left], (place // WORDS_PER_BLOCK).to(torch.int32), _nonces(domain, indices[left], attempt)
        )
        again = _unsigned(blocks.gather(1, (place % WORDS_PER_BLOCK).view(-1, 1)).squeeze(1))
        modulus = p[channel].to(torch.int64)
        found[left] = ((again + modulus // 2) % modulus - modulus // 2).to(torch.float64)
        left = left[again >= limits[channel]]
    return found


def uniform_sum(p: Tensor, inverses: Tensor, keys: Tensor, coefficients: Tensor, count: int) -> Tensor:
    """Σ_s coefficients[m,s]·r_s[m,j] mod p_m: keys (S,8), coefficients (M,S) -> symmetric residues (M,count) float64.

    r_s[m,j] is exactly uniform modulo p_m: word j of stream (BLINDING, m) under key s, of the first attempt whose word
    lies below the largest multiple of p_m in [0, 2^32).
    """
    found = expansion.uniform_sum(keys, coefficients, count, int(Domain.BLINDING) * 256, p, inverses)
    if found is None:
        return _uniform_sum_in_steps(p, inverses, keys, coefficients, count)
    total, rejected = found  # rejected (J,3): seed, channel, place
    if not rejected.shape[0]:
        return total
    seed, channel, place = rejected.unbind(1)
    again = _drawn_again(p, _limits(p), channel, keys[seed], channel, place, Domain.BLINDING)
    modulus = p[channel]
    products = torch.remainder(again * coefficients[channel, seed].to(torch.float64), modulus)
    total.index_put_((channel, place), products, accumulate=True)
    total[channel, place] = _symmetric(total[channel, place], modulus)
    return total


def _symmetric(values: Tensor, moduli: Tensor) -> Tensor:
    """Integers |x| < 2^52 as symmetric residues modulo odd numbers, elementwise."""
    half = (moduli - 1) / 2
    return torch.remainder(values + half, moduli) - half


def _uniform_sum_in_steps(p: Tensor, inverses: Tensor, keys: Tensor, coefficients: Tensor, count: int) -> Tensor:
    """`uniform_sum` by torch, a few words at a time."""
    (seeds, channels), limits = (keys.shape[0], len(p)), _limits(p)
    total = torch.zeros((channels, count), dtype=torch.float64, device=p.device)
    if not seeds:
        return total
    factors = cpu.reduce_(coefficients.to(torch.float64, copy=True), p, inverses)
    channel = torch.arange(channels, device=p.device).repeat_interleave(seeds)
    bound = int(p.max()) // 2 + 3
    step = max(1, _WORDS_HELD // (channels * seeds * WORDS_PER_BLOCK)) * WORDS_PER_BLOCK
    for first in range(0, count, step):
        places = min(step, count - first)
        words = _words(keys.repeat(channels, 1), channel, places, Domain.BLINDING, 0, first // WORDS_PER_BLOCK)
        words = words.reshape(channels, seeds, places).swapaxes(0, 1).contiguous()  # (S,M,places)
        residues, rejected = cpu.residues_of_words(words, p, inverses, limits)  # (M,S,places)
        seed, m, place = rejected.unbind(1)
        residues[m, seed, place] = _drawn_again(p, limits, m, keys[seed], m, first + place, Domain.BLINDING)
        part = cpu.matmul(factors.unsqueeze(1), residues, p, inverses, bound, bound)  # (M,1,S) @ (M,S,places)
        total[:, first : first + places] = part[:, 0]
    return canonical_(total, p)


def check_bits(bits: int) -> None:
    """Refuse a size that `bounded_integers` does not have."""
    if not 1 <= bits <= MOST_BITS:
        raise FieldError(f"bounded integers have 1 to {MOST_BITS} bits, not {bits}")


def bounded_integers(p: Tensor, inverses: Tensor, keys: Tensor, bits: int, count: int) -> Tensor:
    """Residues of uniform integers in [0, 2^bits): keys (S,8) -> symmetric residues (M,S,count) float64.

    Integer j is Σ_i w_i·2^(32 i) with w_i word j of stream (BOUNDED, i); the top word keeps the bits that are left.
    """
    check_bits(bits)
    found = expansion.bounded(keys, bits, count, int(Domain.BOUNDED) * 256, p, inverses)
    return _bounded_in_steps(p, inverses, keys, bits, count) if found is None else found


def _bounded_in_steps(p: Tensor, inverses: Tensor, keys: Tensor, bits: int, count: int, first_block: int = 0) -> Tensor:
    """`bounded_integers` by torch, from a block of the streams on."""
    limbs = -(-bits // 32)
    radix = cpu.reduce_(torch.full_like(p, 2.0**32), p, inverses)
    total = torch.zeros((len(p), keys.shape[0], count), dtype=torch.float64, device=p.device)
    for limb in reversed(range(limbs)):
        index = torch.full((keys.shape[0],), limb, device=p.device)
        words = _unsigned(_words(keys, index, count, Domain.BOUNDED, 0, first_block))
        if limb == limbs - 1:
            words &= 2 ** (bits - 32 * limb) - 1
        total = cpu.reduce_(total * radix.view(-1, 1, 1) + words.to(torch.float64), p, inverses)
    return canonical_(total, p)


def bounded_sum(
    p: Tensor, inverses: Tensor, keys: Tensor, coefficients: Tensor, bits: int, first: int, count: int
) -> Tensor:
    """Σ_s coefficients[m,s]·x_s[first + j] mod p_m: keys (S,8), coefficients (M,S) -> symmetric residues (M,count).

    x_s are the integers of `bounded_integers` under key s. They are the same in every channel; none is kept.
    """
    check_bits(bits)
    found = expansion.bounded_sum(keys, coefficients, bits, first, count, int(Domain.BOUNDED) * 256, p, inverses)
    if found is None:
        return _bounded_sum_in_steps(p, inverses, keys, coefficients, bits, first, count)
    return found


def _bounded_sum_in_steps(
    p: Tensor, inverses: Tensor, keys: Tensor, coefficients: Tensor, bits: int, first: int, count: int
) -> Tensor:
    """`bounded_sum` by torch, a few integers at a time."""
    total = torch.zeros((len(p), count), dtype=torch.float64, device=p.device)
    if not keys.shape[0]:
        return total
    factors = cpu.reduce_(coefficients.to(torch.float64, copy=True), p, inverses)
    bound = int(p.max()) // 2 + 3
    step = max(1, _WORDS_HELD // (len(p) * keys.shape[0] * WORDS_PER_BLOCK)) * WORDS_PER_BLOCK
    for low in range(first - first % WORDS_PER_BLOCK, first + count, step):
        places, skipped = min(step, first + count - low), max(0, first - low)
        integers = _bounded_in_steps(p, inverses, keys, bits, places, low // WORDS_PER_BLOCK)  # (M,S,places)
        part = cpu.matmul(factors.unsqueeze(1), integers, p, inverses, bound, bound)  # (M,1,S) @ (M,S,places)
        total[:, low + skipped - first : low + places - first] = part[:, 0, skipped:]
    return canonical_(total, p)
