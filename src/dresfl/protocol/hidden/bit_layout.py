"""Rows as bits: how a dealer writes a row as zeros and ones, and how receivers turn shares of those into shares of it.

An input x is an integer in [low, high]. It is dealt as b bits with fixed weights,

    x = low + Σ_j c_j·bit_j,   c = 1, 2, 4, …, 2^(k−1), rest,   k = ⌊log2(high − low + 1)⌋,

where `rest` = high − low − (2^k − 1) is left out if it is 0. The sums of the weights are all integers from 0 to
high − low and no others, so bits that are bits make inputs that are in range, exactly. A label is one bit for each
class. Targets that are numbers (of a regression, or ±1) are dealt like inputs, in a range of their own. The sum that
gives x is linear: receivers take it of their shares, without a message.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from dresfl.errors import DataError, UsageError
from dresfl.field import ResidueSystem
from dresfl.model import Network

_MOST_RANGE = 2**21  # symmetric residues of 24 bits times so much stay far below 2^53


@final
@dataclass(frozen=True)
class BitLayout:
    """A row as bits: those of every input, one input after the other, then one for each class, or those of the targets.

    >>> layout = BitLayout(num_inputs=2, num_classes=3, low=0, high=16)
    >>> layout.weights, layout.num_bits
    ((1, 2, 4, 8, 1), 13)
    >>> layout.encode(torch.tensor([[16, 5, 0, 1, 0]])).tolist()
    [[1, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 1, 0]]
    """

    num_inputs: int
    num_classes: int
    low: int
    high: int
    target_limit: int = 0  # targets are integers of at most this size; 0: they are one class each

    def __post_init__(self) -> None:
        if self.num_inputs < 1 or self.num_classes < 1:
            raise UsageError("a row has at least one input and one class")
        if not self.low < self.high or self.high - self.low > _MOST_RANGE:
            raise UsageError(
                f"inputs in {self.low}..{self.high} cannot be dealt as bits",
                "give inputs of at least two values, and use fewer input_bits if there are more than two million",
            )
        if not 0 <= 2 * self.target_limit <= _MOST_RANGE:
            raise UsageError(
                f"targets up to ±{self.target_limit} cannot be dealt as bits",
                "use fewer target_bits, or scale the targets",
            )

    @classmethod
    def of(cls, network: Network, low: float, high: float) -> "BitLayout":
        """The layout for a network whose real inputs, shift included, lie in [low, high]."""
        scale = 2.0**network.input_bits
        limit = 0 if network.one_hot else network.target_limit
        return cls(network.input_size, network.num_classes, round(low * scale), round(high * scale), limit)

    @property
    def bounds(self) -> list[int]:
        """What the proofs are of, for digests: the range of the inputs, and of targets that are numbers."""
        return [self.low, self.high, *([self.target_limit] if self.target_limit else [])]

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """c: what the bits of an input stand for."""
        return _weights(self.high - self.low)

    @cached_property
    def target_weights(self) -> tuple[int, ...]:
        """c: what the bits of a target stand for that is a number."""
        return _weights(2 * self.target_limit)

    @property
    def row_width(self) -> int:
        """Values of a row: inputs, then targets."""
        return self.num_inputs + self.num_classes

    @property
    def first_label(self) -> int:
        """Where the bits of the label begin. A row whose targets are numbers has no label: all its bits are before."""
        return self.num_bits if self.target_limit else self._input_bits

    @property
    def num_bits(self) -> int:
        """Bits of a row."""
        return self._input_bits + self.num_classes * (len(self.target_weights) if self.target_limit else 1)

    @property
    def _input_bits(self) -> int:
        return self.num_inputs * len(self.weights)

    def check(self, rows: Tensor) -> None:
        """A dealer's check of its own integer rows (...,W): DataError if one of them could not be proven."""
        inputs, targets = rows[..., : self.num_inputs], rows[..., self.num_inputs :]
        if rows.shape[-1] != self.row_width:
            raise DataError(f"rows of {rows.shape[-1]} values came, {self.row_width} were expected")
        if inputs.numel() and not (self.low <= int(inputs.min()) and int(inputs.max()) <= self.high):
            raise DataError(
                f"an input leaves the agreed range: {int(inputs.min())}..{int(inputs.max())} came, "
                f"{self.low}..{self.high} is proven to the others",
                "scale or clip the rows as agreed, or agree on a larger input_bound",
            )
        if self.target_limit:
            if targets.numel() and int(targets.abs().max()) > self.target_limit:
                raise DataError(
                    f"a target reaches {int(targets.abs().max())}; up to {self.target_limit} is proven to the others",
                    "scale or clip the targets as agreed, or agree on a larger target_bound",
                )
        elif bool(((targets != 0) & (targets != 1)).any()) or bool((targets.sum(-1) != 1).any()):
            raise DataError("a label is not one class", "every row belongs to exactly one class")

    def encode(self, rows: Tensor) -> Tensor:
        """What a dealer shares: rows (...,W) -> their bits (...,num_bits) int8. DataError if a row does not fit."""
        self.check(rows)
        inputs, targets = rows[..., : self.num_inputs].to(torch.int64), rows[..., self.num_inputs :].to(torch.int64)
        bits = _bits(inputs - self.low, self.weights)
        labels = _bits(targets + self.target_limit, self.target_weights) if self.target_limit else targets
        return torch.cat((bits, labels), -1).to(torch.int8)

    def collapse(self, field: ResidueSystem, bits: Tensor) -> Tensor:
        """Shares of rows from shares of their bits, as a receiver computes them: (M,...,num_bits) -> (M,...,W)."""
        if bits.shape[-1] != self.num_bits:
            raise UsageError(f"shares of {bits.shape[-1]} bits came, {self.num_bits} were expected")
        inputs = _collapsed(field, bits[..., : self._input_bits], self.weights, self.low)
        targets = bits[..., self._input_bits :]
        if self.target_limit:
            targets = _collapsed(field, targets, self.target_weights, -self.target_limit)
        return torch.cat((inputs, targets.to(inputs.dtype)), -1)


def _weights(span: int) -> tuple[int, ...]:
    """c of numbers from 0 to `span`."""
    powers = (span + 1).bit_length() - 1
    rest = span - (2**powers - 1)
    return (*(2**j for j in range(powers)), *([rest] if rest else []))


def _bits(numbers: Tensor, weights: tuple[int, ...]) -> Tensor:
    """Numbers (...,F) from 0 to the sum of the weights -> their bits (...,F·b)."""
    powers = len(weights) if weights[-1] == 2 ** (len(weights) - 1) else len(weights) - 1
    above = numbers > 2**powers - 1  # these need the rest
    left = torch.where(above, numbers - weights[-1], numbers)
    bits = left.unsqueeze(-1) >> torch.arange(powers, device=numbers.device) & 1  # (...,F,k)
    if powers < len(weights):
        bits = torch.cat((bits, above.to(torch.int64).unsqueeze(-1)), -1)  # (...,F,b)
    return bits.flatten(-2)


def _collapsed(field: ResidueSystem, bits: Tensor, weights: tuple[int, ...], low: int) -> Tensor:
    """Shares of numbers from shares of their bits: (M,...,F·b) -> (M,...,F)."""
    groups = bits.to(torch.float64).reshape(*bits.shape[:-1], -1, len(weights))
    factors = torch.tensor(weights, dtype=torch.float64, device=bits.device)
    return field.add_integer(groups @ factors, low).to(field.dtype)  # (M,...,F,b) @ (b,) -> (M,...,F)
