"""Any R answers give the result back, and no fewer do: held against polynomials written down independently."""

import math
import random

import flint
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.coding.lagrange import LagrangeCode, lagrange_matrix, recovery_threshold
from dresfl.errors import InfeasiblePlan, TooFewAnswers, UsageError
from dresfl.field import ResidueField
from reference.flint_field import FlintField

FAST = ResidueField((257, 16777199, 16777213), 2)
SLOW = FlintField(2**200 - 75)
FIELDS = [FAST, SLOW, ResidueField((67, 71, 251), 2), FlintField(67)]

plans = st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(1, 5), st.integers(0, 5))  # K, T, d, D
seeds = st.integers(0, 2**32)


def make(field, num_shards, max_colluders, degree, max_dropouts=0):
    num_clients = recovery_threshold(degree, num_shards, max_colluders) + max_dropouts
    return LagrangeCode(field, num_clients, num_shards, max_colluders, degree)


def draw(field, shape, rng):
    """Uniform elements (M,*shape)."""
    if isinstance(field, FlintField):
        return field.random(shape, rng)
    values = [[rng.randrange(p) - p // 2 for _ in range(math.prod(shape))] for p in field.moduli]
    return torch.tensor(values, dtype=torch.float64).view(len(field.moduli), *shape)


def evaluate(field, coefficients, x):
    """Σ c_i x^i, elementwise, by Horner."""
    total = field.scale(x, 0)
    for c in reversed(coefficients):
        total = field.add_integer(field.mul(total, x), c)
    return total


def canonical(field, elements):
    return [
        [int(v) % p for v in channel.reshape(-1).tolist()] for channel, p in zip(elements, field.moduli, strict=True)
    ]


def interpolate(xs, ys, p):
    """The polynomial of degree < len(xs) through the points, in Newton's form."""
    context = flint.fmpz_mod_poly_ctx(flint.fmpz_mod_ctx(p))
    poly, basis = context([0]), context([1])
    for x, y in zip(xs, ys, strict=True):
        step = (y - int(poly(x))) * pow(int(basis(x)), -1, p)
        poly, basis = poly + basis * step, basis * context([-x, 1])
    return poly


# -- the code against polynomials ----------------------------------------------------------------------------


@pytest.mark.parametrize("field", FIELDS)
@given(plan=plans, seed=seeds)
def test_shares_lie_on_the_polynomial_through_shards_and_masks(field, plan, seed):
    rng = random.Random(seed)
    code = make(field, *plan)
    shards, masks = (draw(field, (n, 2), rng) for n in (code.num_shards, code.max_colluders))
    shares = code.encode(shards, masks)
    assert tuple(shares.shape) == (len(field.moduli), code.num_clients, 2)
    hidden = canonical(field, field.concat((shards, masks), 1))
    betas = code.data_points + code.mask_points
    for p, values, coded in zip(field.moduli, hidden, canonical(field, shares), strict=True):
        for column in range(2):
            u = interpolate(betas, values[column::2], p)
            assert coded[column::2] == [int(u(a)) for a in code.client_points]


@pytest.mark.parametrize("field", FIELDS)
def test_encoding_matrix_holds_the_basis_polynomials(field):
    code = LagrangeCode(field, num_clients=9, num_shards=3, max_colluders=2, degree=2)
    betas = code.data_points + code.mask_points
    for p, entries in zip(field.moduli, canonical(field, code.encoding_matrix), strict=True):
        basis = [interpolate(betas, [int(i == k) for i in range(5)], p) for k in range(5)]
        assert entries == [int(ell(a)) for a in code.client_points for ell in basis]


@given(seed=seeds, count=st.integers(1, 12), targets=st.integers(1, 5))
def test_lagrange_matrix_evaluates_the_interpolant(seed, count, targets):
    rng = random.Random(seed)
    points = rng.sample(range(1, 250), count + targets)
    nodes, elsewhere = points[:count], points[count:]
    matrix = lagrange_matrix(FAST, nodes, elsewhere)
    values = draw(FAST, (count, 1), rng)
    got = canonical(FAST, FAST.matmul(matrix, values))
    for p, ys, at in zip(FAST.moduli, canonical(FAST, values), got, strict=True):
        poly = interpolate(nodes, ys, p)
        assert at == [int(poly(z)) for z in elsewhere]


@pytest.mark.parametrize("field", FIELDS)
@given(plan=plans, seed=seeds)
def test_any_survivors_give_the_result(field, plan, seed):
    rng = random.Random(seed)
    code = make(field, *plan)
    shards, masks = (draw(field, (n, 2, 3), rng) for n in (code.num_shards, code.max_colluders))
    g = [rng.randrange(1, 60) for _ in range(code.degree + 1)]
    answers = evaluate(field, g, code.encode(shards, masks))
    survivors = rng.sample(range(code.num_clients), code.recovery_threshold)
    truth = evaluate(field, g, shards)
    decoded = code.decode(answers[:, survivors], survivors)
    assert decoded.shape == truth.shape
    assert canonical(field, decoded) == canonical(field, truth)
    total = code.decode_sum(answers[:, survivors], survivors)
    assert total.shape == truth[:, 0].shape
    assert canonical(field, total) == canonical(field, field.sum(truth, 1))


@given(plan=plans, seed=seeds)
def test_decoding_is_interpolation_through_the_answers(plan, seed):
    rng = random.Random(seed)
    code = make(FAST, *plan)
    survivors = rng.sample(range(code.num_clients), code.recovery_threshold)
    answers = draw(FAST, (code.recovery_threshold, 1), rng)
    xs = [code.client_points[j] for j in survivors]
    decoded = canonical(FAST, code.decode(answers, survivors))
    for p, ys, at in zip(FAST.moduli, canonical(FAST, answers), decoded, strict=True):
        poly = interpolate(xs, ys, p)
        assert at == [int(poly(b)) for b in code.data_points]


def test_fast_and_slow_decode_the_same_integers():
    integers, masks = torch.tensor([[5, -60], [7, 80]]), torch.tensor([[123456, -9]])
    results = []
    for field in (FAST, SLOW):
        code = LagrangeCode(field, num_clients=9, num_shards=2, max_colluders=1, degree=3)
        shares = code.encode(field.embed(integers), field.embed(masks))
        cubes = field.mul(shares, field.mul(shares, shares))
        survivors = [8, 0, 3, 2, 7, 5, 4]
        results.append(code.decode(cubes[:, survivors], survivors))
    assert FAST.lift_exact(results[0]) == SLOW.lift(results[1]) == [125, -216000, 343, 512000]


def test_encode_for_some_clients_is_their_part_of_encode():
    rng = random.Random(1)
    code = LagrangeCode(FAST, num_clients=7, num_shards=2, max_colluders=2, degree=2)
    shards, masks = draw(FAST, (2, 3), rng), draw(FAST, (2, 3), rng)
    some = code.encode(shards, masks, clients=(5, 0, 2))
    assert some.equal(code.encode(shards, masks)[:, [5, 0, 2]])


# -- R answers, and no fewer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("field", [FAST, SLOW])
@pytest.mark.parametrize("plan", [(1, 1, 2), (2, 1, 1), (1, 2, 4), (3, 2, 2), (2, 0, 3)])
def test_one_answer_fewer_is_refused(field, plan):
    code = make(field, *plan, 2)
    few = list(range(code.recovery_threshold - 1))
    answers = draw(field, (len(few), 1), random.Random(1))
    for decode in (code.decode, code.decode_sum):
        with pytest.raises(TooFewAnswers, match=rf"{len(few)} of {code.num_clients} answered"):
            decode(answers, few)


@pytest.mark.parametrize("plan", [(1, 1, 2), (2, 1, 1), (1, 2, 4), (3, 2, 2), (2, 0, 3)])
def test_one_answer_fewer_does_not_fix_the_result(plan):
    rng = random.Random(repr(plan))
    code = make(FAST, *plan, 1)
    shards, masks = (draw(FAST, (n, 20), rng) for n in (code.num_shards, code.max_colluders))
    answers = evaluate(FAST, [0] * code.degree + [1], code.encode(shards, masks))
    truth = canonical(FAST, evaluate(FAST, [0] * code.degree + [1], shards))
    for count, right in ((code.recovery_threshold, True), (code.recovery_threshold - 1, False)):
        survivors = rng.sample(range(code.num_clients), count)
        matrix = lagrange_matrix(FAST, [code.client_points[j] for j in survivors], code.data_points)
        guess = canonical(FAST, FAST.matmul(matrix, answers[:, survivors]))
        for p, got, want in zip(FAST.moduli, guess, truth, strict=True):
            if right:
                assert got == want
            elif p > 10**6:
                assert all(a != b for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize(("num_shards", "max_colluders"), [(1, 1), (2, 1), (1, 3), (3, 2), (2, 0)])
def test_two_data_sets_share_all_but_one_answer(num_shards, max_colluders):
    rng = random.Random(num_shards * 10 + max_colluders)
    code = make(FAST, num_shards, max_colluders, 1, 3)
    shards, masks = (draw(FAST, (n, 4), rng) for n in (num_shards, max_colluders))
    known = rng.sample(range(code.num_clients), code.recovery_threshold - 1)

    def vanishing(points):  # Π (z − α_j) over the known clients
        values = [math.prod(b - code.client_points[j] for j in known) for b in points]
        return FAST.embed(torch.tensor(values, dtype=torch.int64)).view(3, -1, 1)

    other = FAST.add(shards, vanishing(code.data_points))
    others = code.encode(other, FAST.add(masks, vanishing(code.mask_points)))
    shares = code.encode(shards, masks)
    assert canonical(FAST, others[:, known]) == canonical(FAST, shares[:, known])
    for j in set(range(code.num_clients)) - set(known):
        pairs = zip(canonical(FAST, others[:, [j]]), canonical(FAST, shares[:, [j]]), strict=True)
        assert all(a != b for a, b in pairs)
    for a, b in zip(canonical(FAST, other), canonical(FAST, shards), strict=True):
        assert all(x != y for x, y in zip(a, b, strict=True))


@given(plan=plans)
def test_theorem_1(plan):
    num_shards, max_colluders, degree, max_dropouts = plan
    threshold = degree * (num_shards + max_colluders - 1) + 1
    assert recovery_threshold(degree, num_shards, max_colluders) == threshold
    code = LagrangeCode(FAST, threshold + max_dropouts, num_shards, max_colluders, degree)
    assert code.recovery_threshold == threshold
    assert code.num_clients - code.recovery_threshold == max_dropouts
    assert LagrangeCode(FAST, threshold, num_shards, max_colluders, degree).recovery_threshold == threshold
    if threshold > 1:
        with pytest.raises(InfeasiblePlan, match=f"need {threshold} answers"):
            LagrangeCode(FAST, threshold - 1, num_shards, max_colluders, degree)


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", [ResidueField((23, 16777213), 1), FlintField(23)])
def test_points_must_fit_every_modulus(field):
    LagrangeCode(field, num_clients=20, num_shards=1, max_colluders=1, degree=2)
    for plan in ((21, 1, 1), (20, 2, 1), (20, 1, 2)):
        with pytest.raises(UsageError, match="no room for 23 distinct points"):
            LagrangeCode(field, *plan, degree=2)


@pytest.mark.parametrize("wrong", [{"num_clients": 0}, {"num_shards": 0}, {"degree": 0}, {"max_colluders": -1}])
def test_senseless_plans_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        LagrangeCode(FAST, **({"num_clients": 5, "num_shards": 1, "max_colluders": 1, "degree": 1} | wrong))


@pytest.mark.parametrize(("shards", "masks"), [(1, 1), (3, 1), (2, 0), (2, 2), (1, 2)])
def test_wrong_numbers_of_shards_and_masks_are_refused(shards, masks):
    code = LagrangeCode(FAST, num_clients=5, num_shards=2, max_colluders=1, degree=1)
    rng = random.Random(1)
    with pytest.raises(UsageError, match="2 shards and 1 masks expected"):
        code.encode(draw(FAST, (shards, 3), rng), draw(FAST, (masks, 3), rng))


@pytest.mark.parametrize(
    ("count", "survivors"), [(3, (0, 1, 1)), (4, (0, 1, 2, 3)), (2, (0, 1, 2)), (4, (0, 1, 2)), (4, (0, 1, 2, 2))]
)
def test_other_than_r_answers_of_r_clients_are_refused(count, survivors):
    code = LagrangeCode(FAST, num_clients=5, num_shards=2, max_colluders=1, degree=1)
    answers = draw(FAST, (count, 2), random.Random(1))
    for decode in (code.decode, code.decode_sum):
        with pytest.raises(UsageError, match="exactly 3 answers"):
            decode(answers, survivors)


@pytest.mark.parametrize("survivors", [(0, 1, 5), (0, 1, -1)])
def test_unknown_clients_are_refused(survivors):
    code = LagrangeCode(FAST, num_clients=5, num_shards=2, max_colluders=1, degree=1)
    with pytest.raises(UsageError):
        code.decode(draw(FAST, (3, 2), random.Random(1)), survivors)


def test_decoders_are_cached():
    code = LagrangeCode(FAST, num_clients=5, num_shards=2, max_colluders=1, degree=1)
    twin = LagrangeCode(FAST, num_clients=5, num_shards=2, max_colluders=1, degree=1)
    decoder = code.decoding_matrix([4, 0, 2])
    assert decoder.shape == (3, 2, 3)
    assert code.decoding_matrix((4, 0, 2)) is decoder
    assert twin.decoding_matrix((4, 0, 2)) is decoder
    assert code.encoding_matrix is code.encoding_matrix
    assert not code.decoding_matrix((0, 4, 2)).equal(decoder)
    wider = LagrangeCode(FAST, num_clients=5, num_shards=1, max_colluders=2, degree=1)
    assert wider.decoding_matrix((4, 0, 2)).shape == (3, 1, 3)
