"""What a hop publishes: u = z + r in full, at every β or, in a weight hop, its sum; and how everybody cuts it down.

    bytes          residues (M,k,E) packed as always: k = K, or 1 if the hop opens sums alone
    cut            ⌊(u + centre)/2^t⌋ for an item with shift t

r = Σ_A (2^t·h_A + l_A) over n seeds, 0 ≤ l_A < 2^t. Clients go on with the cut value minus [h]. What stays of the low
parts, Σ_A l_A, has a mean of n(2^t − 1)/2: `centre` takes it away, and adds one half for rounding. The rest of it is a
dither of √(n/12) units in the last place.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dresfl.errors import HeadroomAlarm, MessageError
from dresfl.field import ResidueSystem

from ..session import Session
from .plan import Hop, Item

WEIGHT_LIMIT = 2**31  # no |weight| of a model file is larger


def centre(num_masks: int, shift: int) -> int:
    """What is added before a value is cut: the dither's mean away, and a half for rounding.

    >>> centre(4, 3)
    -10
    """
    return (1 << (shift - 1)) - num_masks * ((1 << shift) - 1) // 2


def num_values(hop: Hop) -> int:
    """E: how many values of each shard a hop opens, or sums."""
    return sum(item.count for item in hop.items)


def published_bytes(session: Session, hop: Hop) -> int:
    """The size of what a hop publishes."""
    shards = 1 if hop.total else session.num_shards
    return len(session.field.moduli) * shards * num_values(hop) * session.field.residue_bytes


def unpack_published(session: Session, hop: Hop, data: bytes | memoryview) -> Tensor:
    """(M,k,E): the residues that a hop published. MessageError for another length, or a residue that is not below p.

    There is one form in bytes of the same values: another one would fork the chain of hashes (rule 2 of the design).
    """
    shards = 1 if hop.total else session.num_shards
    return session.field.unpack(data, (shards, num_values(hop)))


def split(hop: Hop, values: Tensor) -> list[Tensor]:
    """The values (...,E) of a hop, item by item."""
    return list(torch.split(values, [item.count for item in hop.items], -1))


def cut(field: ResidueSystem, item: Item, published: Tensor, num_masks: int, kappa: int) -> Tensor:
    """⌊(u + centre)/2^t⌋ of an item that is masked: (M,k,count) -> (M,k,count).

    HeadroomAlarm if a value lies outside [−2^bits, n·2^(bits + κ) + 2^bits]: no honest hop publishes such a one.
    """
    if item.shift is None:
        raise ValueError(f"{item.name} is opened as it is")
    moved = field.add_integer(published, centre(num_masks, item.shift))
    values, sizes = field.floor_shift(moved.flatten(1), item.shift)
    slack = 2.0**item.bits + 2.0 * num_masks * 2.0**item.shift
    lowest, highest = -slack, num_masks * 2.0 ** (item.bits + kappa) + slack
    if sizes.numel() and (float(sizes.min()) < lowest or float(sizes.max()) > highest):
        raise HeadroomAlarm(
            f"{item.name}: a published value lies outside its range of {math.log2(highest):.0f} bits",
            "the coordinator published something false, or a value outgrew its plan: nothing more is sent",
        )
    return values.view(published.shape)


def opened_integers(field: ResidueSystem, published: Tensor) -> list[int]:
    """The integers of an item that is opened as it is, from (M,k,count): those of one shard after the other."""
    return field.lift_exact(published.flatten(1))


def opened_digest(session: Session, weights: Tensor) -> bytes:
    """SHA-256 of what the last hop publishes if it opens these weights (P,) to everybody, as a `Ledger` has it."""
    residues = session.field.embed(weights.to(torch.int64)).unsqueeze(1)  # (M,1,P)
    return hashlib.sha256(session.field.pack(residues.repeat(1, session.num_shards, 1))).digest()


def final_weights(session: Session, values: Sequence[int]) -> Tensor:
    """(P,) int64: the weights that the last hop opened, once for each shard. HeadroomAlarm if they are no weights."""
    size = session.network.num_parameters
    if len(values) != size * session.num_shards:
        raise MessageError(f"{len(values)} weights were opened, the network has {size}")
    copies = [values[start : start + size] for start in range(0, len(values), size)]
    if any(copy != copies[0] for copy in copies) or any(abs(value) >= WEIGHT_LIMIT for value in copies[0]):
        raise HeadroomAlarm(
            "the opened model holds impossible weights",
            "a hop was not published truly, or clients answered falsely: see the log of the run",
        )
    return torch.tensor(copies[0], dtype=torch.int64)
