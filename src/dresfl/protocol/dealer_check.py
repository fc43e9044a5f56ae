"""Whether a dealer's shares lie on polynomials: what a dealer adds, what receivers publish, and what all conclude.

Notation: N receivers, K shards, T masks, t combinations, p a modulus. A dealer that deals shares of no polynomial would
spoil every round, and nobody could say who did it. So, once:

1. With its shares the dealer deals shares of t check values for each prime: the values of t polynomials of degree
   K+T−1, all of whose K+T coefficients are uniform (`check_polynomial`, `check_shares`).
2. When all shares and check shares are on all disks, and not before, the clients toss common coins.
3. The coins give factors ρ and σ, integers in [0, 2^21). Receiver j publishes, for each dealer, prime and combination,

       c(α_j) + Σ_rows ρ_row Σ_columns σ_column · share_j[row, column]   mod p      (`combine_shares`)

4. For an honest dealer these are values of one polynomial of degree K+T−1. Everybody looks who deviates (`judge`).

**What is published says nothing of the rows.** c is a uniform polynomial of degree ≤ K+T−1 that is used once, so what
is published is a uniform polynomial of that degree, whatever was shared. It would say something if the same check
values were published with other coins: a client answers for one set of coins in each sharing, as it answers a round
once.

**How often a bad dealer is missed.** q = ⌈2^21/p⌉/2^21 is the largest probability that a factor has one given residue.
Let E be any set of e receivers such that the shares of all others are not on polynomials of degree K+T−1. Then one
syndrome of them, a matrix S ≠ 0 over rows and columns, is not 0, and a combination of it, ρᵀSσ + s with s from the
check value, is 0 with probability at most 2q − q²: choose a row S_r ≠ 0; S_r·σ is 0 with probability at most q; if it
is not, one residue of ρ_r at most makes the sum 0, whatever the others are. All t combinations are 0 with probability
at most (2q − q²)^t. There are C(N,e) sets E. `num_combinations` takes the least t for which C(N,e)·(2q − q²)^t < 2^−40
for the smallest prime. So, with a probability above 1 − 2^−40 for each prime and dealer: if `judge` lets a dealer stay,
then the shares that it dealt to all receivers but those that deviate lie on polynomials. (In the hidden mode a dealer
may be in league with the coordinator, which then chooses from 2^min(N,64) sets of coins: t is larger by that.)

**What it does not show.** That values are small: a row of huge values lies on a polynomial. Nor that labels are
one-hot. A linear check shows Σ_c y_c = 1 at the most, which (5, −4, 0) satisfies as well; that each y_c is 0 or 1 is an
equation of degree 2 in shares. So it would not be sound, and is left to proofs of ranges.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from dresfl.coding import locate_errors
from dresfl.errors import MessageError, UsageError
from dresfl.field import FACTOR_BITS, Domain, Factors, PublicStream, SecretSeed

from .random_factors import coin_choices, largest_probability, least_combinations
from .session import Session
from .shares import ShareTable

COIN_BYTES = 32
_ROWS = 256  # rows combined together


@final
@dataclass(frozen=True)
class Verdict:
    """What everybody concludes from the published values. Client numbers, ascending."""

    excluded: tuple[int, ...] = ()  # dealers whose shares more receivers deviate on than lying receivers explain
    deviating: tuple[int, ...] = ()  # receivers that deviate on a dealer that stays

    def check(self, num_clients: int) -> None:
        """Refuse a verdict that cannot be one: it names clients that there are, and leaves a dealer."""
        for clients in (self.excluded, self.deviating):
            if list(clients) != sorted(set(clients)) or not set(clients) <= set(range(num_clients)):
                raise MessageError(f"a verdict names clients {list(clients)} of {num_clients}")
        if len(self.excluded) == num_clients:
            raise MessageError("a verdict excludes every dealer")

    def to_dict(self) -> dict[str, list[int]]:
        """The verdict as plain values, as files keep it."""
        return {"excluded": list(self.excluded), "deviating": list(self.deviating)}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "Verdict":
        """What `to_dict` made. ValueError if it is none."""
        lists = [values.get("excluded"), values.get("deviating")]
        if not all(isinstance(clients, list) and all(type(c) is int for c in clients) for clients in lists):
            raise ValueError(f"{dict(values)} is no verdict on dealers")
        return cls(*(tuple(clients) for clients in lists if isinstance(clients, list)))


def coin_commitment(coin: bytes) -> bytes:
    """What binds a client to its coin before it shows it."""
    return hashlib.sha256(b"dresfl coin" + coin).digest()


def common_coins(coins: Sequence[bytes]) -> bytes:
    """What all coins together give: nobody knows it before the last one is shown."""
    return hashlib.sha256(b"dresfl coins" + b"".join(coins)).digest()


def fewest_receivers(session: Session) -> int:
    """K+T+2e: with fewer receivers, fewer than e that lie would be enough to have an honest dealer excluded."""
    return session.num_shards + session.mask_degree + 2 * session.max_deviating


def num_combinations(session: Session) -> int:
    """t: the least for which C(N,e)·(2q − q²)^t < 2^−40, q of the smallest prime. The module says why.

    In the hidden mode 2^−40 is for all dealers and primes together, whichever coins a coordinator chooses from.
    """
    sets = math.comb(session.num_clients, session.max_deviating)
    if session.hidden is not None:
        sets *= coin_choices(session.num_clients) * session.num_clients * len(session.field.moduli)
    q = largest_probability(session.field.moduli[0])
    return least_combinations(sets, 2 * q - q * q)


def check_polynomial(session: Session, secret: SecretSeed) -> Tensor:
    """A dealer's check values at the K shards' and T masks' points: exactly uniform residues (M,K+T,t).

    They follow from the dealer's secret and the sharing, so that a restarted dealer deals the same ones.
    """
    field, hidden, count = session.field, session.num_shards + session.mask_degree, num_combinations(session)
    key = secret.derive(b"dealer check").mask_key(session.sharing_id).view(1, 8).to(field.device)
    flat = field.uniform(key, torch.zeros(1, dtype=torch.int64, device=field.device), hidden * count)
    return flat.reshape(len(field.moduli), hidden, count)


def check_shares(session: Session, secret: SecretSeed, receivers: Sequence[int] | None = None) -> Tensor:
    """What the dealer deals to the receivers, all if none are named: the check values at their points (M,n,t)."""
    values, shards = check_polynomial(session, secret), session.num_shards
    return session.code.encode(values[:, :shards], values[:, shards:], receivers)


def combine_shares(session: Session, table: ShareTable, dealer: int, coins: bytes, check_share: Tensor) -> Tensor:
    """What a receiver publishes of a dealer: t combinations of all its rows, and its check share (M,t) -> (M,t).

    The rows are read a few at a time. All of them must be held, and the coins must be younger than they are.
    """
    field, count = session.field, num_combinations(session)
    if tuple(check_share.shape) != (len(field.moduli), count):
        raise UsageError(f"a check share of {count} values for each of {len(field.moduli)} primes was expected")
    if table.missing(dealer):
        raise MessageError(f"shares of dealer {dealer} are missing and cannot be checked", "finish the sharing first")
    columns, rows = _factors(session, dealer, coins, count)
    p = np.array(field.moduli, dtype=np.int64).reshape(-1, 1)
    total = check_share.to("cpu", torch.int64).numpy() % p
    for first in range(0, rows.shape[1], _ROWS):
        last = min(first + _ROWS, rows.shape[1])
        total += field.weighted_row_sums(table.packed_rows(dealer, first, last), columns, rows[:, first:last])
    symmetric = (total + p // 2) % p - p // 2
    return torch.from_numpy(symmetric).to(field.device, field.dtype)


def _factors(session: Session, dealer: int, coins: bytes, count: int) -> tuple[Factors, Factors]:
    """σ (t,W) and ρ (t,rows) for a dealer's rows: the upper 21 bits of public words.

    σ_s has the words of stream (DEALER_CHECK, s), ρ_s those of stream (DEALER_CHECK, t + s). The stream's seed is
    SHA-256("dresfl dealer check" | sharing digest | coins), a little-endian integer.
    """
    if len(coins) != COIN_BYTES:
        raise UsageError(f"coins have {COIN_BYTES} bytes, not {len(coins)}")
    digest = hashlib.sha256(b"dresfl dealer check" + session.sharing_digest + coins).digest()
    stream, streams = PublicStream(int.from_bytes(digest, "little")), torch.arange(count)
    columns = stream.words_of(Domain.DEALER_CHECK, streams, session.row_width)
    rows = stream.words_of(Domain.DEALER_CHECK, streams + count, session.coded_rows(dealer))
    found = [(words >> (32 - FACTOR_BITS)).to(torch.int32).numpy() for words in (columns, rows)]
    return found[0], found[1]


def judge(session: Session, values: Tensor, receivers: Sequence[int] | None = None) -> Verdict:
    """Who is excluded, and who deviates: from what receivers published, residues (M,dealers,t,receivers).

    At most e receivers that deviate on a dealer are taken for errors of theirs; with more, the dealer is excluded. A
    bad dealer and a lying receiver cannot be told apart otherwise. Everybody comes to the same verdict.
    receivers: those that took part, ascending; None: all. Of the others nothing is known: they count as deviating.
    """
    clients, moduli = session.num_clients, session.field.moduli
    there = list(range(clients)) if receivers is None else list(receivers)
    wanted = (len(moduli), clients, num_combinations(session), len(there))
    if tuple(values.shape) != wanted:
        raise UsageError(f"published values of shape {tuple(values.shape)} came, {wanted} was expected")
    threshold = session.num_shards + session.mask_degree
    errors = min(session.max_deviating, (len(there) - threshold) // 2)
    integers, points = values.to("cpu", torch.int64).numpy(), [session.code.client_points[j] for j in there]
    excluded, deviating = [], set(range(clients)) - set(there)
    for dealer in range(clients):
        found = locate_errors(moduli, points, integers[:, dealer], threshold, errors)
        if found is None:
            excluded.append(dealer)
        else:
            deviating.update(there[place] for place in found)
    return Verdict(tuple(excluded), tuple(sorted(deviating)))
