"""Which primes a residue system uses."""

import math
from collections.abc import Sequence
from functools import lru_cache

from dresfl.errors import FieldError
from dresfl.kernels import SLACK

HEADROOM_BITS = 20

# Three bytes hold a residue; and 2^24 still leaves 127 exact products of two residues in float64.
LARGEST_MODULUS = 2**24
_SMALLEST_LIMIT = 2**22


@lru_cache(maxsize=4096)
def is_prime(n: int) -> bool:
    """Trial division: moduli have at most 24 bits."""
    return n >= 2 and all(n % d for d in range(2, math.isqrt(n) + 1))


def modulus_limit(inner_length: int) -> int:
    """The largest modulus whose symmetric residues multiply exactly over `inner_length` terms in float64.

    p ≤ 2·sqrt(2^53 / n), kept between 2^22 and 2^24; beyond that, sums are split rather than primes shrunk.

    >>> modulus_limit(64) == 2**24, modulus_limit(784) < 2**22.7, modulus_limit(10**6) == 2**22
    (True, True, True)
    """
    widest = int(2 * (math.isqrt((2**53 - 2**25) // max(1, inner_length)) - SLACK - 1))
    return max(_SMALLEST_LIMIT, min(LARGEST_MODULUS, widest))


@lru_cache(maxsize=256)  # every session asks, and a federation makes many
def choose_moduli(needed_bits: float, *, more_than: int, limit: int = LARGEST_MODULUS) -> tuple[int, ...]:
    """The fewest primes below `limit` that hold `needed_bits` and the headroom, ascending.

    Every prime exceeds `more_than` (the number of evaluation points), so that all points stay distinct.
    The largest comes last: as top mixed-radix digit it is the headroom alarm.

    >>> moduli = choose_moduli(180, more_than=22)
    >>> math.prod(moduli[:-1]).bit_length() > 180 and list(moduli) == sorted(moduli)
    True
    """
    chosen: list[int] = []
    candidate = limit
    while num_value_moduli(chosen, needed_bits) is None:
        candidate -= 1
        if candidate <= max(2, more_than):
            raise FieldError(
                f"the primes between {more_than} and {limit} hold {math.log2(math.prod(chosen)):.0f} bits; "
                f"{needed_bits:.0f} bits and {HEADROOM_BITS} of headroom are needed",
                "use fewer weight_bits or input_bits, a smaller batch, or fewer square layers",
            )
        if is_prime(candidate):
            chosen.append(candidate)
    return tuple(sorted(chosen))


def num_value_moduli(moduli: Sequence[int], needed_bits: float) -> int | None:
    """How many of the smaller moduli hold ±2^needed_bits, if the rest leave the headroom; else None."""
    ordered = sorted(moduli)
    spare = 0
    while spare < len(ordered) and math.prod(ordered[len(ordered) - spare :]) < 2**HEADROOM_BITS:
        spare += 1
    kept = len(ordered) - spare
    enough = kept > 0 and math.log2(math.prod(ordered[:kept])) >= needed_bits + 1
    return kept if enough else None
