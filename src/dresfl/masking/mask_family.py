"""A mask family: which clients hold which seeds, and who makes each of them."""

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import final

from dresfl.errors import UsageError


@final
@dataclass(frozen=True)
class MaskFamily:
    """S sets of threshold − 2 clients each. Seed s is held by exactly the clients outside set s.

    `zero_sum_family` makes families that are certified; `certificate.certify` checks any other.

    >>> family = MaskFamily(num_clients=4, threshold=3, max_colluders=1, sets=((0,), (1,), (2,), (3,)))
    >>> family.held_by(2), family.holders(0), family.dealer(0)
    ((0, 1, 3), (1, 2, 3), 1)
    """

    num_clients: int
    threshold: int
    max_colluders: int
    sets: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not 2 <= self.threshold <= self.num_clients:
            raise UsageError(f"a family's threshold lies in 2..{self.num_clients}, not {self.threshold}")
        clients = range(self.num_clients)
        for members in self.sets:
            ascending = all(a < b for a, b in itertools.pairwise(members))
            inside = all(client in clients for client in members)
            if len(members) != self.threshold - 2 or not ascending or not inside:
                raise UsageError(f"{members} is not a set of {self.threshold - 2} of clients 0..{self.num_clients - 1}")
        if not self.sets or len(set(self.sets)) != len(self.sets):
            raise UsageError("the sets of a family are distinct, and there is at least one")

    @cached_property
    def _outside(self) -> list[set[int]]:
        return [set(range(self.num_clients)).difference(members) for members in self.sets]

    @cached_property
    def _held(self) -> tuple[tuple[int, ...], ...]:
        outside = self._outside
        return tuple(tuple(s for s, holders in enumerate(outside) if j in holders) for j in range(self.num_clients))

    @cached_property
    def _dealers(self) -> tuple[int, ...]:
        outside, dealt = self._outside, [0] * self.num_clients
        dealers = []
        for s in range(len(self.sets)):
            holders = [
                x % self.num_clients for x in range(s, s + self.num_clients) if x % self.num_clients in outside[s]
            ]
            dealer = min(holders, key=dealt.__getitem__)  # the first of the fewest
            dealt[dealer] += 1
            dealers.append(dealer)
        return tuple(dealers)

    @cached_property
    def _dealt(self) -> tuple[tuple[int, ...], ...]:
        dealt: list[list[int]] = [[] for _ in range(self.num_clients)]
        for s, dealer in enumerate(self._dealers):
            dealt[dealer].append(s)
        return tuple(map(tuple, dealt))

    def holders(self, s: int) -> tuple[int, ...]:
        """The clients that hold seed s, ascending."""
        return tuple(sorted(self._outside[s]))

    def held_by(self, client: int) -> tuple[int, ...]:
        """The seeds that a client holds, ascending."""
        return self._held[client]

    def dealer(self, s: int) -> int:
        """The client that makes seed s: of its holders, looked at in the order s, s + 1, … modulo N, the first of those
        that deal the fewest of the seeds before s.
        """
        return self._dealers[s]

    def dealt_by(self, client: int) -> tuple[int, ...]:
        """The seeds that a client makes, ascending."""
        return self._dealt[client]
