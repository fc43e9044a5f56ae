"""The Lagrange code, and the sizes that decide it."""

from .lagrange import LagrangeCode, recovery_threshold
from .parameters import CodeParameters
