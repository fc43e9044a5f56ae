"""Arithmetic for codes and networks, and residue systems: exact arithmetic modulo a product of small primes."""

from dresfl.kernels.cpu import ChainStep, Coded, Encoded
from dresfl.kernels.cpu.dots import FACTOR_BITS, Factors, Sums
from dresfl.kernels.cpu.packed import Octets, octets_of

from .arithmetic import Arithmetic, Array, Elements, ModularArithmetic, PublicMatrix
from .byte_field import ByteField
from .integers import IntegerArray, Integers
from .moduli import choose_moduli, is_prime, modulus_limit, num_value_moduli
from .packed_residues import PackedResidues, Residues, columns_of, unpacked
from .random import Domain, PublicStream, SecretSeed
from .reals import Reals
from .residue_field import ResidueField
from .residue_system import ResidueSystem
from .shapes import Outline, Shapes
