"""What a dealer gives each receiver besides coded rows, once in a sharing: mask seeds, and a share of its check values.

It travels at the end of the dealer's last slice, sealed with it:

    seeds   32 bytes for each of the session's seed sets that this dealer deals, ascending; zeros where the
            receiver does not hold that set's seed
    check   residues (M,t): the receiver's share of the dealer's check values (dealer_check.py)

A dealer makes all of it from its secret for the sharing, so that what was dealt can be dealt again. In the hidden mode
the seeds have a secret of their own, which is erased when training begins.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from dresfl.errors import MessageError, StoreError
from dresfl.field import SecretSeed
from dresfl.masking import Blinding, codewords

from .dealer_check import check_shares, num_combinations
from .session import Session
from .shares import ShareTable

SEED_BYTES = 32
HASH_BYTES = 16
_NUMBER = struct.Struct("<I")


def set_up_bytes(session: Session, dealer: int) -> int:
    """The size of a dealer's set-up values for one receiver."""
    return SEED_BYTES * len(session.seed_sets.dealt_by(dealer)) + check_bytes(session)


def most_set_up_bytes(session: Session) -> int:
    """The most that any dealer's set-up values take."""
    return max(set_up_bytes(session, dealer) for dealer in range(session.num_clients))


def check_bytes(session: Session) -> int:
    """The bytes of the check values of one dealer, packed: residues (M,t)."""
    return len(session.field.moduli) * num_combinations(session) * session.field.residue_bytes


def deal_set_up(
    session: Session, dealer: int, secret: SecretSeed, receivers: Sequence[int], mask_secret: SecretSeed | None
) -> list[bytes]:
    """The set-up values of a dealer for some receivers. mask_secret: of the seeds; None: they are erased, and zeros."""
    seed_sets, check = session.seed_sets, check_shares(session, secret, receivers)  # (M,n,t)
    dealt = [(number, _seed(mask_secret, number), seed_sets.sets[number]) for number in seed_sets.dealt_by(dealer)]
    return [
        b"".join(seed if receiver not in without else bytes(SEED_BYTES) for _, seed, without in dealt)
        + session.field.pack(check[:, i])
        for i, receiver in enumerate(receivers)
    ]


def _seed(secret: SecretSeed | None, number: int) -> bytes:
    """The seed of one set, as its dealer makes it."""
    if secret is None:
        return bytes(SEED_BYTES)
    return secret.derive(b"mask seed" + _NUMBER.pack(number)).reveal()


@final
@dataclass(frozen=True, eq=False)
class SetUp:
    """A dealer's set-up values, as one receiver holds them."""

    seeds: dict[int, SecretSeed]  # by the number of the set; those that the receiver holds
    check: Tensor  # (M,t)

    def __repr__(self) -> str:
        return f"SetUp({sorted(self.seeds)}, <redacted>)"

    @classmethod
    def decode(cls, session: Session, dealer: int, receiver: int, data: bytes | memoryview) -> "SetUp":
        """Take set-up values apart. MessageError if they do not fit, or if a seed is missing."""
        if len(data) != set_up_bytes(session, dealer):
            raise MessageError(f"set-up values of {len(data)} bytes came, not {set_up_bytes(session, dealer)}")
        seed_sets, seeds = session.seed_sets, {}
        dealt = seed_sets.dealt_by(dealer)
        for place, number in enumerate(dealt):
            seed = bytes(data[SEED_BYTES * place : SEED_BYTES * (place + 1)])
            if receiver in seed_sets.sets[number]:
                continue
            if seed == bytes(SEED_BYTES):
                raise MessageError(f"client {dealer} dealt no seed for set {number}")
            seeds[number] = SecretSeed(seed)
        check = session.field.unpack(bytes(data[SEED_BYTES * len(dealt) :]), (num_combinations(session),))
        return cls(seeds, check)


def held_set_ups(session: Session, receiver: int, table: ShareTable) -> list[SetUp]:
    """The set-up values that a receiver holds, dealer by dealer; StoreError if some were lost."""
    found = []
    for dealer in range(session.num_clients):
        data = table.set_up(dealer)
        if data is None:
            raise StoreError(
                f"the set-up values of client {dealer} have to be fetched again before anything can be answered",
                "see the log for what was damaged",
            )
        found.append(SetUp.decode(session, dealer, receiver, data))
    return found


def seeds_of(set_ups: Sequence[SetUp]) -> dict[int, SecretSeed]:
    """All mask seeds in set-up values, by the number of their set, ascending."""
    return dict(sorted((number, seed) for set_up in set_ups for number, seed in set_up.seeds.items()))


def seed_hashes(session: Session, seeds: dict[int, SecretSeed]) -> list[bytes]:
    """A public hash of each seed, by which holders see that they were dealt the same."""
    head = b"dresfl seed" + session.sharing_digest
    return [
        hashlib.sha256(head + _NUMBER.pack(number) + seed.reveal()).digest()[:HASH_BYTES]
        for number, seed in seeds.items()
    ]


def blinding_of(session: Session, receiver: int, seeds: dict[int, SecretSeed]) -> Blinding:
    """What makes a client's part of the masks of each opening."""
    return Blinding(session.field, _codewords(session)[:, list(seeds), receiver], list(seeds.values()))


def fresh_blinding(session: Session) -> list[Blinding]:
    """`blinding_of` every client, from fresh seeds: for simulations."""
    seed_sets, words = session.seed_sets, _codewords(session)
    seeds = [SecretSeed.fresh() for _ in seed_sets.sets]
    return [
        Blinding(session.field, words[:, list(held), client], [seeds[number] for number in held])
        for client, held in ((client, seed_sets.held_by(client)) for client in range(session.num_clients))
    ]


def _codewords(session: Session) -> Tensor:
    """(M,S,N): the codewords of the session's mask family at all clients' points."""
    code = session.code
    return codewords(session.field, session.mask_family, code.data_points, code.client_points)


def opening_label(session: Session, round_number: int, published: bytes) -> bytes:
    """What the masks of a round's opening are keyed by. published: SHA-256 of what everybody was sent for it."""
    return session.session_id + b"gradient" + _NUMBER.pack(round_number) + published
