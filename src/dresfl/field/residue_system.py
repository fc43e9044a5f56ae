"""Z_M, M = p_1⋯p_C, as one residue for each small prime: what a protocol computes, sends and decodes in.

By the Chinese remainder theorem, arithmetic in all channels together is arithmetic modulo M, exactly.
`ResidueField` stores residues as float64, `ByteField` as int8; both give the same integers.
"""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dresfl.errors import FieldError, HeadroomAlarm, MessageError
from dresfl.kernels import SLACK, canonical_, cpu, fused_kernels, per_channel
from dresfl.kernels.cpu import bits, dots
from dresfl.kernels.cpu import packed as packed_bytes

from .arithmetic import ModularArithmetic, take_or_zero
from .lifting import garner_inverses, low_bits, mixed_radix_digits, nearest_float64, radix_limbs, wrapped_radix
from .moduli import is_prime
from .packed_residues import PackedResidues, Residues
from .random import bounded_integers, bounded_sum, check_bits, uniform_elements, uniform_sum

_COLUMNS = 2**12  # coordinates that are decoded at a time
_MANY_ROWS = 8  # from here on a product is faster than sums row by row, though the rows are copied first
_MOST_SHIFT = 62  # bits: what is cut off fits a signed 64-bit integer


@dataclass(frozen=True)
class ResidueSystem(ModularArithmetic[Tensor]):
    """Residues modulo distinct odd primes, ascending; each residue is symmetric around 0.

    The moduli beyond the first `num_value_moduli` are headroom: `lift` refuses any value that needs them.
    """

    moduli: tuple[int, ...]
    num_value_moduli: int
    device: str = "cpu"

    LARGEST_MODULUS: ClassVar[int]

    def __post_init__(self) -> None:
        if len(set(self.moduli)) != len(self.moduli) or list(self.moduli) != sorted(self.moduli):
            raise FieldError("moduli must be distinct and ascending", "use choose_moduli")
        composite = [p for p in self.moduli if p == 2 or not is_prime(p)]
        if composite:
            raise FieldError(f"{composite[0]} is not an odd prime", "use choose_moduli")
        if not 0 < self.num_value_moduli <= len(self.moduli):
            raise FieldError(f"{self.num_value_moduli} of {len(self.moduli)} moduli cannot hold the values")
        if self.moduli[-1] > self.LARGEST_MODULUS:
            raise FieldError(
                f"{self.moduli[-1]} is too large a modulus for exact products of {self.dtype} residues",
                f"use primes up to {self.LARGEST_MODULUS}",
            )
        if len(self.moduli) * self._bound * 2**24 >= 2**53 or self.modulus.bit_length() > 900:
            raise FieldError(f"{len(self.moduli)} moduli up to {self.moduli[-1]} are too many to lift exactly")

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """How a residue is stored."""

    @abstractmethod
    def with_public_bound(self, bound: int) -> "ResidueSystem":
        """The same system, told that every |public integer| stays below `bound`: it need not look at them."""

    def part(self, first: int, end: int) -> Self:
        """Channels first … end − 1 as a system of their own: the same residues. It lifts nothing of the whole.

        >>> from dresfl.field import ResidueField
        >>> whole = ResidueField((101, 103, 107), num_value_moduli=2)
        >>> number = torch.tensor([-4900])
        >>> whole.part(1, 3).embed(number).equal(whole.embed(number)[1:3])
        True
        """
        if not 0 <= first < end <= len(self.moduli):
            raise FieldError(f"there are no channels {first} to {end - 1} among {len(self.moduli)}")
        return dataclasses.replace(self, moduli=self.moduli[first:end], num_value_moduli=end - first)

    @property
    def value_bound(self) -> int:
        """The largest |x| that `lift` accepts."""
        return (math.prod(self.moduli[: self.num_value_moduli]) - 1) // 2

    @property
    def _bound(self) -> int:
        """No stored |residue| is larger."""
        return self.moduli[-1] // 2 + 1 + SLACK

    @cached_property
    def _p(self) -> Tensor:
        return torch.tensor(self.moduli, dtype=torch.float64, device=self.device)

    @cached_property
    def cpu_moduli(self) -> Tensor:
        """The moduli (M,) float64 in the host's memory, where messages are."""
        return self._p.cpu()

    @cached_property
    def _inv_p(self) -> Tensor:
        return 1.0 / self._p

    @cached_property
    def _garner(self) -> Tensor:
        return garner_inverses(self.moduli).to(self.device)

    @cached_property
    def _radix(self) -> Tensor:
        return radix_limbs(self.moduli).to(self.device)

    @cached_property
    def _float_radix(self) -> Tensor:
        """(M,): p_0⋯p_{i−1}, about."""
        radix = [float(math.prod(self.moduli[:i])) for i in range(len(self.moduli))]
        return torch.tensor(radix, dtype=torch.float64, device=self.device)

    def from_canonical(self, integers: npt.NDArray[np.int64]) -> Tensor:
        """Integers (M,...), those of each channel in [0, p), as residues of this system."""
        p = np.array(self.moduli, dtype=np.int64).reshape(-1, *[1] * (integers.ndim - 1))
        return torch.from_numpy(integers - p * (integers > p // 2)).to(self.device, self.dtype)

    # -- integers out of residues ----------------------------------------------------------------------------

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
        flat = digits.reshape(len(self.moduli), -1)
        beyond = torch.zeros(flat.shape[1], dtype=torch.bool, device=flat.device)
        for digit in flat[self.num_value_moduli :]:
            beyond |= digit.ne(0)
        return nearest_float64(flat, self._radix).view(digits.shape[1:]), beyond.sum()

    def lift_exact(self, residues: Tensor) -> list[int]:
        """The same integers as Python integers, flattened, without the headroom check: for test vectors and tests."""
        digits = self.digits(residues).reshape(len(self.moduli), -1).to(torch.int64).T.tolist()
        radices = [math.prod(self.moduli[:i]) for i in range(len(self.moduli))]
        return [sum(d * r for d, r in zip(row, radices, strict=True)) for row in digits]

    def decode_lift(self, coefficients: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_j coefficients[m,j]·answers[m,j], lifted: (M,R), (M,R,P) -> values (P,), how many are out of range."""
        if fused_kernels(self.device):
            from dresfl.kernels.lift_triton import decode_lift, lift_tables

            return decode_lift(answers, coefficients, lift_tables(self.moduli, self.num_value_moduli))
        compiled = self._decode_lift_compiled(coefficients, answers.unbind(1))
        if compiled is not None:
            return compiled
        return self.lift_checked(self.matmul(coefficients.unsqueeze(1), answers)[:, 0])

    def decode_lift_packed(
        self, coefficients: Tensor, answers: Sequence[PackedResidues], first: int, last: int
    ) -> tuple[Tensor, Tensor]:
        """`decode_lift` of columns first … last − 1 of answers (M,P) that are still packed."""
        if self.device != "cpu" or self.dtype != torch.float64:
            piece = torch.stack([answer.columns(first, last) for answer in answers], 1)  # (M,R,·)
            return self.decode_lift(coefficients, piece)
        octets, size = [answer.octets for answer in answers], self.residue_bytes
        total = packed_bytes.combine_columns(octets, coefficients, first, last, self._p, self._inv_p, size)
        return self.lift_checked(total)

    def decode_lift_answers(self, coefficients: Tensor, answers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """`decode_lift` of answers (M,P) that lie apart: each is read once, and none is copied, where a CPU decodes."""
        compiled = self._decode_lift_compiled(coefficients, answers)
        if compiled is not None:
            return compiled
        size = answers[0].shape[1]
        pieces = [
            self.decode_lift(coefficients, torch.stack([x[:, start : start + _COLUMNS] for x in answers], 1))  # (M,R,·)
            for start in range(0, size, _COLUMNS)
        ]
        integers, exceeded = zip(*pieces, strict=True)
        return torch.cat(integers), torch.stack(exceeded).sum()

    def _decode_lift_compiled(self, coefficients: Tensor, answers: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
        if self.dtype != torch.float64 or torch.device(self.device).type != "cpu" or not answers:
            return None
        constants = self._p, self._inv_p, self._bound, self.num_value_moduli, self._garner, self._radix
        return cpu.decode_lift(coefficients, answers, *constants)

    def digits(self, residues: Tensor) -> Tensor:
        """Symmetric mixed-radix digits (M,...) float64; `lifting` explains them."""
        return mixed_radix_digits(residues.to(torch.float64), self._p, self._inv_p, self._garner)

    def floor_shift(self, residues: Tensor, bits: int) -> tuple[Tensor, Tensor]:
        """The residues of ⌊x/2^bits⌋ for signed x, 0 ≤ bits ≤ 62, and about x itself: (M,n) -> (M,n), (n,) float64.

        >>> from dresfl.field import ResidueField
        >>> field = ResidueField((101, 103, 107), num_value_moduli=3)
        >>> field.lift(field.floor_shift(field.embed(torch.tensor([21, -21])), 2)[0]).tolist()
        [5.0, -6.0]
        """
        if not 0 <= bits <= _MOST_SHIFT:
            raise FieldError(f"values are shifted by 0 to {_MOST_SHIFT} bits, not {bits}")
        digits = self.digits(residues)
        low = low_bits(digits, wrapped_radix(self.moduli), bits)
        rest = self.sub(residues, self.embed_wide(low, bits))
        inverse = residues_of(self.moduli, self.device, self.dtype, pow(2, -bits, self.modulus))
        return self.mul(rest, per_channel(inverse, rest)), self._float_radix @ digits

    def cut(self, residues: Tensor, added: Tensor, bits: int, most_bits: int, beyond: Tensor) -> Tensor:
        """The residues of ⌊(x + added)/2^bits⌋, added (n,) int64 below 2^62: (M,n) -> (M,n).

        beyond (1,) int64: grows by the number of |x| that reach 2^most_bits. Nothing here looks at values.
        """
        if fused_kernels(self.device):
            from dresfl.kernels.cut_triton import cut

            return cut(self.moduli, residues, added, bits, most_bits, beyond)
        found, sizes = self.floor_shift(self.add(residues, self.embed_wide(added, _MOST_SHIFT)), bits)
        beyond += ((sizes - added.to(torch.float64)).abs() >= 2.0**most_bits).sum()
        return found

    def count_above(self, residues: Tensor, limit: int, beyond: Tensor) -> None:
        """Add to beyond (1,) int64 how many x are above an integer: (M,...)."""
        if fused_kernels(self.device):
            from dresfl.kernels.cut_triton import count_above

            count_above(self.moduli, residues.flatten(1), limit, beyond)
            return
        beyond += (self.lift_checked(residues)[0] > limit).sum()

    def embed_wide(self, values: Tensor, bits: int) -> Tensor:
        """The residues of int64 values |x| < 2^bits, bits ≤ 62."""
        if bits <= 52:
            return self.embed(values)
        high, low = values >> 31, values & (2**31 - 1)
        return self.add(self.scale(self.embed(high), 2**31), self.embed(low))

    # -- randomness and bytes --------------------------------------------------------------------------------

    def uniform(self, keys: Tensor, rows: Tensor, count: int) -> Tensor:
        """Exactly uniform residues (M,R,count) of the owners' secret keys (R,8) for rows (R,)."""
        if fused_kernels(self.device):
            from dresfl.kernels.chacha_triton import uniform_residues

            return uniform_residues(self._p.to(torch.int64), keys, rows, count, self.dtype)
        return uniform_elements(self._p, self._inv_p, keys, rows, count).to(self.dtype)

    def uniform_sum(self, keys: Tensor, coefficients: Tensor, count: int) -> Tensor:
        """Σ_s coefficients[m,s]·r_s[m,j]: keys (S,8), coefficients (M,S) -> (M,count); each r_s exactly uniform."""
        self._check_coefficients(keys, coefficients)
        if fused_kernels(self.device):
            from dresfl.kernels.expansion_triton import uniform_sums

            return uniform_sums(self._p.to(torch.int64), keys, coefficients, count, self.dtype)
        return uniform_sum(self._p, self._inv_p, keys, coefficients, count).to(self.dtype)

    def bounded(self, keys: Tensor, bits: int, count: int) -> Tensor:
        """Uniform integers in [0, 2^bits) of the keys (S,8), as residues (M,S,count)."""
        check_bits(bits)
        if fused_kernels(self.device):
            from dresfl.kernels.expansion_triton import bounded_residues

            powers = _limb_powers(self.moduli, self.device, -(-bits // 32))
            return bounded_residues(self._p.to(torch.int64), powers, keys, bits, count, self.dtype)
        return bounded_integers(self._p, self._inv_p, keys, bits, count).to(self.dtype)

    def bounded_sum(self, keys: Tensor, coefficients: Tensor, bits: int, count: int, first: int = 0) -> Tensor:
        """Σ_s coefficients[m,s]·x_s[first + j]: keys (S,8), coefficients (M,S) -> (M,count); x_s as in `bounded`."""
        check_bits(bits)
        self._check_coefficients(keys, coefficients)
        if fused_kernels(self.device):
            from dresfl.kernels.expansion_triton import MOST_SUMMED_LIMBS, bounded_sums

            limbs = -(-bits // 32)
            if limbs <= MOST_SUMMED_LIMBS:
                powers = _limb_powers(self.moduli, self.device, limbs)
                moduli = self._p.to(torch.int64)
                return bounded_sums(moduli, powers, keys, coefficients, bits, first, count, self.dtype)
        return bounded_sum(self._p, self._inv_p, keys, coefficients, bits, first, count).to(self.dtype)

    def _check_coefficients(self, keys: Tensor, coefficients: Tensor) -> None:
        if tuple(coefficients.shape) != (len(self.moduli), keys.shape[0]):
            raise FieldError(
                f"coefficients ({len(self.moduli)},{keys.shape[0]}) expected, {tuple(coefficients.shape)} came"
            )

    @property
    def residue_bytes(self) -> int:
        """Bytes of one packed residue: 1, 2 or 3."""
        return -(-self.moduli[-1].bit_length() // 8)

    def pack(self, residues: Tensor) -> bytes:
        """Residues as little-endian integers in [0, p), `residue_bytes` each, channel-major."""
        return self.pack_after(b"", [residues.reshape(len(self.moduli), -1)])

    def pack_after(self, head: bytes, parts: Sequence[Tensor]) -> bytes:
        """A message: `head`, then residues (M,n), packed, of which the parts (M,·) are runs of columns."""
        columns = sum(part.shape[1] for part in parts)
        message = np.empty(len(head) + len(self.moduli) * columns * self.residue_bytes, dtype=np.uint8)
        message[: len(head)] = np.frombuffer(head, dtype=np.uint8)
        octets, first = message[len(head) :], 0
        for part in parts:
            residues = part.to("cpu", torch.float64)
            packed_bytes.pack_columns(residues, self.cpu_moduli, self.residue_bytes, octets, first)
            first += part.shape[1]
        return message.tobytes()

    def checked(self, packed: bytes | memoryview, shape: Sequence[int]) -> PackedResidues:
        """The residues (M,*shape) in `packed`, left as they are; a wrong length or a residue ≥ p is refused."""
        full = (len(self.moduli), *shape)
        expected = math.prod(full) * self.residue_bytes
        if len(packed) != expected:
            raise MessageError(f"{expected} bytes of residues expected, {len(packed)} came")
        octets = packed_bytes.octets_of(packed)
        if not packed_bytes.is_sound(octets, self.cpu_moduli, self.residue_bytes):
            raise MessageError("a residue is not below its modulus")
        return PackedResidues(self, octets, full)

    def unpack(self, packed: bytes | memoryview, shape: Sequence[int]) -> Tensor:
        """The residues (M,*shape) in `packed`; a wrong length or a residue ≥ p is refused."""
        full = (len(self.moduli), *shape)
        expected = math.prod(full) * self.residue_bytes
        if len(packed) != expected:
            raise MessageError(f"{expected} bytes of residues expected, {len(packed)} came")
        octets = torch.frombuffer(bytearray(packed or b"-"), dtype=torch.uint8)[:expected]
        residues = cpu.unpack(octets, shape, self.cpu_moduli, self.residue_bytes)
        if residues is None:
            raise MessageError("a residue is not below its modulus")
        return residues.to(self.device, self.dtype)

    # -- arithmetic that does not depend on how residues are stored ------------------------------------------

    def inverse(self, elements: Tensor) -> Tensor:
        # Fermat: x^(p−2), one exponent bit of all channels at a time
        if bool((canonical_(elements.to(torch.float64, copy=True), self._p) == 0).any()):
            raise FieldError("zero has no inverse")
        exponents = torch.tensor([p - 2 for p in self.moduli], device=self.device)
        result, power = torch.ones_like(elements), elements
        for bit in range(self.moduli[-1].bit_length()):
            chosen = per_channel(((exponents >> bit) & 1).bool(), elements)
            result = torch.where(chosen, self.mul(result, power), result)
            power = self.mul(power, power)
        return result

    def scale(self, elements: Tensor, factor: int) -> Tensor:
        return self.mul(elements, self._constant(factor, elements))

    def add_integer(self, elements: Tensor, integer: int) -> Tensor:
        return self.add(elements, self._constant(integer, elements))

    def _constant(self, integer: int, like: Tensor) -> Tensor:
        """(M,1,...): the residues of one integer of any size, for elements of that many axes."""
        return per_channel(residues_of(self.moduli, self.device, self.dtype, integer), like)

    def combine(self, matrix: Tensor, rows: Sequence[Tensor]) -> Tensor:
        """Σ_j matrix[m,s,j]·rows[j]: (M,S,R), R rows (M,...) -> (M,S,...). What codes do with what they hide."""
        few = len(rows) < _MANY_ROWS or matrix.shape[1] < len(rows)
        if few and matrix.dtype == torch.float64 and torch.device(self.device).type == "cpu":
            found = cpu.combine_rows(matrix, rows, self._p, self._inv_p, self._bound)
            if found is not None:
                return found
        hidden = torch.stack(tuple(rows), 1)  # (M,R,...)
        return self.matmul(matrix, hidden.flatten(2)).view(*matrix.shape[:2], *hidden.shape[2:])

    def weighted_sums(self, residues: Residues, factors: dots.Factors) -> dots.Sums:
        """Σ_i factors[s,i]·residues[m,i] in [0,p), packed or not: (M,n), factors (S,n) below 2^FACTOR_BITS -> (M,S)."""
        if isinstance(residues, Tensor):
            return dots.tensor_dots(residues, factors, self.cpu_moduli)
        return dots.packed_dots(residues.octets, factors, self.cpu_moduli, self.residue_bytes)

    def weighted_row_sums(
        self, rows: packed_bytes.Octets, column_factors: dots.Factors, row_factors: dots.Factors
    ) -> dots.Sums:
        """Σ_r row_factors[s,r]·(weighted sums of row r), of packed rows (r,M,n·residue_bytes) -> (M,S) in [0,p)."""
        return dots.row_dots(rows, column_factors, row_factors, self.cpu_moduli, self.residue_bytes)

    def bit_sums(
        self,
        rows: packed_bytes.Octets,
        labels: int,
        column_factors: dots.Factors,
        row_factors: dots.Factors,
        linear_factors: dots.Factors,
    ) -> tuple[dots.Sums, dots.Sums]:
        """Sums over packed shares of bits, in [0,p), for proofs that they are bits; `kernels.cpu.bits` has formulas."""
        factors = column_factors, row_factors, linear_factors
        return bits.bit_sums(rows, labels, self.moduli, self.residue_bytes, *factors)

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        return torch.cat(tuple(parts), axis)

    def take(self, elements: Tensor, index: Tensor) -> Tensor:
        return take_or_zero(elements, index)


@lru_cache(maxsize=1024)
def residues_of(moduli: tuple[int, ...], device: str, dtype: torch.dtype, integer: int) -> Tensor:
    """(M,): the symmetric residues of one integer of any size."""
    residues = [(integer + p // 2) % p - p // 2 for p in moduli]
    return torch.tensor(residues, dtype=dtype, device=device)


@lru_cache(maxsize=64)
def _limb_powers(moduli: tuple[int, ...], device: str, limbs: int) -> Tensor:
    """(M,limbs) int32: 2^(32 i) modulo each prime, in [0, p)."""
    powers = [[pow(2, 32 * i, p) for i in range(limbs)] for p in moduli]
    return torch.tensor(powers, dtype=torch.int32, device=device)
