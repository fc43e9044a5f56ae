"""Codewords of least weight: the zero-sum polynomials that vanish at R − 2 clients.

Notation: R the threshold, β_1 … β_K the data points, α_j the point of client j, E a set of R − 2 clients.

    π_E(z) = Π_{e∈E} (z − α_e),   A = Σ_k π_E(β_k),   B = Σ_k β_k π_E(β_k),   c_E(z) = π_E(z)·(B − A z)

c_E has degree at most R − 1, vanishes at every client of E, and Σ_k c_E(β_k) = B·A − A·B = 0. Any other polynomial with
these three properties is a multiple of it, unless A = B = 0 modulo the prime, which takes three shards or more. In that
case c_E is zero in that channel: it hides nothing there, and `certificate` does not count it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dresfl.errors import UsageError
from dresfl.field import ResidueSystem

from .mask_family import MaskFamily

Integers = NDArray[np.int64]


def codewords(
    field: ResidueSystem, family: MaskFamily, data_points: Sequence[int], client_points: Sequence[int]
) -> Tensor:
    """(M,S,N): the values c_E(α_j) of the family's S codewords, as the field's residues. Every client computes them."""
    if len(client_points) != family.num_clients:
        raise UsageError(f"a family for {family.num_clients} clients, but points of {len(client_points)}")
    return field.from_canonical(codeword_values(field.moduli, family.sets, data_points, client_points))


def codeword_values(
    moduli: Sequence[int], sets: Sequence[Sequence[int]], data_points: Sequence[int], client_points: Sequence[int]
) -> Integers:
    """(M,S,N) in [0, p): the codewords of sets of one size, at all clients' points."""
    num_shards = len(data_points)
    beta, alpha = np.array(data_points, dtype=np.int64), np.array(client_points, dtype=np.int64)
    found = np.empty((len(moduli), len(sets), len(client_points)), dtype=np.int64)
    for channel, p in enumerate(moduli):
        product = vanishing_products(p, sets, client_points, (*data_points, *client_points))
        at_data = product[:, :num_shards]
        a = at_data.sum(1, keepdims=True) % p
        b = (at_data * beta).sum(1, keepdims=True) % p
        found[channel] = product[:, num_shards:] * ((b - a * alpha) % p) % p
    return found


def vanishing_products(
    p: int, sets: Sequence[Sequence[int]], client_points: Sequence[int], points: Sequence[int]
) -> Integers:
    """(S,points) in [0, p): π_E of sets of one size, at some points."""
    alpha, at = np.array(client_points, dtype=np.int64), np.array(points, dtype=np.int64)
    chosen = np.array(sets, dtype=np.int64).reshape(len(sets), -1)  # (S,size)
    span = int(max(alpha.max(), at.max()) - min(alpha.min(), at.min())) + 1  # above any difference of two points
    product = np.ones((len(sets), len(at)), dtype=np.int64)
    bound = 1
    for column in chosen.T:
        product *= at - alpha[column].reshape(-1, 1)
        bound *= span
        if bound * span >= 2**63:
            product %= p
            bound = p
    return product % p
