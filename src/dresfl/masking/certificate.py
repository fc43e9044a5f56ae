"""The certificate of a mask family: modulo every prime, the coordinator and T clients together see the sum and no more.

Notation: N clients, K shards, T colluders, R the threshold; all polynomials are modulo one prime p > N + K + T.
f is the polynomial that an opening is about, of degree below R, and client j knows f(α_j). Z = {ζ : deg ζ < R,
Σ_k ζ(β_k) = 0} are the zero-sum polynomials. For a coalition C, Z_C = {ζ ∈ Z : ζ(α_c) = 0 for all c ∈ C}.

What is sent. Client j sends y_j = f(α_j) + ζ(α_j) with ζ = Σ_E r_E·c_E over the family's sets E. Each c_E lies in Z, so
ζ lies in Z, y_j = (f + ζ)(α_j), and any R of the y_j give Σ_k (f + ζ)(β_k) = Σ_k f(β_k). Every r_E is uniform modulo p,
independent of f and of the others, and so for every coordinate, every prime and every opening anew. (A stream cipher
expands it from a seed and the opening's label.) The clients outside E know r_E, those in E do not.

Claim. Suppose that for a coalition C the codewords c_E of the sets E ⊇ C span Z_C. Then the joint distribution of all
N values y_j, of the values f(α_c), c ∈ C, and of the seeds that C holds depends on f only through Σ_k f(β_k) and these
f(α_c).

Proof. C holds the seed of E unless every client of C is in E. Fix all r_E that C knows, and let ζ' be their part of ζ.
The rest, ζ'' = Σ_{E⊇C} r_E·c_E, is a linear image of independent uniform values, hence uniform on the span of the c_E,
which is Z_C. So f + ζ = (f + ζ') + ζ'' is uniform on the coset f + ζ' + Z_C. The N ≥ R values y_j and the polynomial
f + ζ determine each other. Two polynomials f, g of degree below R with the same sum and the same values at C differ by
an element of Z_C, so they give the same coset. The seeds that C holds are drawn independently of f. ∎

Clients of C may deal seeds. A seed that C does not hold is dealt by a client outside its set E ⊇ C, thus outside C. So
its values are uniform whatever C does. Seeds that C deals, even other ones to each holder, are part of what C knows:
the proof holds with the values that each client adds on their account in place of ζ'.

Dimension. dim Z_C = R − 1 − |C| if |C| + K ≤ R: evaluations at R or fewer distinct points are independent functionals
on polynomials of degree below R, so the |C| evaluations at C and the sum of those at β_1 … β_K are independent. The
points are distinct modulo p since p > N + K + T. `certify` refuses families with R < K + T.
c_E ∈ Z_C if E ⊇ C. So the codewords span Z_C exactly if their rank is R − 1 − |C|: that is what is computed.

Which coalitions. All coalitions of t = min(T, R − 2) clients are checked. That suffices for all of at most T clients:
- Larger ones, |C| = T = R − 1 (R ≥ K + T leaves K = 1 alone): dim Z_C = 0, nothing is left to span.
- Smaller ones, by induction from t downwards. Let |C| < t. For each client x outside C, the sets that contain C ∪ {x}
  span Z_{C∪{x}}, and they contain C too. So the span U for C contains every Z_{C∪{x}}, each of which is Z_C or a
  hyperplane of it. If U were not Z_C, then all of them would be one hyperplane U, and any polynomial of U would
  vanish at C and at every x, thus at all N ≥ R points: U = 0 and dim Z_C ≤ 1. But dim Z_C = R − 1 − |C| ≥ R − t ≥ 2.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dresfl.errors import InfeasiblePlan
from dresfl.kernels.cpu.ranks import ranks

from .codewords import Integers, codeword_values
from .mask_family import MaskFamily

_ELEMENTS = 2**17  # of the matrices whose ranks are found at a time


def points_of(num_clients: int, num_shards: int, max_colluders: int) -> tuple[range, range]:
    """The data points and the client points of a Lagrange code."""
    first = num_shards + max_colluders + 1
    return range(1, num_shards + 1), range(first, first + num_clients)


def checked_size(max_colluders: int, threshold: int) -> int:
    """t = min(T, R − 2): the size of the coalitions that are checked."""
    return min(max_colluders, threshold - 2)


def coalitions_of(num_clients: int, size: int) -> Integers:
    """(C,size): all coalitions of a size, in lexicographic order."""
    count = math.comb(num_clients, size)
    flat = itertools.chain.from_iterable(itertools.combinations(range(num_clients), size))
    return np.fromiter(flat, np.int64, count * size).reshape(count, size)


def certify(moduli: Sequence[int], family: MaskFamily, num_shards: int) -> None:
    """Raise InfeasiblePlan unless the family hides all but the sum from every coalition. For any client to check.

    `zero_sum_family` returns only families that pass.
    """
    data_points, client_points = points_of(family.num_clients, num_shards, family.max_colluders)
    if family.threshold < num_shards + family.max_colluders or min(moduli) <= client_points[-1]:
        raise InfeasiblePlan(
            f"no certificate for threshold {family.threshold}, {num_shards} shards, {family.max_colluders} colluders "
            f"and modulus {min(moduli)}: the threshold is at least shards + colluders, and all points are distinct"
        )
    coalitions = coalitions_of(family.num_clients, checked_size(family.max_colluders, family.threshold))
    members = membership(family.sets, family.num_clients)
    values = codeword_values(moduli, family.sets, data_points, client_points)
    missing = missing_ranks(moduli, values, members, coalitions, family.threshold)
    if missing.any():
        channel, worst = divmod(int(missing.argmax()), len(coalitions))
        raise InfeasiblePlan(
            f"this mask family hides too little from the coordinator with clients {coalitions[worst].tolist()}: modulo "
            f"{moduli[channel]} the seeds that they do not hold span {missing.max()} dimensions too few",
            "use the family that zero_sum_family makes for these moduli",
        )


def membership(sets: Sequence[Sequence[int]], num_clients: int) -> NDArray[np.bool_]:
    """(S,N): which clients are in which set."""
    found = np.zeros((len(sets), num_clients), dtype=np.bool_)
    for s, members in enumerate(sets):
        found[s, list(members)] = True
    return found


def missing_ranks(
    moduli: Sequence[int], values: Integers, members: NDArray[np.bool_], coalitions: Integers, threshold: int
) -> Integers:
    """(M,C): by how much the codewords (M,S,N) of the sets that contain each coalition miss the rank R − 1 − t.

    A codeword of a set that contains the coalition vanishes at its t clients. Values at any R − t other clients fix it.
    The clients that follow the coalition are taken: there the matrix of windows is triangular already.
    """
    (_, num_sets, num_clients), size = values.shape, coalitions.shape[1]
    columns = threshold - size
    found = np.empty((len(moduli), len(coalitions)), dtype=np.int64)
    step = max(1, _ELEMENTS // max(num_sets, columns * columns))
    for low in range(0, len(coalitions), step):
        chosen = coalitions[low : low + step]
        inside = np.ones((len(chosen), num_sets), dtype=np.bool_)
        for clients in chosen.T:
            inside &= members.T[clients]
        counts = inside.sum(1)
        which, place = np.nonzero(inside)
        rows = np.zeros((len(chosen), int(counts.max())), dtype=np.int64)
        there = np.arange(rows.shape[1]) < counts[:, None]  # the other rows are 0
        rows[which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)] = place
        at = rows[:, :, None] * num_clients + _following(chosen, num_clients, columns)[:, None, :]  # (c,rows,R−t)
        for channel, p in enumerate(moduli):
            matrices = values[channel].ravel()[at].astype(np.float64)
            matrices -= p * (matrices > p // 2)
            found[channel, low : low + step] = threshold - 1 - size - ranks(matrices * there[:, :, None], p)
    return found


def _following(coalitions: Integers, num_clients: int, count: int) -> Integers:
    """(C,count): the first clients after each coalition's last that are not in it; numbers are modulo N."""
    last = coalitions[:, -1:] if coalitions.shape[1] else np.zeros((len(coalitions), 1), np.int64)
    following = (last + np.arange(1, num_clients + 1)) % num_clients
    outside = np.ones((len(coalitions), num_clients), dtype=np.bool_)
    for clients in coalitions.T:
        outside &= following != clients[:, None]
    return following[outside].reshape(len(coalitions), -1)[:, :count]
