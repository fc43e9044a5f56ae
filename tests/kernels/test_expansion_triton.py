"""The GPU's blinding and bounded integers are the CPU's, bit for bit. Without a GPU, Triton's interpreter runs them."""

import os

import pytest
import torch

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from dresfl.field import Domain, ResidueField, choose_moduli  # noqa: E402
from dresfl.field.residue_system import _limb_powers  # noqa: E402
from dresfl.kernels import chacha20_blocks, expansion_triton  # noqa: E402
from dresfl.kernels.expansion_triton import bounded_residues, bounded_sums, uniform_sums  # noqa: E402

from .test_int8_triton import numpy_scalars  # noqa: E402, F401

DEVICE = torch.device("cuda" if CUDA else "cpu")
SMALL_PRIMES = tuple(p for p in range(23, 256) if all(p % d for d in range(2, 16)))
REJECTING = (16711943,)  # a word in 257


def some_keys(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (count, 8), generator=generator).to(torch.int32)


def stream_words(keys, count, domain_attempt):
    """The first words of stream (domain_attempt, 0) of each key, by the CPU's block function."""
    nonces = torch.tensor([[domain_attempt, 0, 0]], dtype=torch.int32).expand(len(keys), 3)
    blocks = chacha20_blocks(keys, torch.zeros(len(keys), dtype=torch.int32), nonces)
    return blocks[:, :count].to(torch.int64) & 0xFFFFFFFF


def some_coefficients(field, seeds):
    return field.embed(torch.randint(-(2**40), 2**40, (seeds,), generator=torch.Generator().manual_seed(seeds)))


def sums(primes, keys, coefficients, count, dtype):
    moduli = torch.tensor(primes, device=DEVICE)
    found = uniform_sums(moduli, keys.to(DEVICE), coefficients.to(DEVICE, dtype), count, dtype)
    assert found.dtype == dtype
    return found.cpu().to(torch.float64)


@pytest.mark.parametrize(
    ("primes", "dtype", "seeds", "count"), [(SMALL_PRIMES[:2], torch.int8, 2, 19), (REJECTING, torch.float64, 1, 531)]
)
def test_sums_are_the_fields(primes, dtype, seeds, count):
    field, keys = ResidueField(primes, 1), some_keys(seeds, count)
    coefficients = some_coefficients(field, seeds)
    assert sums(primes, keys, coefficients, count, dtype).equal(field.uniform_sum(keys, coefficients, count))


def test_words_rejected_many_times_in_a_row():
    p, keys, count = 2**32 // 3 + 3, some_keys(2, seed=9), 3  # a third of all words is rejected
    attempts = torch.stack([stream_words(keys, count, Domain.BLINDING * 256 + i) for i in range(12)], -1).tolist()
    drawn = [[next(w for w in place if w < 2 * p) for place in seed] for seed in attempts]
    assert drawn != [[place[0] for place in seed] for seed in attempts]
    expected = [(3 * a + 5 * b + p // 2) % p - p // 2 for a, b in zip(*drawn, strict=True)]
    assert sums((p,), keys, torch.tensor([[3.0, 5.0]]), count, torch.float64).tolist() == [expected]


@pytest.mark.parametrize(
    ("primes", "dtype", "bits", "seeds", "count"),
    [(SMALL_PRIMES[:2], torch.int8, 75, 3, 19), ((23, 16777213), torch.float64, 32, 1, 40)],
)
def test_bounded_integers_are_the_fields(primes, dtype, bits, seeds, count):
    keys, moduli = some_keys(seeds, count), torch.tensor(primes, device=DEVICE)
    powers = _limb_powers(primes, str(DEVICE), -(-bits // 32))
    found = bounded_residues(moduli, powers, keys.to(DEVICE), bits, count, dtype)
    assert found.dtype == dtype
    assert found.cpu().to(torch.float64).equal(ResidueField(primes, 1).bounded(keys, bits, count))


def sums_of_bounded(primes, keys, coefficients, bits, first, count, dtype):
    moduli, powers = torch.tensor(primes, device=DEVICE), _limb_powers(primes, str(DEVICE), -(-bits // 32))
    factors = coefficients.to(DEVICE, dtype)
    found = bounded_sums(moduli, powers, keys.to(DEVICE), factors, bits, first, count, dtype)
    assert found.dtype == dtype
    return found.cpu().to(torch.float64)


@pytest.mark.parametrize(
    ("primes", "dtype", "bits", "seeds", "first", "count"),
    [
        (SMALL_PRIMES[:3], torch.int8, 75, 1, 5, 19),
        ((23, 16777199, 16777213), torch.float64, 40, 2, 0, 40),
        ((16777213,), torch.float64, 32, 1, 16, 531),
    ],
)
def test_sums_of_bounded_integers_are_the_fields(primes, dtype, bits, seeds, first, count):
    field, keys = ResidueField(primes, 1), some_keys(seeds, count)
    coefficients = some_coefficients(field, seeds)
    expected = field.bounded_sum(keys, coefficients, bits, count, first)
    assert sums_of_bounded(primes, keys, coefficients, bits, first, count, dtype).equal(expected)


def test_the_domains_are_the_fields():
    assert (expansion_triton._BLINDING, expansion_triton._BOUNDED) == (Domain.BLINDING, Domain.BOUNDED)


def test_nothing_asked():
    keys, moduli = some_keys(2).to(DEVICE), torch.tensor([101, 103], device=DEVICE)
    ones = torch.ones((2, 2), device=DEVICE)
    assert uniform_sums(moduli, keys, ones, 0, torch.int8).shape == (2, 0)
    assert uniform_sums(moduli, keys[:0], ones[:, :0], 3, torch.int8).eq(0).all()
    assert bounded_residues(moduli, ones[:, :1], keys[:0], 9, 5, torch.int8).shape == (2, 0, 5)
    assert bounded_sums(moduli, ones[:, :1], keys, ones, 9, 3, 0, torch.int8).shape == (2, 0)
    assert bounded_sums(moduli, ones[:, :1], keys[:0], ones[:, :0], 9, 3, 5, torch.int8).eq(0).all()


def test_wrong_arguments_are_refused():
    keys, moduli, ones = some_keys(2), torch.tensor([101]), torch.ones((1, 2))
    with pytest.raises(ValueError, match="keys"):
        uniform_sums(moduli, keys.to(torch.int64), ones, 1, torch.int8)
    with pytest.raises(ValueError, match="int8 or float64"):
        bounded_residues(moduli, ones, keys, 64, 1, torch.int32)
    with pytest.raises(ValueError, match="coefficients"):
        uniform_sums(moduli, keys, ones[:, :1], 1, torch.int8)
    with pytest.raises(ValueError, match="powers"):
        bounded_residues(moduli, ones, keys, 200, 1, torch.int8)
    with pytest.raises(ValueError, match="powers"):
        bounded_sums(moduli, torch.ones((1, 256)), keys, ones, 8192, 0, 1, torch.int8)
    with pytest.raises(ValueError, match="coefficients"):
        bounded_sums(moduli, ones[:, :1], keys, ones[:, :1], 9, 0, 1, torch.int8)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize(
    ("primes", "dtype"),
    [(SMALL_PRIMES, torch.int8), (choose_moduli(180, more_than=22), torch.float64), (REJECTING, torch.float64)],
)
def test_large_sums_and_integers(primes, dtype):
    field, keys = ResidueField(primes, 1), some_keys(300)
    coefficients = some_coefficients(field, 300)
    assert sums(primes, keys, coefficients, 55050, dtype).equal(field.uniform_sum(keys, coefficients, 55050))
    powers, moduli = _limb_powers(primes, str(DEVICE), 9), torch.tensor(primes, device=DEVICE)
    found = bounded_residues(moduli, powers, keys[:20].to(DEVICE), 270, 9999, dtype)
    assert found.cpu().to(torch.float64).equal(field.bounded(keys[:20], 270, 9999))
    for bits, count, first in ((126, 55050, 55050), (8128, 20, 3)):
        expected = field.bounded_sum(keys, coefficients, bits, count, first)
        assert sums_of_bounded(primes, keys, coefficients, bits, first, count, dtype).equal(expected)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_a_graph_repeats_them():
    primes = choose_moduli(100, more_than=22)
    field, keys = ResidueField(primes, 1, "cuda"), some_keys(5).cuda()
    coefficients = some_coefficients(field, 5).cuda()
    field.uniform_sum(keys, coefficients, 1000), field.bounded(keys, 100, 1000)  # compiles
    field.bounded_sum(keys, coefficients, 100, 1000, 7)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, integers = field.uniform_sum(keys, coefficients, 1000), field.bounded(keys, 100, 1000)
        summed = field.bounded_sum(keys, coefficients, 100, 1000, 7)
    for seed in range(3):
        keys.copy_(some_keys(5, seed))
        graph.replay()
        on_cpu = ResidueField(primes, 1)
        assert found.cpu().equal(on_cpu.uniform_sum(keys.cpu(), coefficients.cpu(), 1000))
        assert integers.cpu().equal(on_cpu.bounded(keys.cpu(), 100, 1000))
        assert summed.cpu().equal(on_cpu.bounded_sum(keys.cpu(), coefficients.cpu(), 100, 1000, 7))
