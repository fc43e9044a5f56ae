"""The step's kernels give the bits of torch's operations. Without a GPU, Triton's interpreter runs them."""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from dresfl.kernels import largest_magnitude, step_triton  # noqa: E402
from dresfl.optimizers import squared_norm  # noqa: E402
from dresfl.quantize import stepped_integers  # noqa: E402


def reals(count, seed):
    """Of many sizes, so that every sum rounds."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-40, 41, (count,), generator=generator)
    return torch.ldexp(torch.randn(count, generator=generator, dtype=torch.float64), exponents)


@pytest.mark.parametrize("count", [1, 1023, 1024, 3000])
def test_steps(count):
    integers = torch.randint(-(2**20), 2**20, (count,), generator=torch.Generator().manual_seed(1))
    update, scales = reals(count, 2), torch.full((count,), 1024.0, dtype=torch.float64)
    noise = torch.rand(count, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for before in (integers, integers.to(torch.float64)):
        given = before, update, scales, noise
        found = step_triton.stepped_integers(*(x.to(DEVICE) for x in given))
        assert found.cpu().equal(stepped_integers(*given))


@pytest.mark.parametrize("count", [17, 1000, 4096, 5000, 40000])
def test_squared_norm(count):
    values = reals(count, 4)
    squares = step_triton.squares_by_sixteen(values.to(DEVICE)).cpu()
    while squares.numel() > 1:
        half = squares.numel() // 2
        squares = squares[:half] + squares[half:]
    assert squares[0] == squared_norm(values)


@pytest.mark.parametrize("values", [[0], [3, -7], [-1, 5], [-(2.0**70), 1.5]])
def test_largest_magnitude(values):
    assert largest_magnitude(torch.tensor(values)) == max(map(abs, values))
