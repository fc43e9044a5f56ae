"""Sets of clients that contain every coalition as often as needed: greedy, and the same for every party that asks.

Notation: N clients 0 … N−1, coalitions of t clients in lexicographic order, sets of w clients. `families` numbers the
steps.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dresfl.errors import InfeasiblePlan

from .certificate import coalitions_of, membership, missing_ranks
from .codewords import Integers

_PASSES = 64

# (moduli, sets) -> (M,S,N): the words that the seeds of these sets multiply, at all clients
Words = Callable[[Sequence[int], Sequence[Sequence[int]]], Integers]


def certified_sets(
    moduli: Sequence[int], num_clients: int, width: int, size: int, words: Words, most_seeds: int, setting: str
) -> tuple[tuple[int, ...], ...]:
    """Sets of `width` clients such that for every coalition C of `size` clients the words of the sets that contain C
    have rank width + 1 − size modulo every prime.

    Steps 1 to 5 of `families`; InfeasiblePlan with the setting's name if they find none.
    """
    cover = Cover(num_clients, width, size, width + 1 - size)
    if size == 1:
        cover.add_windows()
    failing, coalitions = list(moduli), np.arange(len(cover.coalitions))  # what passed once cannot fail later
    for passes in range(_PASSES):
        added = cover.fill()
        check_seeds(cover.most_held(), most_seeds, setting)
        if passes and not added:
            break  # nor would any later pass
        members, chosen = membership(cover.sets, num_clients), cover.coalitions[coalitions]
        missing = missing_ranks(failing, words(failing, cover.sets), members, chosen, width + 2)  # step 4
        if not missing.any():
            return tuple(cover.sets)
        cover.need[coalitions] = missing.max(0)  # step 5
        failing = [p for p, lacks in zip(failing, missing, strict=True) if lacks.any()]
        coalitions = coalitions[missing.any(0)]
    raise InfeasiblePlan(
        f"no mask family was found for {setting}: modulo {failing[0]} some coalition would see too much",
        "use larger primes, more clients, or fewer shards or colluders",
    )


def check_seeds(seeds: int, most: int, setting: str) -> None:
    """Refuse a family of which a client would hold more seeds than `most`."""
    if seeds > most:
        raise InfeasiblePlan(
            f"{setting}: a client would hold {seeds} seeds or more and expand them in every round; at most "
            f"{most} are supported",
            "allow for fewer colluders, use fewer clients, or a higher threshold (more shards or square layers)",
        )


class Cover:
    """A family while it grows: its sets, and how many more of them each coalition needs to lie in."""

    def __init__(self, num_clients: int, width: int, size: int, need: int) -> None:
        self.num_clients, self.width, self.size = num_clients, width, size
        self.coalitions = coalitions_of(num_clients, size)
        self.need: Integers = np.full(len(self.coalitions), need)
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
