"""Residue number systems: exact arithmetic modulo a product of small primes, and its randomness."""

from .arithmetic import Elements, Field, PublicMatrix, ResidueField
from .bytes import ByteField
from .moduli import HEADROOM_BITS, choose_moduli, modulus_limit, num_value_moduli
from .random import Domain, PublicStream, SecretSeed
from .reals import Reals

__all__ = [
    "ByteField",
    "Domain",
    "Elements",
    "Field",
    "HEADROOM_BITS",
    "PublicMatrix",
    "PublicStream",
    "Reals",
    "ResidueField",
    "SecretSeed",
    "choose_moduli",
    "modulus_limit",
    "num_value_moduli",
]
