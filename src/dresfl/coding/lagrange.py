"""The Lagrange code: how a client hides K shards in N shares, and how any R answers give the result back.

Notation: N clients, K shards, T colluders, d the degree of the function computed on shares.
β_1..β_K carry the shards, β_{K+1}..β_{K+T} the uniform masks, α_1..α_N are where clients evaluate:

    u(z) = Σ_{k≤K} X_k ℓ_k(z) + Σ_{K<k≤K+T} U_k ℓ_k(z),   ℓ_k(z) = Π_{j≠k} (z − β_j)/(β_k − β_j)

Client j holds u(α_j). Any g of degree d makes g(u(z)) a polynomial of degree d(K+T−1), so that
R = d(K+T−1) + 1 values fix it, and with it g(X_k) = g(u(β_k)). (Yu et al., "Lagrange Coded Computing".)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic, cast, final

import torch
from torch import Tensor

from dresfl.errors import InfeasiblePlan, TooFewAnswers, UsageError
from dresfl.field import Elements, ModularArithmetic, ResidueSystem

from .logarithms import LARGEST_GRID, grid_factors
from .parameters import CodeParameters

_CACHED_DECODERS = 128  # some hundred kilobytes each in the largest codes


def recovery_threshold(degree: int, num_shards: int, max_colluders: int) -> int:
    """R = d(K+T−1) + 1, the number of answers that fix the polynomial.

    >>> recovery_threshold(8, num_shards=1, max_colluders=1)
    9
    """
    return degree * (num_shards + max_colluders - 1) + 1


@final
@dataclass(frozen=True)
class LagrangeCode(Generic[Elements]):
    """An (N, K, T) Lagrange code for functions of degree `degree`, over any moduli with room for its points.

    >>> from dresfl.field import ResidueField, SecretSeed
    >>> field = ResidueField((101, 103, 107), num_value_moduli=2)
    >>> code = LagrangeCode(field, num_clients=4, num_shards=2, max_colluders=1, degree=1)
    >>> shards = field.embed(torch.tensor([[5, -6], [7, 8]]))
    >>> masks = field.uniform(SecretSeed.fresh().mask_key(b"").view(1, 8), torch.tensor([0]), 2)
    >>> shares = code.encode(shards, masks)
    >>> field.lift(code.decode(shares[:, [3, 0, 2]], (3, 0, 2))).tolist()
    [[5.0, -6.0], [7.0, 8.0]]
    """

    field: ModularArithmetic[Elements]
    num_clients: int
    num_shards: int
    max_colluders: int
    degree: int

    def __post_init__(self) -> None:
        CodeParameters(self.num_clients, self.num_shards, self.max_colluders)  # checks them
        if self.degree < 1:
            raise UsageError(f"degree must be at least 1, not {self.degree}")
        if self.recovery_threshold > self.num_clients:
            raise InfeasiblePlan(
                f"{self.num_clients} clients cannot decode: degree {self.degree}, {self.num_shards} shards and "
                f"{self.max_colluders} colluders need {self.recovery_threshold} answers",
                f"use at least {self.recovery_threshold} clients, or fewer shards, colluders or square layers",
            )
        points = self.num_clients + self.num_shards + self.max_colluders
        if min(self.field.moduli) <= points:
            raise UsageError(
                f"modulus {min(self.field.moduli)} has no room for {points} distinct points",
                "choose moduli above the number of clients + shards + colluders",
            )

    @property
    def recovery_threshold(self) -> int:
        """R: how many answers the coordinator needs."""
        return recovery_threshold(self.degree, self.num_shards, self.max_colluders)

    @property
    def data_points(self) -> tuple[int, ...]:
        """β_1..β_K, where the shards sit."""
        return tuple(range(1, self.num_shards + 1))

    @property
    def mask_points(self) -> tuple[int, ...]:
        """β_{K+1}..β_{K+T}, where the masks sit."""
        return tuple(range(self.num_shards + 1, self.num_shards + self.max_colluders + 1))

    @cached_property
    def client_points(self) -> tuple[int, ...]:
        """α_1..α_N, where the clients evaluate: disjoint from every β."""
        first = self.num_shards + self.max_colluders + 1
        return tuple(range(first, first + self.num_clients))

    @cached_property
    def encoding_matrix(self) -> Elements:
        """(M,N,K+T): row j holds ℓ_1(α_j) … ℓ_{K+T}(α_j)."""
        matrix: Elements = _encoding_matrix(self)
        return matrix

    @cached_property
    def public_matrix(self) -> Elements:
        """(M,N,K): evaluates at each client's point the polynomial of degree below K through values at β_1..β_K."""
        return lagrange_matrix(self.field, self.data_points, self.client_points)

    def encode(self, shards: Elements, masks: Elements, clients: Sequence[int] | Tensor | None = None) -> Elements:
        """A dealer's shares: shards (M,K,...), masks (M,T,...) -> (M,N,...), or those of `clients` only."""
        if shards.shape[1] != self.num_shards or masks.shape[1] != self.max_colluders:
            raise UsageError(
                f"{self.num_shards} shards and {self.max_colluders} masks expected, "
                f"{shards.shape[1]} and {masks.shape[1]} came"
            )
        chosen = slice(None) if clients is None else clients if isinstance(clients, Tensor) else list(clients)
        matrix = self.encoding_matrix[:, chosen]  # (M,n,K+T)
        if isinstance(self.field, ResidueSystem) and isinstance(shards, Tensor) and isinstance(masks, Tensor):
            found = self.field.combine(
                cast("Tensor", matrix), [*shards.unbind(1), *masks.unbind(1)]
            )  # (M,n,...), without a copy
            return cast("Elements", found)
        hidden = self.field.concat((shards, masks), 1)  # (M,K+T,...)
        return self._apply(matrix, hidden)

    def decoding_matrix(self, survivors: Sequence[int]) -> Elements:
        """(M,K,R): the answers of exactly R survivors -> values at β_1..β_K. Cached by its survivors."""
        matrix: Elements = _decoding_matrix(self, tuple(survivors))
        return matrix

    def decode(self, answers: Elements, survivors: Sequence[int]) -> Elements:
        """g at each shard: answers (M,R,...) of the clients `survivors`, in that order -> (M,K,...)."""
        self._check(answers.shape[1], survivors)
        return self._apply(self.decoding_matrix(survivors), answers)

    def decode_sum(self, answers: Elements, survivors: Sequence[int]) -> Elements:
        """Σ_k g(X_k), all that the coordinator needs: answers (M,R,...) -> (M,...)."""
        self._check(answers.shape[1], survivors)
        return self._apply(self.sum_decoder(survivors).reshape(len(self.field.moduli), 1, -1), answers)[:, 0]

    def sum_decoder(self, survivors: Sequence[int]) -> Elements:
        """(M,R): the coefficients that `decode_sum` gives the answers of R survivors. Cached by its survivors."""
        coefficients: Elements = _sum_decoder(self, tuple(survivors))
        return coefficients

    def sum_decoders(self, survivors: Tensor) -> Elements:
        """(M,S,R): `sum_decoder` of S sets of R survivors (S,R) at once, for drivers that prepare many rounds."""
        return lagrange_sums(self.field, survivors + self.client_points[0], self.data_points)

    def _check(self, num_answers: int, survivors: Sequence[int]) -> None:
        if len(survivors) < self.recovery_threshold:
            raise TooFewAnswers(
                f"{len(survivors)} of {self.num_clients} answered, {self.recovery_threshold} needed (degree "
                f"{self.degree}, shards {self.num_shards}, colluders {self.max_colluders}); the round is skipped"
            )
        if not set(survivors) <= set(range(self.num_clients)):
            raise UsageError(f"survivors {list(survivors)} are not all among clients 0..{self.num_clients - 1}")
        if not len(set(survivors)) == len(survivors) == num_answers == self.recovery_threshold:
            raise UsageError(
                f"exactly {self.recovery_threshold} answers of as many clients are decoded at a time, "
                f"{num_answers} of {len(set(survivors))} came"
            )

    def _apply(self, matrix: Elements, columns: Elements) -> Elements:
        num_moduli, count, *shape = columns.shape
        flat = self.field.matmul(matrix, columns.reshape(num_moduli, count, -1))  # (M,a,b) @ (M,b,F)
        return flat.reshape(num_moduli, matrix.shape[1], *shape)


def lagrange_matrix(field: ModularArithmetic[Elements], nodes: Sequence[int], targets: Sequence[int]) -> Elements:
    """(M,targets,nodes): evaluates at `targets` the polynomial through values at `nodes` (disjoint sets)."""
    return lagrange_matrices(field, torch.tensor([list(nodes)]), targets)[:, 0]


def lagrange_matrices(field: ModularArithmetic[Elements], nodes: Tensor, targets: Sequence[int]) -> Elements:
    """(M,S,targets,nodes) for S sets of nodes (S,nodes) at once.

    Barycentric form: entry (t,j) = Π_i (z_t − x_i) / [(z_t − x_j) · Π_{i≠j} (x_j − x_i)].
    """
    scaled, weights = _factors(field, nodes, targets)
    return field.mul(scaled, weights.reshape(*weights.shape[:2], 1, -1))


def lagrange_sums(field: ModularArithmetic[Elements], nodes: Tensor, targets: Sequence[int]) -> Elements:
    """(M,S,nodes): the entries of `lagrange_matrices`, summed over the targets."""
    scaled, weights = _factors(field, nodes, targets)
    return field.mul(field.sum(scaled, 2), weights)


def _factors(field: ModularArithmetic[Elements], nodes: Tensor, targets: Sequence[int]) -> tuple[Elements, Elements]:
    """Π_i (z_t − x_i) / (z_t − x_j) as (M,S,targets,nodes), and 1 / Π_{i≠j} (x_j − x_i) as (M,S,nodes)."""
    num_moduli, sets = len(field.moduli), nodes.shape[0]
    low, high = min(int(nodes.min()), *targets), max(int(nodes.max()), *targets)
    if isinstance(field, ResidueSystem) and 0 <= low <= high < min(LARGEST_GRID, *field.moduli):
        found = grid_factors(field.moduli, nodes.numpy(), targets)
        at_targets, weights, inverses = (
            cast("Elements", field.from_canonical(part)) for part in (found.at_targets, found.weights, found.inverses)
        )
    else:
        at_targets, weights, inverses = product_factors(field, nodes, targets)
    return field.mul(inverses, at_targets.reshape(num_moduli, sets, -1, 1)), weights


def product_factors(
    field: ModularArithmetic[Elements], nodes: Tensor, targets: Sequence[int]
) -> tuple[Elements, Elements, Elements]:
    """What `grid_factors` gives, as plain products in any field: R² of them, and inverses of all differences."""
    distances = torch.tensor(list(targets)).view(1, -1, 1) - nodes.unsqueeze(1)  # (S,targets,nodes), never 0
    gaps = nodes.unsqueeze(2) - nodes.unsqueeze(1) + torch.eye(nodes.shape[1], dtype=torch.int64)  # 1 on the diagonal

    def products(integers: Tensor) -> Elements:
        product = field.embed(integers[..., 0])
        for place in range(1, integers.shape[-1]):
            product = field.mul(product, field.embed(integers[..., place]))
        return product  # (M,S,rows)

    return products(distances), field.inverse(products(gaps)), field.inverse(field.embed(distances))


@lru_cache(maxsize=16)  # many sessions of one process may have the same code
def _encoding_matrix(code: LagrangeCode[Elements]) -> Elements:
    return lagrange_matrix(code.field, code.data_points + code.mask_points, code.client_points)


@lru_cache(maxsize=_CACHED_DECODERS)
def _decoding_matrix(code: LagrangeCode[Elements], survivors: tuple[int, ...]) -> Elements:
    first = code.client_points[0]
    return lagrange_matrix(code.field, [first + j for j in survivors], code.data_points)


@lru_cache(maxsize=_CACHED_DECODERS)
def _sum_decoder(code: LagrangeCode[Elements], survivors: tuple[int, ...]) -> Elements:
    return code.sum_decoders(torch.tensor([survivors]))[:, 0]
