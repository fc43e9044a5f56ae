"""The embedding kernel gives the unique symmetric residues. Without a GPU, Triton's interpreter runs it."""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from dresfl.kernels.embed_triton import embed_int8  # noqa: E402

PRIMES = (3, 23, 127, 251)
EDGES = [0, 1, -1, 125, -125, 126, -126, 2**31 - 1, -(2**31) + 1]


@pytest.mark.parametrize("count", [1, 9, 1023, 1024, 1500])
def test_residues_are_symmetric_and_congruent(count):
    generator = torch.Generator().manual_seed(count)
    integers = torch.randint(-(2**31) + 1, 2**31, (count,), generator=generator)
    integers[: len(EDGES)] = torch.tensor(EDGES[:count])
    found = embed_int8(integers.to(DEVICE), torch.tensor(PRIMES, dtype=torch.int32, device=DEVICE)).cpu()
    p = torch.tensor(PRIMES).view(-1, 1)
    assert found.dtype == torch.int8
    assert found.to(torch.int64).equal((integers + p // 2) % p - p // 2)


def test_shapes_are_kept():
    moduli = torch.tensor(PRIMES, dtype=torch.int32, device=DEVICE)
    assert embed_int8(torch.zeros((2, 3, 4), dtype=torch.int64, device=DEVICE), moduli).shape == (4, 2, 3, 4)
    assert embed_int8(torch.zeros((0,), dtype=torch.int64, device=DEVICE), moduli).shape == (4, 0)
