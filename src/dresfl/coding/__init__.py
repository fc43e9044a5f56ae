"""The Lagrange code, and the sizes that decide it."""

from .error_location import locate_errors
from .lagrange import LagrangeCode, recovery_threshold
from .parameters import CodeParameters
