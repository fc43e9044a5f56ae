"""Residues come back as the integers they stand for, correctly rounded, or not at all."""

import itertools
import math
import random

import flint
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.errors import HeadroomAlarm
from dresfl.field import ResidueField, choose_moduli, modulus_limit, num_value_moduli
from dresfl.kernels import SLACK


def system(bits, limit):
    moduli = choose_moduli(bits, more_than=22, limit=limit)
    return ResidueField(moduli, num_value_moduli(moduli, bits))


def odd_primes(low, high):
    return tuple(p for p in range(low, high) if flint.fmpz(p).is_prime())


WIDE = ResidueField(odd_primes(2**24 - 580, 2**24), 32)
FIELDS = [
    ResidueField((3, 5, 7, 1048583), 3),
    ResidueField((101, 103, 107, 1048583), 3),
    system(60, 2**24),
    system(180, modulus_limit(784)),
    system(180, 2**24),
    ResidueField(odd_primes(23, 256), 43),
    WIDE,
]
LARGE = [field for field in FIELDS if field.value_bound > 2**180]


def residues(field, integers):
    """Symmetric residues (M,n) of Python integers, some of them loose by up to SLACK."""
    rng = random.Random(str(integers))

    def one(x, p):
        r = (x + p // 2) % p - p // 2
        loose = r - p if r > 0 else r + p
        return rng.choice((r, loose)) if abs(loose) <= p / 2 + SLACK else r

    return torch.tensor([[one(x, p) for x in integers] for p in field.moduli], dtype=torch.float64)


def adversarial(bits):
    """Integers up to 2^bits at and around ties, powers of two and limb borders."""
    found = {0, 1, 2, 3, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 3, 2**54 + 2, 2**54 + 6}
    for k in range(1, bits):
        found |= {2**k - 1, 2**k, 2**k + 1}
        for mantissa in (2**53, 2**53 + 2, 2**54 - 2, 2**53 + 2**24, 2**54 - 2**20):
            tie = (mantissa + 1) << max(0, k - 54)  # half-way between two float64 values
            found |= {tie, tie - 1, tie + 1}
            found |= {tie + s * 2**j for s in (1, -1) for j in range(0, max(0, k - 54), 17)}
    return sorted({s * x for x in found if x < 2**bits for s in (1, -1)})


wild = st.one_of(
    st.integers(-(2**180), 2**180),
    st.builds(
        lambda mantissa, shift, delta, sign: sign * ((mantissa << shift) + delta),
        st.integers(2**53, 2**54 - 1),
        st.integers(0, 125),
        st.integers(-3, 3) | st.integers(0, 120).map(lambda j: 2**j) | st.integers(0, 120).map(lambda j: -(2**j)),
        st.sampled_from([1, -1]),
    ),
)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{len(field.moduli)}x{field.moduli[-1].bit_length()}bit")
def test_lift_rounds_correctly_where_it_is_hard(field):
    bound = field.value_bound
    edge = {s * (bound - d) for d in range(min(bound, 40)) for s in (1, -1)}
    integers = sorted(edge | {x for x in adversarial(min(bound.bit_length(), 260)) if abs(x) <= bound})
    elements = residues(field, integers)
    assert field.lift(elements).tolist() == [float(x) for x in integers]
    assert field.lift_exact(elements) == integers


@given(st.lists(wild, min_size=1, max_size=30))
def test_lift_is_the_same_float_in_every_system(integers):
    expected = [float(x) for x in integers]
    for field in LARGE:
        elements = residues(field, integers)
        assert field.lift(elements).tolist() == expected
        assert field.lift_exact(elements) == integers


@given(st.integers(-WIDE.value_bound, WIDE.value_bound))
def test_lift_of_the_widest_system(integer):
    assert WIDE.lift(residues(WIDE, [integer])).tolist() == [float(integer)]


def test_lift_keeps_shape_and_input():
    field = FIELDS[3]
    integers = [(-(3**i)) * 2**40 for i in range(24)]
    elements = residues(field, integers).view(-1, 2, 3, 4)
    before = elements.clone()
    assert field.lift(elements).equal(torch.tensor([float(x) for x in integers], dtype=torch.float64).view(2, 3, 4))
    assert elements.equal(before)
    assert field.lift(elements[:, :0]).shape == (0, 3, 4)


def test_lift_of_one_number():
    field = FIELDS[3]
    assert field.lift_exact(field.embed(torch.tensor(-5))) == [-5]
    assert field.lift(field.embed(torch.tensor(-5))).tolist() == -5.0


@pytest.mark.parametrize("field", FIELDS[:5])
def test_digits_are_the_mixed_radix_expansion(field):
    rng = random.Random(1)
    integers = [rng.randint(-(field.modulus // 2), field.modulus // 2) for _ in range(50)]
    digits = field.digits(residues(field, integers)).to(torch.int64)
    for p, row in zip(field.moduli, digits, strict=True):
        assert row.abs().max() <= (p - 1) // 2
    radices = [math.prod(field.moduli[:i]) for i in range(len(field.moduli))]
    assert [sum(d * r for d, r in zip(row, radices, strict=True)) for row in digits.T.tolist()] == integers


@pytest.mark.parametrize("field", FIELDS)
def test_value_bound_is_the_last_value_lifted(field):
    bound = field.value_bound
    assert field.lift(residues(field, [bound, -bound])).tolist() == [float(bound), float(-bound)]
    for beyond in (bound + 1, -bound - 1, field.modulus // 2, -(field.modulus // 2), 2 * bound + 1):
        with pytest.raises(HeadroomAlarm, match="1 of 3 decoded values"):
            field.lift(residues(field, [0, beyond, bound]))


def test_without_headroom_every_value_is_lifted():
    field = ResidueField((3, 5, 7), 3)
    integers = list(range(-52, 53))
    assert field.value_bound == 52
    assert field.lift(residues(field, integers)).tolist() == integers
    assert field.lift_exact(residues(field, [53, 105])) == [-52, 0]


@pytest.mark.parametrize(("primes", "values"), [((3, 5, 7), 2), ((5, 7, 11, 13), 2), ((23, 29, 31), 2), ((11, 13), 1)])
def test_every_single_changed_residue_is_noticed(primes, values):
    field = ResidueField(primes, values)
    integers = list(range(-field.value_bound, field.value_bound + 1))
    honest = residues(field, integers)
    for channel, p in enumerate(primes):
        for delta in range(1, p):
            altered = honest.clone()
            altered[channel] = (altered[channel] + delta + p // 2) % p - p // 2
            with pytest.raises(HeadroomAlarm) as alarm:
                field.lift(altered)
            assert str(alarm.value).startswith(f"{len(integers)} of {len(integers)} ")


def test_one_changed_residue_of_one_value_raises_the_alarm():
    field = ResidueField((3, 5, 7), 2)
    for integer, (channel, p) in itertools.product(range(-7, 8), enumerate(field.moduli)):
        for delta in range(1, p):
            altered = residues(field, [integer])
            altered[channel] = (altered[channel] + delta + p // 2) % p - p // 2
            with pytest.raises(HeadroomAlarm):
                field.lift(altered)


@given(data=st.data(), field=st.sampled_from(FIELDS))
def test_a_changed_residue_of_any_system_is_noticed(data, field):
    edges = st.sampled_from([0, field.value_bound, -field.value_bound])
    integer = data.draw(st.integers(-field.value_bound, field.value_bound) | edges)
    channel = data.draw(st.integers(0, len(field.moduli) - 1))
    p = field.moduli[channel]
    delta = data.draw(st.integers(1, p - 1))
    altered = residues(field, [integer])
    altered[channel] = (altered[channel] + delta + p // 2) % p - p // 2
    with pytest.raises(HeadroomAlarm):
        field.lift(altered)
