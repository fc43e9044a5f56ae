"""The moduli are the fewest primes that hold the values and the headroom."""

import itertools
import math

import flint
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import FieldError
from dresfl.field import (
    ResidueField,
    choose_moduli,
    modulus_limit,
    num_value_moduli,
)
from dresfl.field.moduli import HEADROOM_BITS, LARGEST_MODULUS, is_prime
from dresfl.kernels import SLACK, exact_inner_length
from field.primes import LARGE, MIDDLE, TINY


def test_is_prime():
    numbers = [*range(-3, 3000), 2**24 - 3, 2**24 - 1, 4093**2, 4093 * 4091, 4099**2]
    assert [is_prime(n) for n in numbers] == [n > 1 and bool(flint.fmpz(n).is_prime()) for n in numbers]


@given(needed=st.floats(1, 400), more_than=st.integers(2, 5000), inner=st.integers(1, 3000))
def test_choose_moduli(needed, more_than, inner):
    limit = modulus_limit(inner)
    moduli = choose_moduli(needed, more_than=more_than, limit=limit)
    kept = num_value_moduli(moduli, needed)
    assert list(moduli) == sorted(set(moduli))
    assert all(more_than < p < limit and flint.fmpz(p).is_prime() for p in moduli)
    field = ResidueField(moduli, kept)
    assert math.log2(field.value_bound) >= needed - 1e-9
    assert math.prod(moduli[kept:]) >= 2**HEADROOM_BITS
    # without the smallest of these, the largest there are, the bits do not suffice
    assert num_value_moduli(moduli[1:], needed) is None


@pytest.mark.parametrize(("needed", "more_than", "limit"), [(5, 22, 62), (11, 22, 80), (1, 28, 62), (14, 30, 90)])
def test_choose_moduli_takes_the_fewest(needed, more_than, limit):
    moduli = choose_moduli(needed, more_than=more_than, limit=limit)
    available = [p for p in range(more_than + 1, limit) if is_prime(p)]
    for count in range(len(moduli)):
        for fewer in itertools.combinations(available, count):
            assert num_value_moduli(fewer, needed) is None


def test_choose_moduli_has_edges():
    assert choose_moduli(6.5, more_than=4194300, limit=4194320)[0] > 4194300
    with pytest.raises(FieldError, match="headroom"):
        choose_moduli(400, more_than=22, limit=256)
    most = math.log2(math.prod(p for p in range(23, 239) if is_prime(p))) - 1.01  # 239, 241 and 251 are headroom
    assert choose_moduli(most, more_than=22, limit=252)[0] == 23
    for more_than, limit in ((23, 252), (22, 251)):
        with pytest.raises(FieldError, match="headroom"):
            choose_moduli(most, more_than=more_than, limit=limit)


@given(moduli=st.lists(st.sampled_from(TINY + MIDDLE + LARGE), unique=True, max_size=7), needed=st.floats(0, 100))
def test_num_value_moduli(moduli, needed):
    ordered = sorted(moduli)
    kept = num_value_moduli(moduli, needed)

    def headroom(count):
        return math.prod(ordered[count:]) >= 2**HEADROOM_BITS

    most = max((count for count in range(len(ordered) + 1) if headroom(count)), default=0)
    holds = most > 0 and (math.prod(ordered[:most]) - 1) // 2 >= 2**needed
    assert kept == (most if holds else None)


@given(st.integers(1, 10**7))
def test_modulus_limit(inner):
    limit = modulus_limit(inner)
    assert 2**22 <= limit <= LARGEST_MODULUS == 2**24
    bound = (limit - 1) // 2 + 1 + SLACK
    if limit > 2**22:
        assert exact_inner_length(bound, bound) >= inner
    if 2**22 < limit < 2**24:
        assert exact_inner_length(bound + 4, bound + 4) < inner
