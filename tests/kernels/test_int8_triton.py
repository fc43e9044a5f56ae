"""The int8 kernels agree with int64 products: on a GPU where there is one, else in the Triton interpreter.

The interpreter runs the portable kernel, the copy and the arithmetic the Hopper kernel shares with them; the
Hopper kernel itself needs the GPU.
"""

import builtins
import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from dresfl.kernels import int8_triton  # noqa: E402
from dresfl.kernels.int8_triton import MAX_INNER, _residues, matmul_int8  # noqa: E402

PRIMES = (251, 3, 127, 23, 241)
HOPPER = DEVICE == "cuda" and torch.cuda.get_device_capability()[0] == 9


@pytest.fixture(autouse=True)
def numpy_scalars(monkeypatch):
    """The interpreter hands one-element arrays to range(), which numpy 2.4 no longer takes for integers."""
    if DEVICE == "cuda":
        return
    from triton.runtime import interpreter

    def integers(*limits):
        return builtins.range(*(int(x.handle.data.item()) if hasattr(x, "handle") else int(x) for x in limits))

    monkeypatch.setattr(interpreter, "range", integers, raising=False)


@pytest.fixture(params=["portable", pytest.param("hopper", marks=pytest.mark.skipif(not HOPPER, reason="no Hopper"))])
def kernel(request, monkeypatch):
    """Each test runs on each kernel, whatever the shape would choose."""
    monkeypatch.setattr(int8_triton, "_use_hopper", lambda *_: request.param == "hopper")
    return request.param


def moduli_of(primes):
    return torch.tensor(primes, dtype=torch.int32, device=DEVICE)


def uniform(shape, primes, seed=0):
    """Uniform symmetric residues, channel first."""
    generator = torch.Generator().manual_seed(seed)
    channels = [torch.randint(-(p // 2), p // 2 + 1, shape[1:], generator=generator) for p in primes]
    return torch.stack(channels).to(torch.int8).to(DEVICE)


def symmetric(x, primes):
    p = torch.tensor(primes).view(-1, *[1] * (x.dim() - 1))
    return (x + p // 2) % p - p // 2


def product(left, right, primes):
    return symmetric(left.cpu().long() @ right.cpu().long(), primes)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (1, 16, 1), (3, 5, 7), (64, 128, 64), (65, 129, 63), (130, 48, 257), (17, 300, 140), (200, 160, 72)],
)
def test_odd_shapes(kernel, m, n, k):
    left, right = uniform((5, m, n), PRIMES), uniform((5, n, k), PRIMES, seed=1)
    got = matmul_int8(left, right, moduli_of(PRIMES))
    assert got.dtype == torch.int8
    assert torch.equal(got.cpu().long(), product(left, right, PRIMES))


@pytest.mark.parametrize("left_transposed", [False, True])
@pytest.mark.parametrize("right_transposed", [False, True])
@pytest.mark.parametrize("n", [50, 144])
def test_transposed_views(kernel, left_transposed, right_transposed, n):
    primes = PRIMES[:2]
    left = uniform((2, n, 80), primes).mT if left_transposed else uniform((2, 80, n), primes)
    right = uniform((2, 48, n), primes, 1).mT if right_transposed else uniform((2, n, 48), primes, 1)
    got = matmul_int8(left, right, moduli_of(primes))
    assert torch.equal(got.cpu().long(), product(left, right, primes))


def test_slices_with_gaps(kernel):
    primes = PRIMES[:3]
    left = uniform((3, 70, 128), primes)[:, 3::2, 16:80]
    right = uniform((3, 40, 200), primes, 1)[:, 1:, 7:71].mT
    got = matmul_int8(left, right, moduli_of(primes))
    assert torch.equal(got.cpu().long(), product(left, right, primes))


@pytest.mark.parametrize("inner_major", [False, True])
def test_right_factor_shared_by_the_channels(kernel, inner_major):
    left, right = uniform((5, 33, 64), PRIMES), uniform((1, 64, 20), (3,))
    right = right.mT.contiguous().mT if inner_major else right
    for shared in (right, right.expand(5, -1, -1)):
        got = matmul_int8(left, shared, moduli_of(PRIMES))
        assert torch.equal(got.cpu().long(), product(left, right, PRIMES))


@pytest.mark.parametrize("right_shape", [(2, 3, 32, 40), (2, 1, 32, 40), (1, 3, 32, 40), (2, 32, 40)])
@pytest.mark.parametrize("left_transposed", [False, True])
def test_second_batch_axis(kernel, right_shape, left_transposed):
    primes = (251, 127)
    left = uniform((2, 3, 32, 30), primes).mT if left_transposed else uniform((2, 3, 30, 32), primes)
    right = uniform(right_shape, primes[: right_shape[0]] if right_shape[0] == 2 else (127,), 1)
    got = matmul_int8(left, right, moduli_of(primes))
    wide = right if right.dim() == 4 else right.unsqueeze(1)
    assert got.shape == (2, 3, 30, 40)
    assert torch.equal(got.cpu().long(), product(left, wide, primes))


@pytest.mark.parametrize("sign", [1, -1])
def test_extremes_at_the_longest_inner_axis(kernel, sign):
    assert MAX_INNER * 125**2 < 2**31 <= (MAX_INNER + 1) * 125**2
    inner = MAX_INNER if DEVICE == "cuda" else 1500  # the interpreter would take half a minute
    left = torch.full((1, 2, inner), 125, dtype=torch.int8, device=DEVICE)
    right = torch.full((1, inner, 3), sign * 125, dtype=torch.int8, device=DEVICE)
    got = matmul_int8(left, right, moduli_of((251,)))
    assert torch.equal(got.cpu().long(), symmetric(torch.full((1, 2, 3), sign * inner * 125**2), (251,)))


def test_every_prime_at_its_extremes(kernel):
    primes = [p for p in range(3, 256) if all(p % q for q in range(2, p))]
    half = torch.tensor([p // 2 for p in primes], dtype=torch.int8, device=DEVICE).view(-1, 1, 1)
    signs = torch.tensor([1, -1], dtype=torch.int8, device=DEVICE)
    left = half * signs.view(1, 2, 1).expand(1, 2, 100)
    right = half * signs.view(1, 1, 2).expand(1, 100, 2)
    got = matmul_int8(left, right, moduli_of(primes))
    assert torch.equal(got.cpu().long(), product(left, right, primes))


@triton.jit
def _residues_of(totals, z, p, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(z + at, _residues(tl.load(totals + at), p))


@pytest.mark.parametrize("p", [3, 5, 23, 127, 241, 251])
def test_reduction_over_all_of_int32(p):
    top = 2**31 - 1
    near = torch.arange(-2048, 2048)
    ends = [
        top - near.abs(),
        -top + near.abs(),
        near,
        near * 1024 * p,
        512 * p + near,
        1024 * p * (top // 1024 // p) + near,
    ]
    halves = (2 * torch.randint(-top // p // 2, top // p // 2, (2048,)) + 1) * p // 2
    spread = torch.randint(-top, top, (1 << 14,))
    totals = torch.cat([*ends, halves, halves + 1, spread]).clamp(-top, top)
    totals = totals[: totals.numel() // 1024 * 1024]
    z = torch.full(totals.shape, 77, dtype=torch.int8, device=DEVICE)
    _residues_of[(totals.numel() // 1024,)](totals.int().to(DEVICE), z, p, SIZE=1024)
    assert torch.equal(z.cpu().long()[None], symmetric(totals[None], (p,)))


@pytest.mark.parametrize(("m", "n", "k"), [(0, 4, 4), (4, 0, 4), (4, 4, 0)])
def test_empty_axes(m, n, k):
    left, right = uniform((2, m, n), PRIMES[:2]), uniform((2, n, k), PRIMES[:2])
    z = matmul_int8(left, right, moduli_of(PRIMES[:2]))
    assert torch.equal(z.cpu(), torch.zeros((2, m, k), dtype=torch.int8))


def test_refusals(monkeypatch):
    left, right, moduli = uniform((2, 4, 8), (5, 7)), uniform((2, 8, 3), (5, 7)), moduli_of((5, 7))
    with pytest.raises(ValueError, match="expected int8 factors"):
        matmul_int8(left.int(), right, moduli)
    with pytest.raises(ValueError, match="expected int8 factors"):
        matmul_int8(left, right, moduli.long())
    with pytest.raises(ValueError, match=r"got \(2, 4, 8\) @ \(2, 3, 8\)"):
        matmul_int8(left, right.mT, moduli)
    with pytest.raises(ValueError, match="does not broadcast to 3 moduli"):
        matmul_int8(left, right, moduli_of((5, 7, 11)))
    monkeypatch.setattr(int8_triton, "MAX_INNER", 7)
    with pytest.raises(ValueError, match="an inner axis of 8 can overflow int32; 7 is the most"):
        matmul_int8(left, right, moduli)


@pytest.mark.skipif(not HOPPER, reason="no Hopper")
@pytest.mark.parametrize("left_transposed", [False, True])
def test_large_products_on_hopper(left_transposed):
    primes = (251, 241, 127)
    left = uniform((3, 1000, 1300), primes).mT if left_transposed else uniform((3, 1300, 1000), primes)
    right = uniform((3, 1000, 2100), primes, 1)
    assert int8_triton._use_hopper(left.device, 3, 1300, 1000, 2100)
    z = matmul_int8(left, right, moduli_of(primes))
    assert torch.equal(z.cpu().long(), symmetric((left.double() @ right.double()).long().cpu(), primes))
