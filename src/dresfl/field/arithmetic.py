"""The arithmetic that codes and networks are written in, and its fast form: a residue number system.

`Field` is what `coding` and `model` know. `ResidueField` is Z_M, M = p_1⋯p_C, held as C residues: the
Chinese remainder theorem makes channel-wise arithmetic arithmetic modulo M, exactly.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, final

import torch
from torch import Tensor

from dresfl.errors import FieldError, HeadroomAlarm, MessageError
from dresfl.kernels import (
    SLACK,
    canonical_,
    cpu,
    decode_lift,
    exact_inner_length,
    fused_kernels,
    matmul,
    reduce_,
    uniform_residues,
)

from .lifting import garner_inverses, mixed_radix_digits, nearest_float64, radix_limbs
from .moduli import LARGEST_MODULUS, is_prime
from .random import uniform_elements

# Elements of whichever field is at work, channel axis first: a float64 tensor in `ResidueField`, an object
# array in the tests' big-integer field. Both know reshape, swapaxes, slicing and indexing.
Elements = Any


def take(elements: Tensor, index: Tensor) -> Tensor:
    """elements[..., index] over the last axis, 0 where index is −1."""
    places, padded = _places(index, elements.shape[-1], str(elements.device))
    if padded:
        elements = torch.nn.functional.pad(elements, (0, 1))
    return elements.index_select(-1, places).view(*elements.shape[:-1], *index.shape)


@lru_cache(maxsize=256)
def _places(index: Tensor, size: int, device: str) -> tuple[Tensor, bool]:
    """An index table on a device, −1 turned into the place of an appended zero. Tables live as long as networks."""
    padded = bool((index < 0).any())
    return (index % (size + 1) if padded else index).flatten().to(device), padded


class Field(ABC):
    """Exact modular arithmetic on arrays (M,...) of residues."""

    @property
    @abstractmethod
    def moduli(self) -> tuple[int, ...]:
        """The moduli of the channels."""

    @property
    def modulus(self) -> int:
        """Their product: arithmetic here is arithmetic modulo this number."""
        return math.prod(self.moduli)

    @abstractmethod
    def embed(self, integers: Tensor) -> Elements:
        """Signed integers (...), |x| ≤ 2^53 − 2^25 -> residues (M,...)."""

    @abstractmethod
    def public(self, integers: Tensor) -> Any:
        """Prepare a matrix (n,k) that every party knows (weights) for `matmul_public`."""

    @abstractmethod
    def transposed(self, public: Any) -> Any:
        """The public matrix, transposed."""

    @abstractmethod
    def matmul_public(self, left: Elements, right: Any) -> Elements:
        """(M,...,n) @ public (n,k) -> (M,...,k)."""

    @abstractmethod
    def matmul(self, left: Elements, right: Elements) -> Elements:
        """(M,...,m,n) @ (M,...,n,k) -> (M,...,m,k)."""

    @abstractmethod
    def add(self, left: Elements, right: Elements) -> Elements:
        """left + right."""

    @abstractmethod
    def sub(self, left: Elements, right: Elements) -> Elements:
        """left − right."""

    @abstractmethod
    def mul(self, left: Elements, right: Elements) -> Elements:
        """left · right, elementwise."""

    @abstractmethod
    def scale(self, elements: Elements, factor: int) -> Elements:
        """elements · factor for one integer of any size."""

    @abstractmethod
    def add_integer(self, elements: Elements, integer: int) -> Elements:
        """elements + integer for one integer of any size."""

    @abstractmethod
    def inverse(self, elements: Elements) -> Elements:
        """The multiplicative inverse of elements that are non-zero in every channel."""

    @abstractmethod
    def concat(self, parts: Sequence[Elements], axis: int) -> Elements:
        """The parts one after the other along an axis."""

    @abstractmethod
    def sum(self, elements: Elements, axis: int) -> Elements:
        """Sum along one axis (not the channel axis)."""

    @abstractmethod
    def take(self, elements: Elements, index: Tensor) -> Elements:
        """elements[..., index] over the last axis, 0 where index is −1: (M,...,F) -> (M,...,*index.shape)."""


@final
@dataclass(frozen=True)
class PublicMatrix:
    """Integers that every party knows: (n,k) if one matrix serves all channels, else residues (M,n,k)."""

    values: Tensor
    bound: int


@final
@dataclass(frozen=True)
class ResidueField(Field):
    """Z_M as residues modulo small primes, symmetric, in float64.

    The last moduli, beyond the first `num_value_moduli`, are headroom: `lift` refuses any value that needs them.

    >>> field = ResidueField((101, 103, 107), num_value_moduli=2)
    >>> field.lift(field.mul(field.embed(torch.tensor([-70])), field.embed(torch.tensor([70])))).tolist()
    [-4900.0]
    """

    primes: tuple[int, ...]
    num_value_moduli: int
    device: str = "cpu"
    public_bound: int = 0  # |public integers| are taken to stay below this; 0: looked up each time

    def __post_init__(self) -> None:
        if len(set(self.primes)) != len(self.primes) or list(self.primes) != sorted(self.primes):
            raise FieldError("moduli must be distinct and ascending", "use choose_moduli")
        composite = [p for p in self.primes if p == 2 or not is_prime(p)]
        if composite:
            raise FieldError(f"{composite[0]} is not an odd prime", "use choose_moduli")
        if not 0 < self.num_value_moduli <= len(self.primes):
            raise FieldError(f"{self.num_value_moduli} of {len(self.primes)} moduli cannot hold the values")
        if self.primes[-1] > LARGEST_MODULUS:
            raise FieldError(f"{self.primes[-1]} is too large for exact products", f"stay below {LARGEST_MODULUS}")
        if len(self.primes) * self._bound * 2**24 >= 2**53 or self.modulus.bit_length() > 900:
            raise FieldError(f"{len(self.primes)} moduli up to {self.primes[-1]} are too many to lift exactly")

    @property
    def moduli(self) -> tuple[int, ...]:
        return self.primes

    @property
    def dtype(self) -> torch.dtype:
        """How a residue is stored."""
        return torch.float64

    def with_public_bound(self, bound: int) -> "ResidueField":
        """This field, taking public integers to stay below `bound` instead of looking."""
        return dataclasses.replace(self, public_bound=bound)

    @property
    def value_bound(self) -> int:
        """The largest |x| that `lift` accepts."""
        return (math.prod(self.primes[: self.num_value_moduli]) - 1) // 2

    @property
    def _bound(self) -> int:
        return self.primes[-1] // 2 + 1 + SLACK

    @cached_property
    def _p(self) -> Tensor:
        return torch.tensor(self.primes, dtype=torch.float64, device=self.device)

    @cached_property
    def _inv_p(self) -> Tensor:
        return 1.0 / self._p

    @cached_property
    def _garner(self) -> Tensor:
        return garner_inverses(self.primes).to(self.device)

    @cached_property
    def _radix(self) -> Tensor:
        return radix_limbs(self.primes).to(self.device)

    def _reduce_(self, x: Tensor) -> Tensor:
        return reduce_(x, self._p, self._inv_p)

    def _per_channel(self, integer: int, like: Tensor) -> Tensor:
        return self.constant(integer).view(-1, *[1] * (like.dim() - 1))

    def constant(self, integer: int) -> Tensor:
        """(M,) symmetric residues of one integer of any size."""
        return _constant(self, integer)

    # -- into and out of the field ---------------------------------------------------------------------------

    def embed(self, integers: Tensor) -> Tensor:
        return cpu.embed(integers.to(self.device), self._p, self._inv_p)

    def public(self, integers: Tensor) -> PublicMatrix:
        bound = self.public_bound or (int(integers.abs().max()) if integers.numel() else 0)
        if exact_inner_length(self._bound, bound) >= 1:
            return PublicMatrix(integers.to(self.device, torch.float64), bound)
        return PublicMatrix(self.embed(integers), self._bound)

    def digits(self, residues: Tensor) -> Tensor:
        """Symmetric mixed-radix digits (M,...)."""
        return mixed_radix_digits(residues, self._p, self._inv_p, self._garner)

    def lift(self, residues: Tensor) -> Tensor:
        """ψ: residues (M,...) -> signed integers (...), correctly rounded to float64.

        Raises HeadroomAlarm if any value lies beyond ±value_bound: then something overflowed or was altered.
        """
        values, exceeded = self.lift_checked(residues)
        if int(exceeded):
            raise HeadroomAlarm(
                f"{int(exceeded)} of {values.numel()} decoded values exceed "
                f"{math.log2(self.value_bound):.0f} bits: overflow or a corrupt answer",
                "if it persists, give the plan more bits (smaller weights, clipping) or look for a faulty client",
            )
        return values

    def lift_checked(self, residues: Tensor) -> tuple[Tensor, Tensor]:
        """`lift` without the exception: the values, and how many of them lie beyond ±value_bound (a tensor)."""
        digits = self.digits(residues)
        flat = digits.reshape(len(self.primes), -1)
        exceeded = flat[self.num_value_moduli :].ne(0).any(0).sum()
        return nearest_float64(flat, self._radix).view(digits.shape[1:]), exceeded

    def decode_lift(self, coefficients: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_j coefficients[m,j]·answers[m,j], lifted: (M,R), (M,R,P) -> values (P,), how many are out of range."""
        if fused_kernels(self.device):
            return decode_lift(answers, coefficients, self.primes, self.num_value_moduli)
        return self.lift_checked(self.matmul(coefficients.unsqueeze(1), answers)[:, 0])

    def lift_exact(self, residues: Tensor) -> list[int]:
        """The same integers as Python integers, flattened, without the headroom check: for vectors and tests."""
        digits = self.digits(residues).reshape(len(self.primes), -1).to(torch.int64).T.tolist()
        radices = [math.prod(self.primes[:i]) for i in range(len(self.primes))]
        return [sum(d * r for d, r in zip(row, radices, strict=True)) for row in digits]

    def uniform(self, keys: Tensor, rows: Tensor, count: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Exactly uniform residues (M,R,count) of the owners' secret keys (R,8) for rows (R,)."""
        if fused_kernels(self.device):
            return uniform_residues(self._p.to(torch.int64), keys, rows, count, dtype)
        return uniform_elements(self.primes, self._p, self._inv_p, keys, rows, count).to(dtype)

    # -- bytes -----------------------------------------------------------------------------------------------

    @property
    def residue_bytes(self) -> int:
        """Bytes of one packed residue: 1, 2 or 3."""
        return -(-self.primes[-1].bit_length() // 8)

    def pack(self, residues: Tensor) -> bytes:
        """Residues as little-endian integers in [0, p), `residue_bytes` each, channel-major."""
        return cpu.pack(residues.cpu(), self._p.cpu(), self.residue_bytes)

    def unpack(self, packed: bytes | memoryview, shape: Sequence[int]) -> Tensor:
        """The residues (M,*shape) in `packed`; a wrong length or a residue ≥ p is refused."""
        full = (len(self.primes), *shape)
        expected = math.prod(full) * self.residue_bytes
        if len(packed) != expected:
            raise MessageError(f"{expected} bytes of residues expected, {len(packed)} came")
        octets = torch.frombuffer(bytearray(packed or b"-"), dtype=torch.uint8)[:expected]
        residues = cpu.unpack(octets, shape, self._p.cpu(), self.residue_bytes)
        if residues is None:
            raise MessageError("a residue is not below its modulus")
        return residues.to(self.device)

    # -- arithmetic ------------------------------------------------------------------------------------------

    def matmul(self, left: Tensor, right: Tensor) -> Tensor:
        return matmul(left, right, self._p, self._inv_p, self._bound, self._bound)

    def transposed(self, public: PublicMatrix) -> PublicMatrix:
        return PublicMatrix(public.values.swapaxes(-1, -2), public.bound)

    def matmul_public(self, left: Tensor, right: PublicMatrix) -> Tensor:
        if right.values.dim() == 2:
            return matmul(left, right.values, self._p, self._inv_p, self._bound, right.bound)
        rows = left.reshape(left.shape[0], -1, left.shape[-1])
        product = matmul(rows, right.values, self._p, self._inv_p, self._bound, right.bound)
        return product.view(*left.shape[:-1], -1)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        return cpu.add_reduce(left, right, self._p, self._inv_p)

    def sub(self, left: Tensor, right: Tensor) -> Tensor:
        return cpu.sub_reduce(left, right, self._p, self._inv_p)

    def mul(self, left: Tensor, right: Tensor) -> Tensor:
        return cpu.mul_reduce(left, right, self._p, self._inv_p)

    def scale(self, elements: Tensor, factor: int) -> Tensor:
        return cpu.scale_reduce(elements, self.constant(factor), self._p, self._inv_p)

    def add_integer(self, elements: Tensor, integer: int) -> Tensor:
        return cpu.add_reduce(elements, self._per_channel(integer, elements), self._p, self._inv_p)

    def inverse(self, elements: Tensor) -> Tensor:
        # Fermat: x^(p−2), one exponent bit of all channels at a time
        if bool((canonical_(elements.clone(), self._p) == 0).any()):
            raise FieldError("zero has no inverse")
        exponents = torch.tensor([p - 2 for p in self.primes], device=self.device)
        result, power = torch.ones_like(elements), elements
        for bit in range(self.primes[-1].bit_length()):
            chosen = ((exponents >> bit) & 1).bool().view(-1, *[1] * (elements.dim() - 1))
            result = torch.where(chosen, self.mul(result, power), result)
            power = self.mul(power, power)
        return result

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        return torch.cat(tuple(parts), axis)

    def sum(self, elements: Tensor, axis: int) -> Tensor:
        return self._reduce_(elements.sum(axis))

    def take(self, elements: Tensor, index: Tensor) -> Tensor:
        return take(elements, index)


@lru_cache(maxsize=1024)
def _constant(field: ResidueField, integer: int) -> Tensor:
    """(M,) symmetric residues of one integer of any size."""
    residues = [(integer + p // 2) % p - p // 2 for p in field.moduli]
    return torch.tensor(residues, dtype=torch.float64, device=field.device)
