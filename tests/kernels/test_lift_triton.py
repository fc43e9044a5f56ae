"""One pass over the answers gives the float64 values `ResidueField.lift` gives, bit for bit, and its alarms.

Without a GPU, Triton's interpreter runs the kernel.
"""

import math
import os
import random

import pytest
import torch

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from dresfl.errors import HeadroomAlarm  # noqa: E402
from dresfl.field import ResidueField, choose_moduli, modulus_limit, num_value_moduli  # noqa: E402
from dresfl.kernels import SLACK  # noqa: E402
from dresfl.kernels.lift_triton import decode_lift, lift_tables  # noqa: E402

DEVICE = torch.device("cuda" if CUDA else "cpu")
SMALL_PRIMES = tuple(p for p in range(23, 256) if all(p % d for d in range(2, 16)))


def large_primes(count):
    return choose_moduli(24 * (count - 2), more_than=22)[-count:]


def system(bits, limit):
    moduli = choose_moduli(bits, more_than=22, limit=limit)
    return ResidueField(moduli, num_value_moduli(moduli, bits))


NARROW = [
    ResidueField(SMALL_PRIMES[-30:], 27),
    ResidueField(SMALL_PRIMES, 43),
    ResidueField((101, 103, 107, 109), 3),
    ResidueField((101, 103, 107), 3),
    ResidueField((3, 5, 7, 11, 13, 17, 19, 23), 5),
]
WIDE = [
    system(180, modulus_limit(784)),
    system(60, 2**24),
    ResidueField(large_primes(24), 23),
    ResidueField((101, 103, 107, 1048583), 3),
]
FIELDS = NARROW + WIDE


def name(field):
    return f"{len(field.moduli)}x{field.moduli[-1].bit_length()}bit"


def symmetric(x, p):
    return (x + p // 2) % p - p // 2


def made_answers(field, integers, num_answers, seed=1):
    """Replies (M,R,P) and a decoder (M,R) that decode to the integers; int8 where it holds the residues."""
    rng = random.Random(seed)
    dtype = torch.int8 if field.moduli[-1] < 256 else torch.float64
    generator = torch.Generator().manual_seed(seed)
    answers = torch.empty((len(field.moduli), num_answers, len(integers)), dtype=dtype)
    decoder = torch.empty((len(field.moduli), num_answers), dtype=torch.float64)
    for m, p in enumerate(field.moduli):
        coefficients = [rng.choice((p // 2, -(p // 2), rng.randint(1, p // 2))) for _ in range(num_answers)]
        others = torch.randint(-(p // 2), p // 2 + 1, (num_answers - 1, len(integers)), generator=generator)
        sums = (torch.tensor(coefficients[:-1], dtype=torch.int64).view(-1, 1) * others).sum(0).tolist()
        inverse = pow(coefficients[-1], -1, p)
        last = [symmetric((x - s) * inverse, p) for x, s in zip(integers, sums, strict=True)]
        answers[m, :-1], answers[m, -1] = others, torch.tensor(last)
        decoder[m] = torch.tensor(coefficients, dtype=torch.float64)
    return answers, decoder


def decoded(field, answers, decoder):
    tables = lift_tables(field.moduli, field.num_value_moduli)
    values, alarm = decode_lift(answers.to(DEVICE), decoder.to(DEVICE), tables)
    assert values.dtype == torch.float64
    assert alarm.dtype == torch.int32
    return values.cpu(), int(alarm)


def assert_same_bits(values, expected):
    assert values.view(torch.int64).equal(expected.view(torch.int64))


def hard_to_round(bound, count, seed=0):
    """Integers up to the bound at and around ties, powers of two and limb borders, both signs."""
    rng = random.Random(seed)
    found = [0, 1, -1, bound, -bound, bound - 1, 1 - bound]
    while len(found) < count:
        shift = rng.randrange(max(1, bound.bit_length() - 53))
        mantissa = rng.choice((2**53, 2**53 + 2, 2**54 - 2, rng.randrange(2**53, 2**54)))
        tie = (2 * mantissa + 1) << shift >> 1  # half-way between two float64 values, for shift > 0
        power = 2 ** rng.randrange(bound.bit_length())
        below = rng.choice((0, 1, 2 ** rng.randrange(1 + shift), rng.randrange(1 + bound)))
        x = rng.choice((tie, tie, power, rng.randrange(1 + bound) >> rng.randrange(bound.bit_length())))
        x = rng.choice((1, -1)) * (x + rng.choice((1, -1)) * below)
        if abs(x) <= bound:
            found.append(x)
    return found


@pytest.mark.parametrize("field", FIELDS, ids=name)
def test_values_are_those_of_lift(field):
    integers = hard_to_round(field.value_bound, 700)  # more than one block, not a multiple of it
    answers, decoder = made_answers(field, integers, 3)
    values, alarm = decoded(field, answers, decoder)
    assert alarm == 0
    assert_same_bits(values, torch.tensor([float(x) for x in integers], dtype=torch.float64))
    residues = field.matmul(decoder.unsqueeze(1), answers.to(torch.float64))[:, 0]
    assert field.lift_exact(residues) == integers
    assert_same_bits(values, field.lift(residues))


@pytest.mark.parametrize("num_answers", [1, 9, 13, 25, 100])
@pytest.mark.parametrize("field", [NARROW[2], WIDE[1]], ids=name)
def test_any_number_of_answers(field, num_answers):
    integers = hard_to_round(field.value_bound, 40)
    answers, decoder = made_answers(field, integers, num_answers)
    values, alarm = decoded(field, answers, decoder)
    assert alarm == 0
    assert_same_bits(values, torch.tensor([float(x) for x in integers], dtype=torch.float64))


@pytest.mark.parametrize("field", [FIELDS[0], FIELDS[4], FIELDS[5], FIELDS[8]], ids=name)
def test_alarm_counts_the_values_out_of_range(field):
    bound, half = field.value_bound, field.modulus // 2
    beyond = [bound + 1, -bound - 1, 2 * bound + 1, -2 * bound - 1, half, -half, half - 1, (half + bound) // 2]
    for size in (30, 520):  # within one block, and with a second one that overlaps the first
        integers = [bound, -bound, 0] * (size // 3)
        answers, decoder = made_answers(field, integers, 2)
        assert decoded(field, answers, decoder)[1] == 0
        places = random.Random(size).sample(range(len(integers)), len(beyond))
        places[-1] = len(integers) - 1
        for place, x in zip(places, beyond, strict=True):
            integers[place] = x
        answers, decoder = made_answers(field, integers, 2)
        values, alarm = decoded(field, answers, decoder)
        assert alarm == len(set(places))
        kept = [i for i in range(len(integers)) if i not in places]
        assert_same_bits(values[kept], torch.tensor([float(integers[i]) for i in kept], dtype=torch.float64))


@pytest.mark.parametrize("field", [FIELDS[0], FIELDS[4], FIELDS[5]], ids=name)
def test_every_altered_residue_is_noticed(field):
    rng = random.Random(3)
    bound = field.value_bound
    integers, places = [], []
    for m in range(len(field.moduli)):
        for x in (0, bound, -bound, rng.randint(-bound, bound)):
            places.append((m, len(integers)))
            integers += [x, x]  # the second one stays as it is
    answers, decoder = made_answers(field, integers, 2)
    for m, place in places:
        p = field.moduli[m]
        answers[m, 0, place] = symmetric(int(answers[m, 0, place]) + rng.randrange(1, p), p)
    _, alarm = decoded(field, answers, decoder)
    assert alarm == len(places)
    with pytest.raises(HeadroomAlarm, match=f"^{len(places)} of {len(integers)} "):
        field.lift(field.matmul(decoder.unsqueeze(1), answers.to(torch.float64))[:, 0])


@pytest.mark.parametrize("field", [NARROW[0], WIDE[0]], ids=name)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_there_are(field, sign):
    num_answers = 100
    halves = torch.tensor([p // 2 for p in field.moduli], dtype=torch.float64)
    if field.moduli[-1] >= 256:
        halves += SLACK  # float64 residues may be a little loose
    answers = (sign * halves).view(-1, 1, 1).repeat(1, num_answers, 20)
    decoder = halves.view(-1, 1).expand(-1, num_answers)
    sums = [sign * num_answers * int(h) ** 2 for h in halves]
    digits, radix, x = list(sums), 1, 0
    for i, p in enumerate(field.moduli):  # Garner, one number
        d = symmetric((digits[i] - x) * pow(radix, -1, p), p)
        x, radix = x + d * radix, radix * p
    values, alarm = decoded(field, answers.to(torch.int8 if field.moduli[-1] < 256 else torch.float64), decoder)
    if abs(x) <= field.value_bound:
        assert_same_bits(values, torch.full((20,), float(x), dtype=torch.float64))
    assert alarm == (0 if abs(x) <= field.value_bound else 20)


def test_rows_may_be_padded():
    field = NARROW[2]
    integers = hard_to_round(field.value_bound, 50)
    answers, decoder = made_answers(field, integers, 3)
    padded = torch.full((len(field.moduli) + 2, 5, 64), 99, dtype=torch.int8)
    padded[1:-1, 1:4, 7:57] = answers
    values, alarm = decoded(field, padded[1:-1, 1:4, 7:57], decoder)
    assert alarm == 0
    assert values.tolist() == [float(x) for x in integers]


def test_no_coordinates():
    values, alarm = decoded(NARROW[2], torch.empty((4, 3, 0), dtype=torch.int8), torch.ones(4, 3))
    assert values.shape == (0,)
    assert alarm == 0


@pytest.mark.parametrize("field", FIELDS, ids=name)
def test_tables_hold_radices_below_2_24(field):
    tables = lift_tables(field.moduli, field.num_value_moduli)
    assert math.prod(tables.radices) == field.modulus
    assert math.prod(tables.radices[: tables.num_value_radices]) == 2 * field.value_bound + 1
    assert max(tables.radices) < 2**24
    assert len(tables.radices) <= len(field.moduli) // (3 if len(field.moduli) >= 30 else 1) + 1


def test_what_cannot_be_exact_is_refused():
    narrow = lift_tables((101, 103, 107, 109), 3)
    wide = lift_tables(large_primes(4), 3)
    answers = torch.zeros((4, 2, 5), dtype=torch.int8)
    with pytest.raises(ValueError, match="do not fit 4 moduli"):
        decode_lift(answers[:3], torch.ones(3, 2), narrow)
    with pytest.raises(ValueError, match="do not fit 4 moduli"):
        decode_lift(answers, torch.ones(4, 3), narrow)
    with pytest.raises(ValueError, match="int8 or float64"):
        decode_lift(answers.to(torch.int32), torch.ones(4, 2), narrow)
    with pytest.raises(ValueError, match="do not fit int8"):
        decode_lift(answers, torch.ones(4, 2), wide)
    with pytest.raises(ValueError, match="contiguous"):
        decode_lift(answers[:, :, ::2], torch.ones(4, 2), narrow)
    with pytest.raises(ValueError, match="too many to add"):
        decode_lift(torch.zeros((4, 130, 1), dtype=torch.float64), torch.ones(4, 130), wide)
    with pytest.raises(ValueError, match="cannot hold the values"):
        lift_tables((101, 103), 3)
    with pytest.raises(ValueError, match="below"):
        lift_tables((101, 2**24 + 43), 1)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize("field", [NARROW[0], NARROW[1], WIDE[0]], ids=name)
def test_many_coordinates_in_a_graph(field):
    integers = hard_to_round(field.value_bound, 5000)
    answers, decoder = made_answers(field, integers, 9)
    repeats = 40
    tables = lift_tables(field.moduli, field.num_value_moduli)
    static, decoder = answers.repeat(1, 1, repeats).to(DEVICE), decoder.to(DEVICE)
    decode_lift(static, decoder, tables)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, alarm = decode_lift(static, decoder, tables)
    expected = torch.tensor([float(x) for x in integers], dtype=torch.float64).repeat(repeats)
    for altered in (0, 0, 3, 0):
        static.copy_(answers.repeat(1, 1, repeats))
        static[0, 0, :altered] = (static[0, 0, :altered] == 0).to(static.dtype)
        graph.replay()
        assert int(alarm) == altered
        assert_same_bits(values.cpu()[altered:], expected[altered:])
