"""A mask family of the open mode: the sets of clients that lack the seeds of zero-sum masks."""

from dataclasses import dataclass
from functools import cached_property
from typing import final

from dresfl.errors import UsageError

from .seed_sets import SeedSets


@final
@dataclass(frozen=True)
class MaskFamily:
    """S sets of threshold − 2 clients each. Seed s is held by exactly the clients outside set s.

    `zero_sum_family` makes families that are certified; `certificate.certify` checks any other.

    >>> family = MaskFamily(num_clients=4, threshold=3, max_colluders=1, sets=((0,), (1,), (2,), (3,)))
    >>> family.seed_sets.held_by(2)
    (0, 1, 3)
    """

    num_clients: int
    threshold: int
    max_colluders: int
    sets: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not 2 <= self.threshold <= self.num_clients:
            raise UsageError(f"a family's threshold lies in 2..{self.num_clients}, not {self.threshold}")
        for members in self.sets:
            if len(members) != self.threshold - 2:
                raise UsageError(f"{members} is not a set of {self.threshold - 2} of clients 0..{self.num_clients - 1}")
        if not self.sets or len(set(self.sets)) != len(self.sets):
            raise UsageError("the sets of a family are distinct, and there is at least one")
        _ = self.seed_sets  # checks the members

    @cached_property
    def seed_sets(self) -> SeedSets:
        """Who holds and who makes the family's seeds."""
        return SeedSets(self.num_clients, self.sets)
