"""Random factors for checks of many residues at once: uniform in [0, 2^FACTOR_BITS), and how often they miss."""

from fractions import Fraction
from functools import cache

from dresfl.field import FACTOR_BITS

MISSED = Fraction(1, 2**40)  # what a check misses for one prime, it misses with a probability below this


def largest_probability(modulus: int) -> Fraction:
    """q: how probable a residue of a factor is at most.

    >>> largest_probability(2**23 - 15) == Fraction(1, 2**21)
    True
    """
    return Fraction(-(-(2**FACTOR_BITS) // modulus), 2**FACTOR_BITS)


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
