"""Rows as bits: how a dealer writes a row as zeros and ones, and how receivers turn shares of those into shares of it.

An input x is an integer in [low, high]. It is dealt as b bits with fixed weights,

    x = low + Σ_j c_j·bit_j,   c = 1, 2, 4, …, 2^(k−1), rest,   k = ⌊log2(high − low + 1)⌋,

where `rest` = high − low − (2^k − 1) is left out if it is 0. The sums of the weights are all integers from 0 to
high − low and no others, so bits that are bits make inputs that are in range, exactly. A label is one bit for each
class. The sum that gives x is linear: receivers take it of their shares, without a message.
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
    """A row as bits: those of every input, one input after the other, then one for each class.

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

    def __post_init__(self) -> None:
        if self.num_inputs < 1 or self.num_classes < 1:
            raise UsageError("a row has at least one input and one class")
        if not self.low < self.high or self.high - self.low > _MOST_RANGE:
            raise UsageError(
                f"inputs in {self.low}..{self.high} cannot be dealt as bits",
                "give inputs of at least two values, and use fewer input_bits if there are more than two million",
            )

    @classmethod
    def of(cls, network: Network, low: float, high: float) -> "BitLayout":
        """The layout for a network whose real inputs, shift included, lie in [low, high]."""
        scale = 2.0**network.input_bits
        return cls(network.input_size, network.num_classes, round(low * scale), round(high * scale))

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """c: what the bits of an input stand for."""
        span = self.high - self.low
        powers = (span + 1).bit_length() - 1
        rest = span - (2**powers - 1)
        return (*(2**j for j in range(powers)), *([rest] if rest else []))

    @property
    def row_width(self) -> int:
        """Values of a row: inputs, then targets."""
        return self.num_inputs + self.num_classes

    @property
    def first_label(self) -> int:
        """Where the bits of the label begin."""
        return self.num_inputs * len(self.weights)

    @property
    def num_bits(self) -> int:
        """Bits of a row."""
        return self.first_label + self.num_classes

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
        if bool(((targets != 0) & (targets != 1)).any()) or bool((targets.sum(-1) != 1).any()):
            raise DataError("a label is not one class", "every row belongs to exactly one class")

    def encode(self, rows: Tensor) -> Tensor:
        """What a dealer shares: rows (...,W) -> their bits (...,num_bits) int8. DataError if a row does not fit."""
        self.check(rows)
        inputs, targets = rows[..., : self.num_inputs].to(torch.int64), rows[..., self.num_inputs :].to(torch.int64)
        powers = len(self.weights) if self.weights[-1] == 2 ** (len(self.weights) - 1) else len(self.weights) - 1
        left = inputs - self.low
        above = left > 2**powers - 1  # these need the rest
        left = torch.where(above, left - self.weights[-1], left)
        bits = left.unsqueeze(-1) >> torch.arange(powers, device=rows.device) & 1  # (...,F,k)
        if powers < len(self.weights):
            bits = torch.cat((bits, above.to(torch.int64).unsqueeze(-1)), -1)  # (...,F,b)
        return torch.cat((bits.flatten(-2), targets), -1).to(torch.int8)

    def collapse(self, field: ResidueSystem, bits: Tensor) -> Tensor:
        """Shares of rows from shares of their bits, as a receiver computes them: (M,...,num_bits) -> (M,...,W)."""
        if bits.shape[-1] != self.num_bits:
            raise UsageError(f"shares of {bits.shape[-1]} bits came, {self.num_bits} were expected")
        groups = bits[..., : self.first_label].to(torch.float64)
        groups = groups.reshape(*bits.shape[:-1], self.num_inputs, len(self.weights))
        weights = torch.tensor(self.weights, dtype=torch.float64, device=bits.device)
        inputs = field.add_integer(groups @ weights, self.low).to(field.dtype)  # (M,...,F,b) @ (b,) -> (M,...,F)
        return torch.cat((inputs, bits[..., self.first_label :].to(inputs.dtype)), -1)
