"""Transforms of single rows, in float32: the same bits whatever the rows' company, order, or number of threads."""

import torch
from torch import Tensor

from .settings import Features


def transformed(rows: Tensor, settings: Features) -> Tensor:
    """(B,F) real rows -> float32: power, then L2 norm, then (x − center)·scale. Each client's, alone.

    Norms are summed in float64, so that the order of summation is lost in their rounding to float32. A row of zeros
    has no direction and stays as it is.

    >>> transformed(torch.tensor([[9.0, -16.0]]), Features(power=0.5, l2_norm=True)).tolist() == \
        torch.tensor([[0.6, -0.8]]).tolist()
    True
    """
    values = rows.to(torch.float32, copy=True)
    if settings.power == 0.5:
        torch.copysign(values.abs().sqrt_(), values, out=values)  # correctly rounded, unlike pow
    elif settings.power != 1:
        torch.copysign(values.abs().pow_(settings.power), values, out=values)
    if settings.l2_norm:
        norms = torch.linalg.vector_norm(values, dim=1, keepdim=True, dtype=torch.float64)  # (B,1)
        values /= torch.where(norms > 0, norms, 1.0).to(torch.float32)
    if settings.center != 0:
        values -= settings.center
    if settings.scale != 1:
        values *= settings.scale
    return values
