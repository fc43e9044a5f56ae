"""The compiled expansion does what the steps in torch do, for any number of seeds and on any number of threads."""

import pytest
import torch

from dresfl.field import ResidueField
from dresfl.field.random import _bounded_sum_in_steps, _uniform_sum_in_steps
from dresfl.kernels import cpu
from dresfl.kernels.cpu import expansion

pytestmark = pytest.mark.skipif(cpu._compiled is None, reason="Numba is not installed")

FIELDS = [ResidueField((23, 251), 1), ResidueField((16711943, 16777199, 16777213), 1)]


def some_keys(count):
    return torch.randint(-(2**31), 2**31, (count, 8), generator=torch.Generator().manual_seed(count)).to(torch.int32)


@pytest.fixture(params=[1, 2])
def threads(request, monkeypatch):
    """One thread, or two that share everything."""
    before = torch.get_num_threads()
    monkeypatch.setattr(expansion, "_PARALLEL_WORDS", 0)
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize(("seeds", "count"), [(1, 1), (2, 256), (3, 257), (13, 3000), (254, 40), (255, 17), (600, 300)])
def test_sums(field, seeds, count, threads):
    keys = some_keys(seeds)
    # the largest coefficients: 256 products of them just fit 64 bits
    coefficients = field.embed(torch.tensor([-1] * seeds)) if seeds > 13 else field.embed(torch.arange(seeds) * 123457)
    expected = _uniform_sum_in_steps(field._p, field._inv_p, keys, coefficients, count)
    assert field.uniform_sum(keys, coefficients, count).equal(expected)


def test_more_rejected_words_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(expansion, "_DEVIATIONS", 0)  # room for the mean alone
    field, keys = ResidueField((16711943,), 1), some_keys(40)
    coefficients = field.embed(torch.arange(40))
    expected = _uniform_sum_in_steps(field._p, field._inv_p, keys, coefficients, 5000)
    assert field.uniform_sum(keys, coefficients, 5000).equal(expected)


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize(("bits", "seeds", "count"), [(1, 1, 1), (33, 3, 257), (500, 2, 1000)])
def test_bounded(field, bits, seeds, count, threads, monkeypatch):
    found = field.bounded(some_keys(seeds), bits, count)
    monkeypatch.setattr(cpu, "_compiled", None)
    assert found.equal(field.bounded(some_keys(seeds), bits, count))


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize(
    ("bits", "seeds", "first", "count"),
    [
        *((1, 1, 0, 1), (18, 3, 15, 1), (126, 8, 0, 256), (126, 19, 3000, 257), (33, 300, 17, 600)),
        *((64, 127, 1, 40), (64, 128, 0, 40), (8192, 2, 5, 20), (8160, 3, 0, 20)),  # around 255 terms
    ],
)
def test_bounded_sums(field, bits, seeds, first, count, threads):
    keys = some_keys(seeds)
    coefficients = field.embed(torch.tensor([-1] * seeds)) if seeds > 19 else field.embed(torch.arange(seeds) * 123457)
    expected = _bounded_sum_in_steps(field._p, field._inv_p, keys, coefficients, bits, first, count)
    assert field.bounded_sum(keys, coefficients, bits, count, first).equal(expected)


def test_a_bounded_sum_is_the_sum_of_its_integers():
    field, keys = FIELDS[1], some_keys(9)
    coefficients = field.embed(torch.arange(9) * 7654321)
    integers = field.bounded(keys, 126, 700)  # (M,S,count)
    expected = field.matmul(coefficients.unsqueeze(1), integers)[:, 0]
    assert field.bounded_sum(keys, coefficients, 126, 500, 200).equal(expected[:, 200:])


def test_strided_keys_and_coefficients():
    field, keys = FIELDS[1], some_keys(12)
    coefficients = field.embed(torch.arange(12))
    found = field.uniform_sum(keys[::2], coefficients[:, ::2], 50)
    assert found.equal(field.uniform_sum(keys[::2].contiguous(), coefficients[:, ::2].contiguous(), 50))
    found = field.bounded_sum(keys[::2], coefficients[:, ::2], 40, 50)
    assert found.equal(field.bounded_sum(keys[::2].contiguous(), coefficients[:, ::2].contiguous(), 40, 50))


def test_nothing_is_compiled_for_larger_moduli():
    p = torch.tensor([2.0**24 + 1], dtype=torch.float64)
    assert expansion.uniform_sum(some_keys(1), torch.ones((1, 1)), 1, 0, p, 1 / p) is None
    assert expansion.bounded(some_keys(1), 5, 1, 0, p, 1 / p) is None
    assert expansion.bounded_sum(some_keys(1), torch.ones((1, 1)), 5, 0, 1, 0, p, 1 / p) is None
