"""Ranks modulo a prime are python-flint's, compiled and not, on one thread and on two."""

import flint
import numpy as np
import pytest
import torch

from dresfl.kernels import cpu
from dresfl.kernels.cpu import ranks as module
from dresfl.kernels.cpu.ranks import ranks

COMPILED = cpu._compiled


@pytest.fixture(params=["compiled", "shared", "numpy"])
def path(request, monkeypatch):
    """Every path; without Numba the compiled ones are skipped."""
    before = torch.get_num_threads()
    if request.param == "numpy":
        monkeypatch.setattr(cpu, "_compiled", None)
    elif COMPILED is None:
        pytest.skip("Numba is not installed")
    elif request.param == "shared":
        monkeypatch.setattr(module, "_PARALLEL_ELEMENTS", 0)
        torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("p", [3, 7, 251, 16777213])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (5, 3), (8, 8), (19, 17), (0, 4)])
def test_ranks_are_flints(path, p, rows, columns):
    rng = np.random.default_rng(p)
    matrices = []
    for inner in [*range(10), *range(10)]:  # of rank at most `inner`, some with rows and columns of zeros
        product = rng.integers(0, p, (rows, inner)) @ rng.integers(0, p, (inner, columns)) % p
        product[rng.random(rows) < 0.2] = 0
        product[:, rng.random(columns) < 0.2] = 0
        matrices.append(product)
    expected = [flint.nmod_mat(rows, columns, m.flatten().tolist(), p).rank() if rows else 0 for m in matrices]
    stacked = np.stack(matrices)
    found = ranks(np.where(stacked > p // 2, stacked - p, stacked).astype(np.float64), p)
    assert found.tolist() == expected


def test_a_modulus_that_is_too_large_is_refused():
    with pytest.raises(ValueError, match="2\\^24"):
        ranks(np.zeros((1, 1, 1)), 2**24 + 43)
