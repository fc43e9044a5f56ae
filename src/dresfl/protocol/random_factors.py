"""Random factors for checks of many residues at once: uniform in [0, 2^FACTOR_BITS), and how often they miss."""

from fractions import Fraction
from functools import cache

from dresfl.field import FACTOR_BITS

_MOST_TRIES = 64  # log2
MISSED = Fraction(1, 2**40)  # what a check misses for one prime, it misses with a probability below this


def largest_probability(modulus: int) -> Fraction:
    """q: how probable a residue of a factor is at most.

    >>> largest_probability(2**23 - 15) == Fraction(1, 2**21)
    True
    """
    return Fraction(-(-(2**FACTOR_BITS) // modulus), 2**FACTOR_BITS)


def coin_choices(num_clients: int) -> int:
    """2^min(N,64): so many sets of coins a coordinator can choose from when it says which clients take part in a check.

    Each client committed to its coin before, so nobody can try more than that; and nobody tries more than 2^64.
    """
    return 1 << min(num_clients, _MOST_TRIES)


@cache
def least_combinations(chances: int, missed_once: Fraction) -> int:
    """The least t for which chances·missed_once^t < 2^−40.

    >>> least_combinations(1, largest_probability(2**23 - 15)), least_combinations(1, largest_probability(23))
    (2, 9)
    """
    missed, count = Fraction(chances), 0
    while missed >= MISSED:
        missed, count = missed * missed_once, count + 1
    return count
