"""Other libraries that multiply exactly modulo a 200-bit prime, on the CPU: whichever of them are installed.

Operands are converted before the clock starts, for every library.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, final

import numpy as np

from .timing import Call

PRIME = 2**200 - 75  # the paper's

Shape = tuple[int, int, int]  # (m,n) @ (n,k)


@final
@dataclass(frozen=True)
class Peer:
    """A library to compare with. `slow`: it takes half a second for what takes ours milliseconds."""

    name: str
    module: str
    prepare: Callable[[Shape, int], Call]
    slow: bool

    @property
    def installed(self) -> bool:
        return find_spec(self.module) is not None


def _integers(rows: int, columns: int, seed: int) -> list[int]:
    """Integers below the prime, row after row."""
    data = np.random.default_rng(seed).bytes(25 * rows * columns)
    return [int.from_bytes(data[start : start + 25], "little") % PRIME for start in range(0, len(data), 25)]


def _objects(rows: int, columns: int, seed: int) -> Any:
    return np.array(_integers(rows, columns, seed), dtype=object).reshape(rows, columns)


def _flint(shape: Shape, threads: int) -> Call:
    flint: Any = importlib.import_module("flint")
    m, n, k = shape
    context = flint.fmpz_mod_ctx(PRIME)
    left = flint.fmpz_mod_mat(m, n, _integers(m, n, 1), context)
    right = flint.fmpz_mod_mat(n, k, _integers(n, k, 2), context)

    def run() -> object:
        before, flint.ctx.threads = flint.ctx.threads, threads
        try:
            return left * right
        finally:
            flint.ctx.threads = before

    return run


def _galois(shape: Shape, threads: int) -> Call:
    galois: Any = importlib.import_module("galois")
    m, n, k = shape
    # with a given primitive element, unverified: p − 1 need not be factored for products
    field = galois.GF(PRIME, primitive_element=2, verify=False)
    left, right = field(_objects(m, n, 1)), field(_objects(n, k, 2))
    _ = left[:1] @ right[:, :1]  # sets itself up on a first product
    return lambda: left @ right


def _numpy(shape: Shape, threads: int) -> Call:
    m, n, k = shape
    left, right = _objects(m, n, 1), _objects(n, k, 2)
    return lambda: left @ right % PRIME


PEERS = (
    Peer("python-flint", "flint", _flint, slow=False),
    Peer("galois", "galois", _galois, slow=True),
    Peer("NumPy object", "numpy", _numpy, slow=True),
)
