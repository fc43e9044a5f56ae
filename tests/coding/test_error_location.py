"""Errors among the values of polynomials: found where they are, and not found where there are too many."""

import itertools
import random

import flint
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dresfl.coding import locate_errors
from dresfl.errors import UsageError

LARGE = (16777183, 16777199, 16777213)
SMALL = (29, 31, 37)


def evaluate(modulus, coefficients, points):
    """The values of a polynomial, by python-flint."""
    polynomial = flint.nmod_poly(list(coefficients), modulus)
    return [int(polynomial(point)) for point in points]


def lie_on_one(modulus, points, values, threshold):
    """Whether the values are those of a polynomial of degree < threshold: interpolation by python-flint."""
    x = flint.nmod_poly([0, 1], modulus)
    total = flint.nmod_poly([0], modulus)
    for point, value in list(zip(points, values, strict=True))[:threshold]:
        term, below = flint.nmod_poly([int(value) % modulus], modulus), flint.nmod(1, modulus)
        for other in points[:threshold]:
            if other != point:
                term, below = term * (x - other), below * (point - other)
        total += term * flint.nmod_poly([int(1 / below)], modulus)
    return all(int(total(point)) == int(value) % modulus for point, value in zip(points, values, strict=True))


def brute_force(moduli, points, values, threshold, most):
    """The smallest set of positions without which every row lies on a polynomial; None if there is none."""
    for count in range(most + 1):
        for left_out in itertools.combinations(range(len(points)), count):
            kept = [j for j in range(len(points)) if j not in left_out]
            rest = [points[j] for j in kept]
            rows = ((p, [row[j] for j in kept]) for p, of_p in zip(moduli, values, strict=True) for row in of_p)
            if all(lie_on_one(p, rest, row, threshold) for p, row in rows):
                return left_out
    return None


@st.composite
def codewords(draw, most_points=12):
    """Moduli, points, honest values (M,t,n), threshold and the most errors."""
    moduli = draw(st.sampled_from([LARGE, SMALL, SMALL[:1]]))
    threshold, errors = draw(st.integers(1, 5)), draw(st.integers(0, 3))
    count = draw(st.integers(threshold + 2 * errors, max(most_points, threshold + 2 * errors)))
    points = draw(st.lists(st.integers(1, min(moduli) - 1), min_size=count, max_size=count, unique=True))
    seeded = random.Random(draw(st.integers(0, 2**32)))
    rows = draw(st.integers(1, 3))
    values = [
        [evaluate(p, [seeded.randrange(p) for _ in range(threshold)], points) for _ in range(rows)] for p in moduli
    ]
    return moduli, points, np.array(values), threshold, errors


@given(codewords(), st.data())
def test_up_to_the_most_errors_are_all_found(word, data):
    moduli, points, values, threshold, most = word
    assert locate_errors(moduli, points, values, threshold, most) == ()
    wrong = data.draw(st.sets(st.integers(0, len(points) - 1), max_size=most))
    for position in wrong:  # in one place at least; other moduli and rows may or may not have it
        channel = data.draw(st.integers(0, len(moduli) - 1))
        row = data.draw(st.integers(0, values.shape[1] - 1))
        values[channel, row, position] += data.draw(st.integers(1, min(moduli) - 1))
    assert locate_errors(moduli, points, values, threshold, most) == tuple(sorted(wrong))
    assert locate_errors(moduli, points, values - 5 * np.array(moduli)[:, None, None], threshold, most) == tuple(
        sorted(wrong)
    )


@given(codewords(most_points=8), st.data())
def test_any_values_give_what_brute_force_gives(word, data):
    moduli, points, values, threshold, most = word
    moduli, values = moduli[:1], values[:1, :2]
    for _ in range(data.draw(st.integers(0, most + 2))):
        position, row = data.draw(st.integers(0, len(points) - 1)), data.draw(st.integers(0, values.shape[1] - 1))
        values[0, row, position] += data.draw(st.integers(0, moduli[0] - 1))
    expected = brute_force(moduli, points, values.tolist(), threshold, most)
    assert locate_errors(moduli, points, values, threshold, most) == expected


def test_every_pattern_at_a_tiny_prime():
    """p = 7, five points, R = 1, A = 2: all 7^4 words, up to a constant."""
    points = [1, 2, 3, 4, 5]
    for word in itertools.product(range(7), repeat=4):
        values = (0, *word)
        most = max(values.count(value) for value in values)
        found = locate_errors([7], points, [[values]], 1, 2)
        if most >= 3:
            honest = next(value for value in values if values.count(value) == most)
            assert found == tuple(j for j, value in enumerate(values) if value != honest)
        else:
            assert found is None


@pytest.mark.parametrize(("threshold", "errors"), [(9, 495), (500, 250), (960, 20), (1000, 0)])
def test_a_thousand_points(threshold, errors):
    seeded, points = random.Random(threshold), list(range(4, 1004))
    rows = [[evaluate(p, [seeded.randrange(p) for _ in range(threshold)], points)] for p in LARGE[:2]]
    values = np.array(rows)
    wrong = sorted(seeded.sample(range(1000), errors))
    for position in wrong:
        values[seeded.randrange(2), 0, position] += seeded.randrange(1, LARGE[0])
    assert locate_errors(LARGE[:2], points, values, threshold, errors) == tuple(wrong)
    for position in seeded.sample(range(1000), 1000):
        values[0, 0, position] += seeded.randrange(1, LARGE[0])
    assert locate_errors(LARGE[:2], points, values, threshold, min(errors, 60)) is None or threshold == 1000


def test_wrong_arguments_are_refused():
    word = [[[1, 1, 1]]]
    assert locate_errors([7], [1, 2, 3], word, 1, 1) == ()
    for points in ([1, 2, 2], [0, 1, 2], [1, 2, 7]):
        with pytest.raises(UsageError, match="points must"):
            locate_errors([7], points, word, 1, 1)
    with pytest.raises(UsageError, match="3 points do not locate 2 errors"):
        locate_errors([7], [1, 2, 3], word, 1, 2)
    with pytest.raises(UsageError, match="values of shape"):
        locate_errors([7, 11], [1, 2, 3], word, 1, 1)
    with pytest.raises(UsageError, match="primes up to"):
        locate_errors([2**31 - 1], [1, 2, 3], word, 1, 1)
