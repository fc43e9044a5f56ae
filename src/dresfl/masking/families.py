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
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dresfl.errors import InfeasiblePlan, UsageError

from .certificate import checked_size, coalitions_of, membership, missing_ranks, points_of
from .codewords import Integers, codeword_values
from .mask_family import MaskFamily

MOST_SEEDS = 1024  # that one client holds
_MOST_COALITIONS = 20_000
_PASSES = 64


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
    cover = _Cover(num_clients, threshold, size)
    if size == 1:
        cover.add_windows()
    points = points_of(num_clients, num_shards, max_colluders)
    failing, coalitions = list(moduli), np.arange(len(cover.coalitions))  # what passed once cannot fail later
    for passes in range(_PASSES):
        added = cover.fill()
        _check_seeds(cover.most_held(), setting)
        if passes and not added:
            break  # nor would any later pass
        missing = missing_ranks(  # step 4
            failing,
            codeword_values(failing, cover.sets, *points),
            membership(cover.sets, num_clients),
            cover.coalitions[coalitions],
            threshold,
        )
        if not missing.any():
            return MaskFamily(num_clients, threshold, max_colluders, tuple(cover.sets))
        cover.need[coalitions] = missing.max(0)  # step 5
        failing = [p for p, lacks in zip(failing, missing, strict=True) if lacks.any()]
        coalitions = coalitions[missing.any(0)]
    raise InfeasiblePlan(
        f"no mask family was found for {setting}: modulo {failing[0]} some coalition would see too much",
        "use larger primes, more clients, or fewer shards or colluders",
    )


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
    _check_seeds(-(-uses // (math.comb(threshold - 2, size) * num_clients)), setting)


def _check_seeds(seeds: int, setting: str) -> None:
    if seeds > MOST_SEEDS:
        raise InfeasiblePlan(
            f"{setting}: a client would hold {seeds} seeds or more and expand them in every round; at most "
            f"{MOST_SEEDS} are supported",
            "allow for fewer colluders, use fewer clients, or a higher threshold (more shards or square layers)",
        )


class _Cover:
    """The family while it grows: its sets, and how many more each coalition needs."""

    def __init__(self, num_clients: int, threshold: int, size: int) -> None:
        self.num_clients, self.width, self.size = num_clients, threshold - 2, size
        self.coalitions = coalitions_of(num_clients, size)
        self.need: Integers = np.full(len(self.coalitions), threshold - 1 - size)
        self.sets: list[tuple[int, ...]] = []
        self._known: set[tuple[int, ...]] = set()
        self._uses: Integers = np.zeros(num_clients, dtype=np.int64)  # how many sets each client is in
        self._contains: NDArray[np.bool_] = membership(self.coalitions.tolist(), num_clients).T.copy()  # (N,C)
        self._numbers: Integers = self.coalitions.sum(1)

    def most_held(self) -> int:
        """The most seeds that any client holds."""
        return len(self.sets) - int(self._uses.min())

    def add_windows(self) -> None:
        """Step 2."""
        for s in range(self.num_clients):
            self._append(tuple(sorted((s + i) % self.num_clients for i in range(self.width))))
        self.need[:] = 0

    def _append(self, members: tuple[int, ...]) -> None:
        self.sets.append(members)
        self._known.add(members)
        self._uses[list(members)] += 1

    def fill(self) -> int:
        """Step 3; returns how many sets it appended."""
        before = len(self.sets)
        while self.need.any():
            first = int(self.need.argmax())
            chosen = self.coalitions[first].tolist()
            inside = self._contains[chosen].sum(0, dtype=np.int64)  # (C,): how many of its clients are chosen
            numbers = np.array(chosen, dtype=np.int64) @ self._contains[chosen]  # (C,): the sum of their numbers
            while len(chosen) < self.width:
                client = self._next(chosen, inside, numbers)
                if client is None:
                    break
                chosen.append(client)
                inside += self._contains[client]
                numbers += client * self._contains[client]
            members = tuple(sorted(chosen))
            if len(members) < self.width or members in self._known:
                self.need[first] = 0
                continue
            self._append(members)
            self.need[(inside == self.size) & (self.need > 0)] -= 1
        return len(self.sets) - before

    def _next(self, chosen: list[int], inside: Integers, numbers: Integers) -> int | None:
        """Step 3b. A coalition that lacks one client lacks the one whose number is missing in the sum."""
        lacking = np.nonzero((inside == self.size - 1) & (self.need > 0))[0]
        missing = (self._numbers - numbers)[lacking]
        gains = np.zeros(self.num_clients, dtype=np.int64)
        np.add.at(gains, missing, self.need[lacking])
        last = len(chosen) == self.width - 1
        allowed = [x for x in range(self.num_clients) if x not in chosen]
        if last:
            allowed = [x for x in allowed if tuple(sorted([*chosen, x])) not in self._known]
        return min(allowed, key=lambda x: (-gains[x], self._uses[x], x), default=None)
