"""Which clients hold which seeds, and who makes each of them: for seeds of any purpose, in both modes."""

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import final

from dresfl.errors import UsageError


@final
@dataclass(frozen=True)
class SeedSets:
    """Seed s is held by exactly the clients outside set s. Sets have any size; all clients hold the seed of ∅.

    >>> seeds = SeedSets(num_clients=4, sets=((0,), (1,), (2, 3), ()))
    >>> seeds.held_by(2), seeds.holders(0), seeds.dealer(0)
    ((0, 1, 3), (1, 2, 3), 1)
    """

    num_clients: int
    sets: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for members in self.sets:
            ascending = all(a < b for a, b in itertools.pairwise(members))
            inside = not members or (members[0] >= 0 and members[-1] < self.num_clients)
            if not ascending or not inside or len(members) >= self.num_clients:
                raise UsageError(
                    f"{members} is not a set of some of clients 0..{self.num_clients - 1}, ascending: "
                    "at least one client is outside and holds the seed"
                )

    @cached_property
    def _outside(self) -> list[set[int]]:
        return [set(range(self.num_clients)).difference(members) for members in self.sets]

    @cached_property
    def _held(self) -> tuple[tuple[int, ...], ...]:
        outside = self._outside
        return tuple(tuple(s for s, holders in enumerate(outside) if j in holders) for j in range(self.num_clients))

    @cached_property
    def _dealers(self) -> tuple[int, ...]:
        outside, dealt, dealers, common = self._outside, [0] * self.num_clients, [], 0
        for s, members in enumerate(self.sets):
            if members:
                turn = (x % self.num_clients for x in range(s, s + self.num_clients))
                dealer = min((x for x in turn if x in outside[s]), key=dealt.__getitem__)  # the first of the fewest
                dealt[dealer] += 1
            else:
                dealer, common = common % self.num_clients, common + 1
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
        """The client that makes seed s.

        Of the seed's holders, looked at in the order s, s + 1, … modulo N, it is the first of those that deal the
        fewest of the seeds before s. Seeds of ∅ do not count there: the i-th of them is made by client i modulo N.
        """
        return self._dealers[s]

    def dealt_by(self, client: int) -> tuple[int, ...]:
        """The seeds that a client makes, ascending."""
        return self._dealt[client]
