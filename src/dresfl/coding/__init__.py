"""The Lagrange code."""

from .lagrange import LagrangeCode, lagrange_matrices, lagrange_matrix, recovery_threshold

__all__ = ["LagrangeCode", "lagrange_matrices", "lagrange_matrix", "recovery_threshold"]
