"""The only door between reals and integers, in both directions.

Data: φ and Round (`Quantizer`). Weights and gradients: a scale for each parameter, a power of two. Updates: Q.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dresfl.errors import DataError, HeadroomAlarm, UsageError
from dresfl.kernels import stepped_integers as fused_stepped_integers


@final
@dataclass(frozen=True)
class Quantizer:
    """Real data -> integers: Round(2^l · (x + c)), c the shift, l the input bits; targets: Round(2^t · y).

    >>> Quantizer(input_bits=4, shift=0.5).integers(torch.tensor([-0.5, 0.0, 0.5])).tolist()
    [0, 8, 16]
    >>> Quantizer(input_bits=4, target_bits=8).target_integers(torch.tensor([[-0.5], [1.0]])).tolist()
    [[-128], [256]]
    """

    input_bits: int
    shift: float = 0.0
    target_bits: int = 0  # of a regression; 0: targets are whole numbers

    def __post_init__(self) -> None:
        for name in ("input_bits", "target_bits"):
            if not 0 <= getattr(self, name) <= 16:
                raise UsageError(f"{name} must lie in 0..16, not {getattr(self, name)}")

    def integers(self, inputs: Tensor) -> Tensor:
        """What a client shares instead of its real inputs, int32."""
        # Without a shift float32 gives the same integers: a power of two changes exponents alone, and the integers
        # stay below 2^24.
        in_float32 = self.shift == 0 and inputs.dtype in (torch.float16, torch.float32)
        reals = inputs.to(torch.float32 if in_float32 else torch.float64)
        low, high = (float(bound) for bound in reals.aminmax()) if reals.numel() else (0.0, 0.0)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise DataError("the inputs hold NaN or infinite values", "remove or impute them before sharing")
        if max(abs(low + self.shift), abs(high + self.shift)) * 2.0**self.input_bits >= 2**20:
            raise DataError(
                f"an input does not fit {self.input_bits} input bits",
                "scale the features to about [0, 1] or [-1, 1] first",
            )
        return ((reals + self.shift) * 2.0**self.input_bits).round_().to(torch.int32)

    def target_integers(self, targets: Tensor) -> Tensor:
        """What a client shares instead of its real targets, int32."""
        reals = targets.to(torch.float64) * 2.0**self.target_bits
        if not bool(reals.isfinite().all()):
            raise DataError("the targets hold NaN or infinite values", "remove those rows before sharing")
        if reals.numel() and float(reals.abs().max()) >= 2**20:
            raise DataError(
                f"a target does not fit {self.target_bits} target bits", "scale the targets to about [-1, 1] first"
            )
        return reals.round_().to(torch.int32)


def weight_integers(weights: Tensor, scales: Tensor) -> Tensor:
    """W_int = Round(scale · W), int64; a scale is 2^bits."""
    return (weights.to(torch.float64) * scales).round().to(torch.int64)


def weight_reals(integers: Tensor, scales: Tensor) -> Tensor:
    """W = W_int / scale, float64 and exact: scales are powers of two."""
    return integers.to(torch.float64) / scales


def gradient_reals(integers: Tensor, scales: Tensor, num_rows: int) -> Tensor:
    """The mean gradient of `num_rows` rows from its decoded sum, float64. The coordinator's."""
    return integers / scales * (1.0 / num_rows)


def stepped_integers(integers: Tensor, update: Tensor, scales: Tensor, noise: Tensor) -> Tensor:
    """W_int − Q(scale · update): the integer weights after a real update, as float64. The coordinator's.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> stepped_integers(torch.tensor([7]), 0.75 * one, 4 * one, 0.5 * one).tolist()
    [4.0]
    """
    fused = fused_stepped_integers(integers, update, scales, noise)
    return integers.to(torch.float64) - stochastic_round(update * scales, noise) if fused is None else fused


def stochastic_round(values: Tensor, noise: Tensor) -> Tensor:
    """Q: ⌊z⌋ + 1 with probability z − ⌊z⌋, else ⌊z⌋, decided by `noise` uniform in (0, 1).

    Unbiased, and of variance f(1 − f) for f = z − ⌊z⌋. Noise of 32 bits decides f to within 2^−33.

    >>> stochastic_round(torch.tensor([1.25, -1.25]), torch.tensor([0.2, 0.2])).tolist()
    [2.0, -1.0]
    """
    down = values.floor()
    return down + (noise < values - down)


def update_integers(values: Tensor, fraction_bits: int, limit: float, noise: Tensor) -> Tensor:
    """Q(2^bits · x) of a client's real update, int64, for sums of bounded integers; noise uniform in (0, 1).

    HeadroomAlarm if an |x| exceeds the limit: so a sum of N updates never leaves N · 2^bits · limit.

    >>> update_integers(torch.tensor([0.5, -1.0]), 4, 1.0, torch.tensor([0.5, 0.5])).tolist()
    [8, -16]
    """
    reals = values.to(torch.float64)
    if not bool(reals.isfinite().all()):
        raise DataError("the update holds NaN or infinite values", "the training diverged: lower the learning rate")
    largest = float(reals.abs().max()) if reals.numel() else 0.0
    if largest > limit:
        raise HeadroomAlarm(
            f"a value of {largest:.4g} exceeds the limit of {limit:g}: the sum could overflow",
            "clip the update, or agree on a larger limit",
        )
    return stochastic_round(reals * 2.0**fraction_bits, noise.to(torch.float64)).to(torch.int64)
