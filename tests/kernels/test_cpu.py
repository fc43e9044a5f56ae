"""The CPU kernels against Python integers and the plain torch kernels, compiled and not."""

import random
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dresfl.field.lifting import garner_inverses, mixed_radix_digits, nearest_float64, radix_limbs
from dresfl.kernels import chacha20, cpu, residues

LIMIT = 2**53 - 2**25
PRIMES = (23, 251, 65521, 4194301, 16777199, 16777213)
LARGE = (16777183, 16777199, 16777213)
BOUND = 16777213 // 2 + 1 + residues.SLACK

COMPILED = cpu._compiled


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def path(request, monkeypatch):
    """Every test runs on both paths; without Numba the compiled one is skipped."""
    if request.param == "torch":
        monkeypatch.setattr(cpu, "_compiled", None)
    elif COMPILED is None:
        pytest.skip("Numba is not installed")
    return request.param


@pytest.fixture
def threads():
    """Two threads, and no work too small to be shared."""
    before = torch.get_num_threads()
    names = [name for name in vars(cpu) if name.startswith("_PARALLEL")]
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(cpu, name, 0)
        torch.set_num_threads(2)
        yield
    torch.set_num_threads(before)


def constants(primes):
    p = torch.tensor(primes, dtype=torch.float64)
    return p, 1.0 / p


def symmetric(value, p):
    return (value + p // 2) % p - p // 2


def uniform(primes, *shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    half = min(primes) // 2
    return torch.randint(-half, half + 1, (len(primes), *shape), generator=generator).to(torch.float64)


def extreme(primes, *shape, seed=0):
    """Residues at the very ends, |r| = p/2 + SLACK, where rounding is tightest."""
    signs = torch.randint(2, (len(primes), *shape), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0
    ends = torch.tensor([p // 2 + residues.SLACK for p in primes], dtype=torch.float64)
    return signs.to(torch.float64) * ends.view(-1, *[1] * len(shape))


def same(got, expected, primes):
    """Congruent, within the bound, and equal once canonical."""
    p, _ = constants(primes)
    assert got.shape == expected.shape
    assert bool((got.abs() <= (p // 2 + residues.SLACK).view(-1, *[1] * (got.dim() - 1))).all())
    assert residues.canonical_(got.clone(), p).equal(residues.canonical_(expected.clone(), p))


# -- reduction ---------------------------------------------------------------------------------------------------


def extremes(p):
    """Multiples of p, half-way points and their neighbours, near 0 and near ±(2^53 − 2^25)."""
    top = (LIMIT - 1) // p
    values = {
        k * p + d for k in {0, 1, 2, top, top - 1, top // 2} for d in {0, 1, p // 2 - 1, p // 2, p // 2 + 1, p - 1}
    }
    return sorted({s * v for v in values | {LIMIT - 1} if v < LIMIT for s in (1, -1)})


@pytest.mark.parametrize("p", PRIMES)
def test_reduce_at_the_extremes_is_bit_for_bit_the_torch_one(p):
    values = extremes(p)
    x = torch.tensor([values], dtype=torch.float64)
    expected = residues.reduce_(x.clone(), *constants((p,)))
    assert cpu.reduce_(x, *constants((p,))) is x
    assert x.equal(expected)
    assert [int(v) % p for v in x[0].tolist()] == [v % p for v in values]


@given(data=st.data(), columns=st.integers(1, 40))
def test_reduce_embed_and_canonical(data, columns):
    integers = st.integers(1 - LIMIT, LIMIT - 1)
    values = data.draw(st.lists(integers, min_size=columns, max_size=columns))
    expected = torch.tensor([[symmetric(v, p) for v in values] for p in PRIMES], dtype=torch.float64)
    p, inverses = constants(PRIMES)
    embedded = cpu.embed(torch.tensor(values), p, inverses)
    same(embedded, expected, PRIMES)
    assert residues.canonical_(embedded, p).equal(expected)
    x = torch.tensor([values] * len(PRIMES), dtype=torch.float64)
    same(cpu.reduce_(x, p, inverses), expected, PRIMES)


def test_a_strided_tensor_is_reduced_in_place():
    p, inverses = constants(LARGE)
    whole = uniform(LARGE, 6, 8) * 2**20
    before = whole.clone()
    part = whole[:, ::2, 1:5]
    expected = residues.reduce_(part.clone(), p, inverses)
    assert cpu.reduce_(part, p, inverses) is part
    assert residues.canonical_(part, p) is part
    same(whole[:, ::2, 1:5], expected, LARGE)
    assert whole[:, 1::2].equal(before[:, 1::2])


@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0)])
def test_nothing_is_reduced_to_nothing(shape):
    p, inverses = constants(LARGE)
    empty = torch.empty((3, *shape), dtype=torch.float64)
    assert cpu.reduce_(empty, p, inverses).shape == (3, *shape)
    assert residues.canonical_(empty, p).shape == (3, *shape)
    assert cpu.mul_reduce(empty, empty, p, inverses).shape == (3, *shape)
    assert cpu.embed(empty[0], p, inverses).shape == (3, *shape)


def test_as_many_moduli_as_channels_are_wanted():
    p, inverses = constants(LARGE[:2])
    with pytest.raises(RuntimeError):
        cpu.reduce_(torch.ones(3, 4, dtype=torch.float64), p, inverses)
    with pytest.raises(RuntimeError):
        cpu.mul_reduce(torch.ones(3, 4).double(), torch.ones(3, 4).double(), p, inverses)


# -- elementwise -------------------------------------------------------------------------------------------------

OPERATIONS = {
    "add_reduce": lambda a, b: a + b,
    "sub_reduce": lambda a, b: a - b,
    "mul_reduce": lambda a, b: a * b,
}
SHAPES = [
    ((3, 2, 5, 7), (3, 2, 5, 7)),
    ((3, 2, 5, 7), (3, 1, 1, 7)),  # a bias
    ((3, 2, 5, 7), (3, 1, 1, 1)),  # a number
    ((3, 2, 5, 7), (3, 2, 1, 7)),
    ((3, 2, 5, 7), (3, 2, 5, 1)),
    ((3, 4, 1), (3, 4, 1)),
    ((3, 4, 1), (3, 1, 1)),
    ((3, 1), (3, 1)),
    ((3, 33), (3, 33)),
]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("make", [uniform, extreme])
def test_operations(name, left, right, make):
    a, b = make(LARGE, *left[1:], seed=1), make(LARGE, *right[1:], seed=2)
    before = a.clone(), b.clone()
    got = getattr(cpu, name)(a, b, *constants(LARGE))
    exact = OPERATIONS[name](a.to(torch.int64), b.to(torch.int64))
    p = torch.tensor(LARGE).view(-1, *[1] * (exact.dim() - 1))
    same(got, ((exact + p // 2) % p - p // 2).to(torch.float64), LARGE)
    assert a.equal(before[0])
    assert b.equal(before[1])


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_on_transposed_slices(name):
    a, b = uniform(LARGE, 9, 11, seed=1)[:, 1:8].swapaxes(1, 2), uniform(LARGE, 11, 7, seed=2)
    got = getattr(cpu, name)(a, b, *constants(LARGE))
    same(got, getattr(cpu, name)(a.contiguous(), b, *constants(LARGE)), LARGE)


def test_scale():
    a = extreme(LARGE, 5, 3)
    p, inverses = constants(LARGE)
    factors = torch.tensor([-8388607.0, 1.0, 8388606.0], dtype=torch.float64)
    same(
        cpu.mul_reduce(a, factors.view(3, 1, 1), p, inverses),
        residues.reduce_(a * factors.view(3, 1, 1), p, inverses),
        LARGE,
    )


# -- products ----------------------------------------------------------------------------------------------------


def exact_product(left, right, primes):
    """left @ right in Python integers, over the last two axes."""
    rows = []
    for m, p in enumerate(primes):
        a, b = left[m].to(torch.int64), (right if right.dim() == 2 else right[m]).to(torch.int64)
        # 24-bit halves keep every int64 sum exact
        high, low = (a >> 12) @ b % p, (a & 0xFFF) @ b % p
        value = (high * 4096 + low) % p
        rows.append((value + p // 2) % p - p // 2)
    return torch.stack(rows).to(torch.float64)


sizes = st.integers(1, 40)


@given(
    rows=sizes,
    inner=sizes,
    columns=sizes,
    shared=st.booleans(),
    seed=st.integers(0, 99),
    make=st.sampled_from([uniform, extreme]),
)
def test_products_of_every_size(rows, inner, columns, shared, seed, make):
    left = make(LARGE, rows, inner, seed=seed)
    right = make(LARGE[-1:], inner, columns, seed=seed + 1)[0] if shared else make(LARGE, inner, columns, seed=seed + 1)
    got = cpu.matmul(left, right, *constants(LARGE), BOUND, BOUND)
    same(got, exact_product(left, right, LARGE), LARGE)


@pytest.mark.parametrize("inner", [127, 128, 255, 2047, 2048, 2049, 4100])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 5), (8, 16), (19, 33), (80, 16)])
def test_long_sums_at_the_extremes(inner, rows, columns):
    left, right = extreme(LARGE, rows, inner, seed=inner), extreme(LARGE, inner, columns, seed=rows)
    got = cpu.matmul(left, right, *constants(LARGE), BOUND, BOUND)
    same(got, exact_product(left, right, LARGE), LARGE)
    alike = cpu.matmul(left.abs(), right.abs(), *constants(LARGE), BOUND, BOUND)  # all terms add up
    same(alike, exact_product(left.abs(), right.abs(), LARGE), LARGE)


@pytest.mark.parametrize("right_bound", [1, 1000, 2**20, 2**29])
def test_products_with_integers_that_are_no_residues(right_bound):
    left = extreme(LARGE, 9, 300)
    right = torch.randint(-right_bound, right_bound + 1, (300, 10), generator=torch.Generator().manual_seed(1))
    right[0], right[-1] = right_bound, -right_bound
    got = cpu.matmul(left, right.to(torch.float64), *constants(LARGE), BOUND, right_bound)
    same(got, exact_product(left, right.to(torch.float64), LARGE), LARGE)


def test_factors_without_one_exact_product_are_refused():
    one = torch.ones(3, 1, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="no exact float64 product"):
        cpu.matmul(one, one, *constants(LARGE), 2**23, 2**30)


def layouts():
    """Factors as they occur: transposed, sliced, repeated, (M,N,m,n), beside contiguous copies of them."""
    wide = uniform(LARGE, 2, 20, 30, seed=1)
    shared = uniform(LARGE[:1], 24, 20, seed=2)[0]
    yield "transposed left", wide.swapaxes(-1, -2), uniform(LARGE, 2, 20, 18, seed=3)
    yield "sliced left", wide[..., 3:27], uniform(LARGE, 2, 24, 17, seed=3)
    yield "transposed right", wide, uniform(LARGE, 2, 19, 30, seed=3).swapaxes(-1, -2)
    yield "one right factor", wide[..., :24], shared
    yield "one right factor, transposed", wide[:, :, :, :20], shared.T
    yield "one right factor for all clients", wide, uniform(LARGE, 1, 30, 16, seed=3)
    yield "a repeated right factor", wide, uniform(LARGE, 1, 30, 16, seed=3).expand(-1, 2, -1, -1)
    yield "sliced right", wide, uniform(LARGE, 2, 30, 40, seed=3)[..., 5:38]
    yield "every other row", wide[:, :, ::2], uniform(LARGE, 2, 30, 16, seed=3)
    yield "five axes", wide.unflatten(1, (1, 2)), uniform(LARGE, 1, 2, 30, 16, seed=3)
    yield "one client on the left", wide[:, :1], uniform(LARGE, 2, 30, 16, seed=3)
    yield "far rows on the right", uniform(LARGE, 2, 40, 9, seed=4), uniform(LARGE, 2, 9, 300, seed=3)
    yield "one column", wide, uniform(LARGE, 2, 30, 1, seed=3)


@pytest.mark.parametrize(("left", "right"), [x[1:] for x in layouts()], ids=[x[0] for x in layouts()])
def test_layouts(left, right):
    got = cpu.matmul(left, right, *constants(LARGE), BOUND, BOUND)
    expected = residues.matmul(left.contiguous(), right.contiguous(), *constants(LARGE), BOUND, BOUND)
    same(got, expected, LARGE)


def test_a_product_over_nothing_is_zero():
    left, right = torch.empty(3, 2, 0).double(), torch.empty(3, 0, 4).double()
    assert cpu.matmul(left, right, *constants(LARGE), BOUND, BOUND).equal(torch.zeros(3, 2, 4).double())


def test_wrong_shapes_are_refused():
    with pytest.raises(RuntimeError):
        cpu.matmul(uniform(LARGE, 4, 5), uniform(LARGE, 6, 4), *constants(LARGE), BOUND, BOUND)
    with pytest.raises(RuntimeError):
        cpu.matmul(uniform(LARGE, 4, 5), uniform(LARGE[:2], 5, 4), *constants(LARGE), BOUND, BOUND)
    with pytest.raises(RuntimeError):
        cpu.matmul(uniform(LARGE, 4, 5), uniform(LARGE, 5, 4), *constants(LARGE[:2]), BOUND, BOUND)


def test_two_threads_find_the_same(threads):
    p, inverses = constants(LARGE)
    left, right = extreme(LARGE, 2, 33, 70, seed=1), extreme(LARGE, 2, 70, 50, seed=2)
    for _ in range(20):
        same(
            cpu.matmul(left, right, p, inverses, BOUND, BOUND),
            residues.matmul(left, right, p, inverses, BOUND, BOUND),
            LARGE,
        )
    x = left * 2**20
    same(cpu.reduce_(x.clone(), p, inverses), residues.reduce_(x.clone(), p, inverses), LARGE)
    assert cpu.mul_reduce(left, left, p, inverses).equal(residues.reduce_(left * left, p, inverses))
    assert residues.canonical_(left.clone(), p).equal(residues.canonical_(left.clone(), p))


# -- lifting, bytes, masks ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**71), 2**71) | st.sampled_from([0, 2**53 + 1, -(2**53) - 1, 2**60 + 2**6]), min_size=1))
def test_digits_and_nearest_are_the_torch_ones(values):
    p, inverses = constants(LARGE)
    x = torch.tensor([[symmetric(v, q) for v in values] for q in LARGE], dtype=torch.float64)
    garner, radix = garner_inverses(LARGE), radix_limbs(LARGE)
    digits = cpu.mixed_radix_digits(x, p, inverses, garner)
    rounded = cpu.nearest_float64(mixed_radix_digits(x, p, inverses, garner), radix)
    if cpu._compiled is None:
        assert digits is None
        assert rounded is None
        return
    assert digits.equal(mixed_radix_digits(x, p, inverses, garner))
    assert rounded.tolist() == [float(symmetric(v, LARGE[0] * LARGE[1] * LARGE[2])) for v in values]


def test_nearest_of_many_random_digits():
    primes = tuple(sorted((*LARGE, 16777099, 16777121, 16777127, 16777139, 16777141, 16777153)))
    radix, digits = radix_limbs(primes), uniform(primes, 5000)
    for top in reversed(range(len(primes))):  # shorter and shorter values, some shorter still
        digits[top + 1 :] = 0
        digits[top, ::3] = 0
        found = cpu.nearest_float64(digits, radix)
        assert found is None or found.equal(nearest_float64(digits, radix))


@pytest.mark.parametrize(("primes", "size"), [((23, 251), 1), ((23, 65521), 2), (LARGE, 3)])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (0,)])
def test_pack_and_unpack(primes, size, shape):
    p, _ = constants(primes)
    x = residues.canonical_(uniform(primes, *shape), p)
    packed = cpu.pack(x, p, size)
    words = [int(v) % q for q, row in zip(primes, x.reshape(len(primes), -1).tolist(), strict=True) for v in row]
    assert packed == b"".join(word.to_bytes(size, "little") for word in words)
    octets = torch.frombuffer(bytearray(packed), dtype=torch.uint8) if packed else torch.empty(0, dtype=torch.uint8)
    assert cpu.unpack(octets, shape, p, size).equal(x)
    with pytest.raises(ValueError, match="bytes of residues expected"):
        cpu.unpack(torch.zeros(len(packed) + 1, dtype=torch.uint8), shape, p, size)


def test_a_residue_not_below_its_modulus_is_seen():
    p, _ = constants((23, 251))
    assert cpu.unpack(torch.tensor([22, 250], dtype=torch.uint8), (1,), p, 1).tolist() == [[-1.0], [-1.0]]
    assert cpu.unpack(torch.tensor([23, 250], dtype=torch.uint8), (1,), p, 1) is None
    assert cpu.unpack(torch.tensor([22, 251], dtype=torch.uint8), (1,), p, 1) is None


words = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(st.tuples(st.lists(words, min_size=8, max_size=8), words, st.tuples(words, words, words)), max_size=40))
def test_keystream_is_the_torch_one(chosen):
    keys = torch.tensor([c[0] for c in chosen], dtype=torch.int32).view(-1, 8)
    counters = torch.tensor([c[1] for c in chosen], dtype=torch.int32)
    nonces = torch.tensor([c[2] for c in chosen], dtype=torch.int32).view(-1, 3)
    assert cpu.chacha20_blocks(keys, counters, nonces).equal(chacha20.chacha20_blocks(keys, counters, nonces))


def test_keystream_of_one_repeated_key(threads):
    key, nonce = torch.arange(8, dtype=torch.int32).expand(1000, 8), torch.arange(3, dtype=torch.int32).expand(1000, 3)
    counters = torch.arange(2000, dtype=torch.int32)[::2]
    assert cpu.chacha20_blocks(key, counters, nonce).equal(chacha20.chacha20_blocks(key, counters, nonce))


@pytest.mark.parametrize("primes", [(23, 251), (65521, 4194301), LARGE, (2863311531,)])
def test_residues_of_words(primes):
    # the last, no prime, makes a third of all words too large: more than one pass has room for
    p, inverses = constants(primes)
    limits = torch.tensor([float(2**32 // q * q) for q in primes], dtype=torch.float64)
    rng = random.Random(1)
    edges = [0, 1, 2**31 - 1, 2**31, 2**32 - 1]
    edges += [v % 2**32 for q in primes for v in (2**32 // q * q - 1, 2**32 // q * q, q // 2, q // 2 + 1)]
    unsigned = [[edges + [rng.getrandbits(32) for _ in range(300)] for _ in primes] for _ in range(4)]
    stream = torch.tensor(unsigned, dtype=torch.int64)
    stream = torch.where(stream >= 2**31, stream - 2**32, stream).to(torch.int32)
    got, again = cpu.residues_of_words(stream, p, inverses, limits)
    expected = [[[symmetric(w, q) for w in row[m]] for row in unsigned] for m, q in enumerate(primes)]
    assert got.tolist() == expected
    places = [
        [r, m, i]
        for r, row in enumerate(unsigned)
        for m, q in enumerate(primes)
        for i, w in enumerate(row[m])
        if w >= 2**32 // q * q
    ]
    assert again.tolist() == places


# -- what is around them -----------------------------------------------------------------------------------------


def test_without_numba_torch_takes_over(path):
    if path == "compiled":
        return
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import torch; from dresfl.kernels import cpu\n"
        "x, p = torch.tensor([[100.0]]).double(), torch.tensor([7.0]).double()\n"
        "assert cpu._compiled is None and cpu.reduce_(x, p, 1 / p).item() == 2"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_keep_freed_memory_says_whether_it_could():
    code = "from dresfl.kernels import cpu; assert cpu.keep_freed_memory() in (True, False)"
    subprocess.run([sys.executable, "-c", code], check=True)
