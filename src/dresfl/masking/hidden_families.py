"""The mask families of the hidden mode, with their certificate: the coordinator and T clients see masked values alone.

Notation: N clients, K shards, T colluders, Td ≥ T masks in every share (the mask degree), T' = K + Td − 1 the degree of
a share, d the degree of what a hop opens in its shares, D = d·T', R = D + 1 ≤ N. β_1 … β_K are the data points and α_j
is the point of client j, as in `LagrangeCode` with Td colluders; all are distinct modulo each prime p. A and E are sets
of clients, π_E(z) = Π_{e∈E} (z − α_e), ℓ_k(z) = Π_{j≠k} (z − β_j)/(β_k − β_j). The clients outside a set hold its seed.

Words, polynomials that a seed's values multiply:

    mask words, |A| = Td     f_{A,k}(z) = ℓ_k(z)·π_A(z)/π_A(β_k)      degree T'; 1 at β_k, 0 at the other β and at A
                             f_A = Σ_k f_{A,k}                        degree T'; 1 at every β, 0 at A
    zero words, |E| = D − K  w_E(z) = π_E(z)·Π_k (z − β_k)            degree D; 0 at every β and at E
    sum words, |E| = D − 1   c_E(z) of `codewords`                    degree D; sum 0 over the β, 0 at E

A hop is about a polynomial f of degree at most D, and client j knows f(α_j). It sends y(α_j), where

    hops that open each shard    y = f + Σ_{A,k} r_{A,k}·f_{A,k} + Σ_E x_E·w_E     opened: u_k = f(β_k) + Σ_A r_{A,k}
    hops that open the sum       y = f + Σ_A r_A·f_A/K + Σ_E x_E·c_E               opened: u = Σ_k f(β_k) + Σ_A r_A

The x_E are uniform modulo p. The r are integers, uniform in [0, 2^(b+κ)) where |f(β_k)| < 2^b (where the sum's absolute
value is below 2^b). All are independent of each other and of f, and new for every value and hop. With K = 1 both hops
are the same, and c_E is a multiple of w_E: no sum words are needed. Items without a mask have r = 0.

Claim. Let C be a coalition of at most T clients. Suppose that
 1. some mask set A contains C,
 2. the zero words w_E of the sets E ⊇ C span W_C, all polynomials of degree at most D that are 0 at every β and at C,
 3. if K > 1, the sum words c_E of the sets E ⊇ C span Z_C, all of degree at most D with sum 0 over the β, and 0 at C.
Then for fixed seeds of C the joint distribution of all N values y(α_j) depends on f only through f(α_c), c ∈ C, and
what is opened. What is opened has, for any two values of f(β_k), distributions of distance at most 2^(1−κ).

Proof. C holds the seed of a set unless all of C is in it. Fix all values that C knows. The zero words left over add a
value uniform on their span, W_C. So y is uniform on a coset of W_C. A coset is fixed by the values of y at the β, which
are opened, and at C. There the words that C cannot compute are 0, so y(α_c) is f(α_c) plus what C knows. The N ≥ R
values y(α_j) and y determine each other. For sums the same holds with Z_C and u. At last, C does not know r_{A,k} of
the set A ⊇ C. u_k is r_{A,k} plus values independent of it, and a shift of r_{A,k} by s changes its distribution by
|s|/2^(b+κ), where |s| < 2^(b+1). ∎

All later hops. A client goes on with a polynomial of degree T' in public values and in −h_{A,k}·f_{A,k}, where
r = 2^t·h + l. The mask words that C cannot compute are 0 at C: what C knows of the next f follows from what was opened
and from its own seeds. So the claim applies hop by hop. A client of C that deals seeds changes nothing, as
`certificate` says: it deals only seeds that C holds.

Ranks. dim W_C = D + 1 − K − |C| and dim Z_C = D − |C|, since evaluations at D + 1 or fewer distinct points are
independent. These ranks are computed modulo each prime for every coalition of T clients. With the mask words the rank
is D + 1 − |C|, all that can be hidden from C: the K words f_{A,k}, A ⊇ C, are independent modulo W_C, for their values
at the β are unit vectors; f_A/K has sum 1, so it is not in Z_C. Coalitions of fewer clients follow as in `certificate`,
since D − K ≥ T: K + Td ≥ 2 and d ≥ 2 give D − K = (d−1)K + d(Td−1) ≥ Td.

Which sets. If Td = T the mask sets are all sets of T clients, in lexicographic order. If Td > T they are those of steps
1 and 3 of `families` with need 1 and sets of Td clients. Zero sets and sum sets are those of its steps 1 to 5 with sets
of D − K and of D − 1 clients, t = T, and need D + 1 − K − T and D − T. More than 20,000 coalitions are refused.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import final

import numpy as np

from dresfl.errors import InfeasiblePlan, UsageError

from .certificate import coalitions_of, membership, missing_ranks, points_of
from .codewords import Integers, codeword_values, vanishing_products
from .covers import Cover, certified_sets, check_seeds
from .seed_sets import SeedSets

MOST_MASK_SEEDS = 8192  # that one client holds, for masks of values
MOST_ZERO_SEEDS = 2048  # and for each kind of zero words
_MOST_COALITIONS = 20_000

Sets = tuple[tuple[int, ...], ...]


@final
@dataclass(frozen=True)
class HiddenFamilies:
    """Who holds the seeds of the hidden mode, and the words that they multiply. `hidden_families` makes it.

    Seeds are numbered: those of `mask_sets`, of `zero_sets`, of `sum_sets`, then N that all clients hold, of which
    client i deals number i.

    >>> families = hidden_families((101, 103), 5, num_shards=1, max_colluders=1, mask_degree=1, degree=2)
    >>> families.mask_sets, families.num_masks, families.common_seeds
    (((0,), (1,), (2,), (3,), (4,)), 5, range(10, 15))
    """

    num_clients: int
    num_shards: int
    max_colluders: int
    mask_degree: int
    degree: int
    mask_sets: Sets
    zero_sets: Sets
    sum_sets: Sets  # empty if there is one shard: the zero words serve

    def __post_init__(self) -> None:
        sizes = self.mask_degree, self.opened_degree - self.num_shards, self.opened_degree - 1
        for sets, size in zip((self.mask_sets, self.zero_sets, self.sum_sets), sizes, strict=True):
            other = [members for members in sets if len(members) != size]
            if other:
                raise UsageError(f"a set of {size} clients was expected, not {other[0]}")

    @property
    def opened_degree(self) -> int:
        """D = d·(K + Td − 1)."""
        return self.degree * (self.num_shards + self.mask_degree - 1)

    @property
    def num_masks(self) -> int:
        """n: of so many bounded integers the mask of one value is the sum."""
        return len(self.mask_sets)

    @cached_property
    def seed_sets(self) -> SeedSets:
        """Who holds and who makes each seed."""
        common: Sets = ((),) * self.num_clients
        return SeedSets(self.num_clients, (*self.mask_sets, *self.zero_sets, *self.sum_sets, *common))

    @property
    def mask_seeds(self) -> range:
        """The numbers of the seeds of masks."""
        return range(len(self.mask_sets))

    def zero_seeds(self, *, total: bool) -> range:
        """The numbers of the seeds of zero words; total: of those whose sum over the shards alone is zero."""
        zeros = range(len(self.mask_sets), len(self.mask_sets) + len(self.zero_sets))
        return range(zeros.stop, zeros.stop + len(self.sum_sets)) if total and self.num_shards > 1 else zeros

    @property
    def common_seeds(self) -> range:
        """The numbers of the seeds that all clients hold."""
        first = len(self.mask_sets) + len(self.zero_sets) + len(self.sum_sets)
        return range(first, first + self.num_clients)

    @property
    def data_points(self) -> range:
        """β_1..β_K."""
        return points_of(self.num_clients, self.num_shards, self.mask_degree)[0]

    @property
    def client_points(self) -> range:
        """α_1..α_N."""
        return points_of(self.num_clients, self.num_shards, self.mask_degree)[1]

    def mask_words(self, moduli: Sequence[int], clients: Sequence[int]) -> Integers:
        """(M,S,n,K) in [0, p): f_{A,k} at the points of n clients, for all mask sets."""
        beta, at = self.data_points, [self.client_points[client] for client in clients]
        found = np.empty((len(moduli), len(self.mask_sets), len(at), len(beta)), dtype=np.int64)
        for channel, p in enumerate(moduli):
            products = vanishing_products(p, self.mask_sets, self.client_points, (*at, *beta))
            inverses = _inverses(products[:, len(at) :], p)  # (S,K)
            lagrange = np.array([[_lagrange(beta, k, x, p) for k in beta] for x in at]).reshape(len(at), -1)  # (n,K)
            found[channel] = products[:, : len(at), None] * inverses[:, None, :] % p * lagrange % p
        return found

    def zero_words(self, moduli: Sequence[int], *, total: bool) -> Integers:
        """(M,S,N) in [0, p): the words of `zero_seeds` at all clients' points."""
        if total and self.num_shards > 1:
            return codeword_values(moduli, self.sum_sets, self.data_points, self.client_points)
        return _zero_words(moduli, self.zero_sets, self.data_points, self.client_points)


def _inverses(values: Integers, p: int) -> Integers:
    """x^(p−2) modulo p, elementwise."""
    found, power = np.ones_like(values), values % p
    for bit in range(p.bit_length()):
        if (p - 2) >> bit & 1:
            found = found * power % p
        power = power * power % p
    return found


def _lagrange(points: Sequence[int], chosen: int, x: int, p: int) -> int:
    """ℓ at x: 1 at the chosen one of the points, 0 at the others."""
    others = [b for b in points if b != chosen]
    return math.prod(x - b for b in others) * pow(math.prod(chosen - b for b in others), -1, p) % p


def _zero_words(
    moduli: Sequence[int], sets: Sequence[Sequence[int]], data_points: Sequence[int], client_points: Sequence[int]
) -> Integers:
    found = np.empty((len(moduli), len(sets), len(client_points)), dtype=np.int64)
    for channel, p in enumerate(moduli):
        at_data = np.array([math.prod(x - b for b in data_points) % p for x in client_points], dtype=np.int64)
        found[channel] = vanishing_products(p, sets, client_points, client_points) * at_data % p
    return found


@lru_cache(maxsize=64)
def hidden_families(
    moduli: tuple[int, ...], num_clients: int, num_shards: int, max_colluders: int, mask_degree: int, degree: int
) -> HiddenFamilies:
    """The certified families of these numbers; every party derives the same. The module says how.

    Raises InfeasiblePlan if there is none within the limits.
    """
    setting = (
        f"{num_clients} clients, {num_shards} shards, {max_colluders} colluders, mask degree {mask_degree}, "
        f"degree {degree}"
    )
    masks = mask_sets(num_clients, max_colluders, mask_degree)
    _check(moduli, num_clients, num_shards, mask_degree, degree, setting)
    data_points, client_points = points_of(num_clients, num_shards, mask_degree)
    opened = degree * (num_shards + mask_degree - 1)

    def zero_words(primes: Sequence[int], sets: Sequence[Sequence[int]]) -> Integers:
        return _zero_words(primes, sets, data_points, client_points)

    def sum_words(primes: Sequence[int], sets: Sequence[Sequence[int]]) -> Integers:
        return codeword_values(primes, sets, data_points, client_points)

    zero_sets = certified_sets(
        moduli, num_clients, opened - num_shards, max_colluders, zero_words, MOST_ZERO_SEEDS, f"{setting} (zero words)"
    )
    sum_sets: Sets = ()
    if num_shards > 1:
        sum_sets = certified_sets(
            moduli, num_clients, opened - 1, max_colluders, sum_words, MOST_ZERO_SEEDS, f"{setting} (weight hops)"
        )
    return HiddenFamilies(num_clients, num_shards, max_colluders, mask_degree, degree, masks, zero_sets, sum_sets)


@lru_cache(maxsize=64)
def mask_sets(num_clients: int, max_colluders: int, mask_degree: int) -> Sets:
    """The sets of clients that lack the masks' seeds; every party derives the same, whatever the moduli are.

    >>> len(mask_sets(20, max_colluders=1, mask_degree=1)), len(mask_sets(20, max_colluders=4, mask_degree=8))
    (20, 157)
    """
    setting = f"{num_clients} clients, {max_colluders} colluders, mask degree {mask_degree}"
    if not 1 <= max_colluders <= mask_degree < num_clients:
        raise InfeasiblePlan(
            f"no masks for {setting}: at least one colluder is needed, a mask degree of at least the number of "
            "colluders, and more clients than that"
        )
    coalitions = math.comb(num_clients, max_colluders)
    if coalitions > _MOST_COALITIONS:
        raise InfeasiblePlan(
            f"{setting}: {coalitions} coalitions would have to be checked, at most {_MOST_COALITIONS} can be",
            "allow for fewer colluders, or use fewer clients",
        )
    if mask_degree == max_colluders:
        check_seeds(math.comb(num_clients - 1, max_colluders), MOST_MASK_SEEDS, setting)
        return tuple(itertools.combinations(range(num_clients), max_colluders))
    cover = Cover(num_clients, mask_degree, max_colluders, 1)
    cover.fill()
    check_seeds(cover.most_held(), MOST_MASK_SEEDS, setting)
    _check_masks(cover.sets, cover.coalitions, num_clients)
    return tuple(cover.sets)


def _check_masks(sets: Sequence[Sequence[int]], coalitions: Integers, num_clients: int) -> None:
    """Condition 1: each coalition lies in a mask set."""
    inside = membership(sets, num_clients).T  # (N,S)
    for coalition in coalitions.tolist():
        if not inside[coalition].all(0).any():
            raise InfeasiblePlan(f"clients {coalition} together hold all seeds of the masks")


def _check(
    moduli: tuple[int, ...], num_clients: int, num_shards: int, mask_degree: int, degree: int, setting: str
) -> None:
    if num_shards < 1 or degree < 2:
        raise InfeasiblePlan(f"no hidden model for {setting}: at least one shard and degree 2 are needed")
    needed = degree * (num_shards + mask_degree - 1) + 1
    if needed > num_clients:
        raise InfeasiblePlan(
            f"no hidden model for {setting}: {needed} answers are needed",
            f"use at least {needed} clients, or fewer shards or colluders, or a smaller mask degree",
        )
    points = num_clients + num_shards + mask_degree
    if not moduli or min(moduli) <= points:
        raise UsageError(
            f"modulus {min(moduli, default=0)} has no room for {points} distinct points",
            "choose moduli above the number of clients + shards + mask degree",
        )


def certify_hidden(moduli: Sequence[int], families: HiddenFamilies) -> None:
    """Raise InfeasiblePlan unless the families hide all but masked values from every coalition. For anyone to check.

    `hidden_families` returns only families that pass.
    """
    num_clients, num_shards, opened = families.num_clients, families.num_shards, families.opened_degree
    coalitions = coalitions_of(num_clients, families.max_colluders)
    _check_masks(families.mask_sets, coalitions, num_clients)
    kinds = [(False, "zero words", families.zero_sets, opened - num_shards)]
    if num_shards > 1:
        kinds.append((True, "sum words", families.sum_sets, opened - 1))
    for total, kind, sets, width in kinds:
        members, words = membership(sets, num_clients), families.zero_words(moduli, total=total)
        missing = missing_ranks(moduli, words, members, coalitions, width + 2)
        if missing.any():
            channel, worst = divmod(int(missing.argmax()), len(coalitions))
            raise InfeasiblePlan(
                f"these {kind} hide too little from the coordinator with clients {coalitions[worst].tolist()}: modulo "
                f"{moduli[channel]} the seeds that they do not hold span {missing.max()} dimensions too few",
                "use the families that hidden_families makes for these moduli",
            )
