"""The Lagrange code, and the sizes that decide it."""

from .lagrange import LagrangeCode, lagrange_matrices, lagrange_matrix, recovery_threshold
from .parameters import CodeParameters

__all__ = ["CodeParameters", "LagrangeCode", "lagrange_matrices", "lagrange_matrix", "recovery_threshold"]
