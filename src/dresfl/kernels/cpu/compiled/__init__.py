"""The compiled kernels behind `dresfl.kernels.cpu`: Numba, with vector code written as LLVM IR where it pays.

For use only where Numba is installed. Nothing here checks its arguments: `dresfl.kernels.cpu` does. Every kernel
releases the GIL and works on a range of units, so that threads can share a call; each is compiled on first use and kept
on disk.
"""

from .chain import ACTIVATION, AFFINE, PANEL, chain_gradient, pack_weights
from .elementwise import bytes_of_totals, combine, embed, reduce
from .expansion import GROUP, bounded, bounded_sum, uniform_sum
from .keystream import chacha20, words_to_residues
from .lifting import BLOCK, combine_rows, decode_lift, mixed_radix, nearest
from .octets import pack, unpack
from .products import product
from .ranks import ranks
from .vectors import LANES, ROWS, WIDTH, numba
