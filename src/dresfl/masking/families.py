"""Which sets of clients lack which seeds: the family that every party derives from the public numbers.

Notation: N clients 0 … N−1, K shards, T colluders, R the threshold, t = min(T, R − 2). A coalition is a set of t
clients; coalitions are in lexicographic order. A set has R − 2 clients. Needed: R ≥ K + T, 2 ≤ R ≤ N,
primes above N + K + T.

1. The family is an empty list. need[C] = R − 1 − t for every coalition C.
2. If t = 1: append the windows {s, s+1, …, s+R−3} modulo N for s = 0, 1, …, N−1; every need becomes 0.
3. While a need is above 0:
   a. Let C be the first coalition with the largest need, and E = C.
   b. While E has fewer than R − 2 clients, add one client. The gain of a client x outside E is the sum of the needs of
      those coalitions inside E ∪ {x} that contain x. Add the client of largest gain. Among equals take the one
      in the fewest sets of the family, then the lowest number. The last client must not make E equal to a set of
      the family; leave out clients that would.
   c. If E cannot be completed so, or equals a set of the family: need[C] = 0.
      Else append E; reduce by 1 the need of each coalition inside E whose need is above 0.
4. For every coalition C and every prime p: missing = R − 1 − t − rank modulo p of the codewords of the sets that
   contain C (`codewords` defines them). If nothing is missing anywhere, the family is certified: end.
5. need[C] = the largest missing of C over all primes. If this was the 64th time: refuse. Back to 3.
   Refused too: more than 20,000 coalitions; a client that would hold more than 1,024 seeds.
6. Of the seeds s = 0, 1, …, one after the other, the dealer is that client outside set s which has dealt the fewest so
   far; among equals the first in the order s, s+1, … modulo N.

Each client of a set lacks its seed, so fewer and larger sets are cheaper. The windows are the fewest sets possible: a
coalition of one client needs R − 2 sets that contain it, and a set contains R − 2 clients.
For one shard and one colluder the windows always pass. Let c be the colluder. The windows that contain c end at
c, c+1, …, c+R−3, and the client right after its window is the first at which each of them is not zero: triangular.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from dresfl.errors import InfeasiblePlan, UsageError

from .certificate import checked_size, points_of
from .codewords import Integers, codeword_values
from .covers import certified_sets, check_seeds
from .mask_family import MaskFamily

MOST_SEEDS = 1024  # that one client holds
_MOST_COALITIONS = 20_000


@lru_cache(maxsize=64)
def zero_sum_family(
    moduli: tuple[int, ...], num_clients: int, num_shards: int, max_colluders: int, threshold: int
) -> MaskFamily:
    """The certified mask family of these numbers; every party derives the same. The module says how.

    Raises InfeasiblePlan if there is none within the limits.

    >>> zero_sum_family((101, 103), num_clients=5, num_shards=1, max_colluders=1, threshold=4).sets
    ((0, 1), (1, 2), (2, 3), (3, 4), (0, 4))
    """
    setting = f"{num_clients} clients, {num_shards} shards, {max_colluders} colluders, threshold {threshold}"
    _check(moduli, num_clients, num_shards, max_colluders, threshold, setting)
    size = checked_size(max_colluders, threshold)
    data_points, client_points = points_of(num_clients, num_shards, max_colluders)

    def words(primes: Sequence[int], sets: Sequence[Sequence[int]]) -> Integers:
        return codeword_values(primes, sets, data_points, client_points)

    sets = certified_sets(moduli, num_clients, threshold - 2, size, words, MOST_SEEDS, setting)
    return MaskFamily(num_clients, threshold, max_colluders, sets)


def _check(
    moduli: tuple[int, ...], num_clients: int, num_shards: int, max_colluders: int, threshold: int, setting: str
) -> None:
    if threshold < 2:
        raise InfeasiblePlan(
            f"a threshold of {threshold} leaves nothing to blind: one answer is the sum",
            "use at least one colluder or a network with a square layer",
        )
    if threshold > num_clients or threshold < num_shards + max_colluders:
        raise InfeasiblePlan(
            f"no mask family for {setting}: the threshold must lie between shards + colluders "
            f"({num_shards + max_colluders}) and clients ({num_clients})",
            "use the code's own recovery threshold, and at least as many clients",
        )
    points = num_clients + num_shards + max_colluders
    if not moduli or min(moduli) <= points:
        raise UsageError(
            f"modulus {min(moduli, default=0)} has no room for {points} distinct points",
            "choose moduli above the number of clients + shards + colluders",
        )
    size = checked_size(max_colluders, threshold)
    coalitions = math.comb(num_clients, size)
    if coalitions > _MOST_COALITIONS:
        raise InfeasiblePlan(
            f"{setting}: {coalitions} coalitions would have to be checked, at most {_MOST_COALITIONS} can be",
            "allow for fewer colluders, or use fewer clients",
        )
    # each coalition needs R − 1 − t sets, a set serves so many coalitions, and N − R + 2 clients hold its seed
    uses = coalitions * (threshold - 1 - size) * (num_clients - threshold + 2)
    check_seeds(-(-uses // (math.comb(threshold - 2, size) * num_clients)), MOST_SEEDS, setting)
