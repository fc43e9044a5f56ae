"""What one client expands from its seeds in the hidden mode: its shares of masks and of zeros.

`hidden_families` defines the words and says what they hide. A label names one use, and no two uses share one. The key
of a use is HMAC-SHA256 of the seed over "dresfl hidden mask" and the label; `field.random` defines the streams:

    bounded   Σ_A Σ_k h_{A,k}·f_{A,k}(α_j), h uniform integers below 2^bits; integer e of shard k is number
              k·count + e of the seed's bounded integers
    zeros     Σ_E x_E·w_E(α_j), x_E uniform modulo each prime
    common    uniform residues of the common key, SHA-256 of "dresfl common key" and the N seeds that all clients hold
    pad       uniform residues of any key: HMAC-SHA256 of the key over "dresfl pad" and the label
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NoReturn, final

import torch
from torch import Tensor

from dresfl.errors import UsageError
from dresfl.field import ResidueField, ResidueSystem, SecretSeed, choose_moduli
from dresfl.kernels import key_words

from .blinding import label_keys
from .codewords import Integers
from .hidden_families import HiddenFamilies

_Macs = Sequence[hmac.HMAC]


@final
@dataclass(frozen=True, eq=False, repr=False)
class HiddenMasks:
    """One client's part of all masks, made from the seeds that it holds. Secret: never printed or pickled.

    seeds: by their numbers; those that the client does not hold are not used.
    """

    field: ResidueSystem
    families: HiddenFamilies
    client: int
    seeds: Mapping[int, SecretSeed]

    def __post_init__(self) -> None:
        missing = [number for number in self._held if number not in self.seeds]
        if missing:
            raise UsageError(f"client {self.client} holds seed {missing[0]}, which did not come")

    def __repr__(self) -> str:
        return f"HiddenMasks(client {self.client}, <redacted>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("HiddenMasks are not pickled")

    def bounded(self, label: bytes, bits: int, count: int, *, total: bool) -> tuple[Tensor, Tensor]:
        """Shares (M,count) of h = Σ_A h_A, each h_A uniform in [0, 2^bits): one to go on with, one for the upload.

        total=False: h has a value for each shard, and both shares are the same tensor. total=True: h has one value. The
        share to go on with has it at every β; the values of the share for the upload sum to it over the β.
        """
        field, tables, keys = self.field, self._tables, _keys(self._mask_macs, label, self.field)
        if total:
            share = field.bounded_sum(keys, tables.replicated, bits, count)
            return share, share if tables.inverse_shards is None else field.mul(share, tables.inverse_shards)
        share = field.bounded_sum(keys, tables.masks[0], bits, count)
        for shard, coefficients in enumerate(tables.masks[1:], 1):
            share = field.add(share, field.bounded_sum(keys, coefficients, bits, count, shard * count))
        return share, share

    def zeros(self, label: bytes, count: int, *, total: bool) -> Tensor:
        """Shares (M,count) of zeros, of degree D: zero at every β, or total: zero in the sum over the β."""
        sums = total and self.families.num_shards > 1
        macs, words = (self._sum_macs, self._tables.sums) if sums else (self._zero_macs, self._tables.zeros)
        return self.field.uniform_sum(_keys(macs, label, self.field), words, count)

    def common(self, label: bytes, count: int) -> Tensor:
        """Uniform residues (M,count) that all clients know and nobody else."""
        return _expanded(self.field, _keys([self._common_mac], label, self.field), count)

    def pad(self, key: bytes, label: bytes, count: int) -> Tensor:
        """Uniform residues (M,count) of a key that others may come to know."""
        return pad(self.field, key, label, count)

    def ratcheted(self, label: bytes) -> "HiddenMasks":
        """The masks of every seed's successor. Drop these ones: whoever holds the new ones cannot compute them."""
        held = {number: self.seeds[number] for number in self._held}
        return HiddenMasks(self.field, self.families, self.client, ratcheted_seeds(held, label))

    @property
    def _held(self) -> tuple[int, ...]:
        return self.families.seed_sets.held_by(self.client)

    @cached_property
    def _tables(self) -> "_Tables":
        return _tables(self.field, self.families, self.client)

    @cached_property
    def _mask_macs(self) -> _Macs:
        return self._macs(self.families.mask_seeds)

    @cached_property
    def _zero_macs(self) -> _Macs:
        return self._macs(self.families.zero_seeds(total=False))

    @cached_property
    def _sum_macs(self) -> _Macs:
        return self._macs(self.families.zero_seeds(total=True))

    @cached_property
    def _common_mac(self) -> hmac.HMAC:
        return _common_key(self.seeds[number] for number in self.families.common_seeds).hidden_mac()

    def _macs(self, numbers: Iterable[int]) -> _Macs:
        """The prepared HMACs of those of the seeds that this client holds, ascending."""
        held = set(self._held)
        return [self.seeds[number].hidden_mac() for number in numbers if number in held]


def ratcheted_seeds(seeds: Mapping[int, SecretSeed], label: bytes) -> dict[int, SecretSeed]:
    """Every seed's successor, for the holders of seeds to keep in their place."""
    return {number: seed.ratchet(label) for number, seed in seeds.items()}


def pad(field: ResidueSystem, key: bytes, label: bytes, count: int) -> Tensor:
    """Uniform residues (M,count) of a key: what a client adds to an upload, and the coordinator takes away again."""
    words = key_words(hmac.digest(key, b"dresfl pad" + label, "sha256"))
    return _expanded(field, words.view(1, 8).to(field.device), count)


def mask_sum(seeds: Iterable[SecretSeed], label: bytes, bits: int, count: int, shards: int) -> list[list[int]]:
    """Σ_A h_{A,k} as integers (K,count), from the seeds of all mask sets: for simulations and tests."""
    macs = [seed.hidden_mac() for seed in seeds]
    moduli = choose_moduli(bits + len(macs).bit_length() + 1, more_than=1)
    field = ResidueField(moduli, len(moduli))
    ones = field.embed(torch.ones(len(macs), dtype=torch.int64))
    integers = field.lift_exact(field.bounded_sum(_keys(macs, label, field), ones, bits, shards * count))
    return [integers[shard * count : (shard + 1) * count] for shard in range(shards)]


def _common_key(seeds: Iterable[SecretSeed]) -> SecretSeed:
    return SecretSeed(hashlib.sha256(b"dresfl common key" + b"".join(seed.reveal() for seed in seeds)).digest())


def _keys(macs: _Macs, label: bytes, field: ResidueSystem) -> Tensor:
    """(S,8) int32: the keys of one use."""
    return label_keys(macs, label).to(field.device)


def _expanded(field: ResidueSystem, key: Tensor, count: int) -> Tensor:
    return field.uniform_sum(key, _one(field), count)


@lru_cache(maxsize=64)
def _one(field: ResidueSystem) -> Tensor:
    """(M,1): one."""
    return field.embed(torch.ones(1, dtype=torch.int64))


@final
class _Tables:
    """The words of the seeds that one client holds, at its point, as the field's residues."""

    def __init__(self, field: ResidueSystem, families: HiddenFamilies, client: int) -> None:
        moduli, shards = field.moduli, families.num_shards
        held = [s for s, members in enumerate(families.mask_sets) if client not in members]
        words = families.mask_words(moduli, [client])[:, held, 0]  # (M,n,K)
        self.masks = [_residues(field, words[:, :, shard]) for shard in range(shards)]
        self.replicated = _residues(field, words.sum(2))
        self.inverse_shards = None
        if shards > 1:
            self.inverse_shards = field.inverse(field.embed(torch.tensor([shards])))  # (M,1)
        self.zeros, self.sums = (
            _residues(
                field,
                families.zero_words(moduli, total=total)[:, [s for s, x in enumerate(sets) if client not in x], client],
            )
            for total, sets in ((False, families.zero_sets), (shards > 1, families.sum_sets or families.zero_sets))
        )


@lru_cache(maxsize=64)  # a round makes new seeds, of the same words
def _tables(field: ResidueSystem, families: HiddenFamilies, client: int) -> _Tables:
    return _Tables(field, families, client)


def _residues(field: ResidueSystem, values: Integers) -> Tensor:
    """(M,...) integers as symmetric residues."""
    p = torch.tensor(field.moduli).view(-1, *[1] * (values.ndim - 1))
    return ((torch.from_numpy(values) + p // 2) % p - p // 2).to(field.device, field.dtype)
