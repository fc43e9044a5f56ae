"""The CPU's kernels: product and reduction in one pass over memory, compiled where Numba is installed.

Exact on every path. Without Numba (the extra `fast`), or for tensors of another kind, torch does the steps one by one;
its residues are congruent to the compiled ones, and equal to them once canonical. Tensors carry the channel axis
first, (M, ...); `moduli` and `inverses` are (M,) float64. Threads: as many as `torch.get_num_threads()` says, where
sharing pays.
"""

import ctypes
import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from dresfl.kernels import chacha20 as _chacha20
from dresfl.kernels import residues as _residues

from .chain import ChainStep, Coded, Encoded, rows_table
from .chain import chain_gradient as _chain_gradient
from .sharing import share

_compiled: Any = None
if find_spec("numba") is not None:
    from . import compiled

    _compiled = None if compiled.numba.config.DISABLE_JIT else compiled

_EXACT = _residues.exact_inner_length(1, 1)

# A long product is summed in passes; the sum that a pass starts from is at most this.
_START = 2**24

# Below these, one thread takes less than about 0.3 ms. A hand-over to another costs 12 to 37 µs.
_PARALLEL_ELEMENTS = 2**20
_PARALLEL_PRODUCTS = 2**23
_PARALLEL_BLOCKS = 2**14
_PARALLEL_DIGITS = 2**17


def keep_freed_memory(limit: int = 2**30, one_heap: bool = False) -> bool:
    """Let this process keep up to `limit` bytes that it has freed; returns whether the C library agreed.

    glibc hands large blocks back to the operating system on every free, and each round would fetch all its pages again:
    8,700 page faults, a third of the time of nine clients' gradients. A program may call this as it starts; a library
    should not.

    one_heap: all threads share what was freed. Else each keeps its own: a coordinator, whose network, machine and disk
    have threads, then held 1.5 GB instead of 0.93 GB for a model of 4 million parameters. For programs whose threads
    seldom ask for memory at the same time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # another C library
        return False
    trim_threshold, mmap_threshold, most_heaps = -1, -3, -8  # <malloc.h>
    if one_heap and not mallopt(most_heaps, 1):
        return False
    return bool(mallopt(trim_threshold, limit)) and bool(mallopt(mmap_threshold, limit))


def _usable(x: Tensor) -> bool:
    return x.dtype == torch.float64 and x.device.type == "cpu"


def _fits(x: Tensor, moduli: Tensor, inverses: Tensor) -> bool:
    """Whether the compiled kernels can work on x with these constants, one of each for every channel."""
    if _compiled is None or not x.numel() or not _usable(x):
        return False
    return all(_usable(c) and c.shape == x.shape[:1] and c.is_contiguous() for c in (moduli, inverses))


def _flat(x: Tensor) -> tuple[int, int]:
    return x.shape[0], x.numel() // x.shape[0]


# -- reduction ---------------------------------------------------------------------------------------------------


def reduce_(x: Tensor, moduli: Tensor, inverses: Tensor) -> Tensor:
    """Reduce integer-valued x, |x| < 2^53 − 2^25, to symmetric residues |r| ≤ p/2 + SLACK, in place."""
    if not _fits(x, moduli, inverses) or not x.is_contiguous():
        return _residues.reduce_(x, moduli, inverses)
    channels, columns = _flat(x)
    share(_compiled.reduce, columns, x.numel() >= _PARALLEL_ELEMENTS, (channels, columns), x, moduli, inverses)
    return x


def bytes_of_totals(totals: Tensor, moduli: Tensor) -> Tensor:
    """int32 totals (M,...) -> symmetric residues int8, for odd moduli (M,) below 256."""
    p = moduli.to(torch.float64)
    if _compiled is None or totals.dtype != torch.int32 or totals.device.type != "cpu" or not totals.is_contiguous():
        reduced = _residues.reduce_(totals.to(torch.float64), p, 1.0 / p)
        return _residues.canonical_(reduced, p).to(torch.int8)
    out = torch.empty(totals.shape, dtype=torch.int8)
    channels, columns = _flat(totals)
    large = totals.numel() >= _PARALLEL_ELEMENTS
    share(_compiled.bytes_of_totals, columns, large, (channels, columns), totals, p, out)
    return out


def embed(values: Tensor, moduli: Tensor, inverses: Tensor) -> Tensor:
    """The residues (M,...) of the same integers (...), |x| < 2^53 − 2^25, in every channel."""
    channels = len(moduli)
    values = values.to(torch.float64)
    everywhere = values.expand(channels, *values.shape)
    if not _fits(everywhere, moduli, inverses):
        return _residues.reduce_(everywhere.clone(), moduli, inverses)
    values = values.contiguous()
    out = torch.empty(everywhere.shape, dtype=torch.float64)
    columns, large = values.numel(), out.numel() >= _PARALLEL_ELEMENTS
    share(_compiled.embed, columns, large, (channels, columns), values, moduli, inverses, out)
    return out


# -- one operation and its reduction -----------------------------------------------------------------------------


def _broadcast(a: Tensor, b: Tensor) -> tuple[int, int, int] | None:
    """Rows and columns of a, seen as (M,rows,columns), and columns of b; None where b broadcasts in another way."""
    channels, columns = _flat(a)
    if a.shape == b.shape:
        return 1, columns, columns
    if b.dim() != a.dim() or b.shape[0] != channels:
        return None
    if b.numel() == channels:
        return 1, columns, 1
    last = a.shape[-1]
    return (columns // last, last, last) if b.shape[-1] == last and b.numel() == channels * last else None


def _combine(operation: _residues.Operation, a: Tensor, b: Tensor, moduli: Tensor, inverses: Tensor) -> Tensor:
    """a·b, a + b or a − b, elementwise, reduced."""
    shape = _broadcast(a, b) if _fits(a, moduli, inverses) and _usable(b) else None
    if shape is None:
        return _residues.combine(operation, a, b, moduli, inverses)
    a, b = a.contiguous(), b.contiguous()
    out = torch.empty(a.shape, dtype=torch.float64)
    rows, columns, b_columns = shape
    products, sign = operation == "mul", -1.0 if operation == "sub" else 1.0
    numbers, large = (a.shape[0], rows, columns, b_columns, products, sign), a.numel() >= _PARALLEL_ELEMENTS
    share(_compiled.combine, columns, large, numbers, a, b, moduli, inverses, out)
    return out


def add_reduce(a: Tensor, b: Tensor, moduli: Tensor, inverses: Tensor) -> Tensor:
    """a + b, reduced. Here and below b has a's shape or broadcasts to it."""
    return _combine("add", a, b, moduli, inverses)


def sub_reduce(a: Tensor, b: Tensor, moduli: Tensor, inverses: Tensor) -> Tensor:
    """a − b, reduced."""
    return _combine("sub", a, b, moduli, inverses)


def mul_reduce(a: Tensor, b: Tensor, moduli: Tensor, inverses: Tensor) -> Tensor:
    """a·b, elementwise, reduced."""
    return _combine("mul", a, b, moduli, inverses)


# -- products ----------------------------------------------------------------------------------------------------


def matmul(left: Tensor, right: Tensor, moduli: Tensor, inverses: Tensor, left_bound: int, right_bound: int) -> Tensor:
    """left @ right modulo each channel's modulus, for |left| ≤ left_bound and |right| ≤ right_bound.

    (M,...,m,n) @ (M,...,n,k) or (n,k), the same in every channel -> (M,...,m,k). Any strides will do: transposed
    factors and slices are not copied. Sums longer than float64 holds exactly are reduced on the way, in registers.

    >>> constants = torch.tensor([101.0], dtype=torch.float64), torch.tensor([1 / 101], dtype=torch.float64)
    >>> left, right = torch.full((1, 1, 3), 50.0).double(), torch.full((1, 3, 2), 49.0).double()
    >>> matmul(left, right, *constants, 50, 50).tolist() == [[[3 * 50 * 49 - 73 * 101] * 2]]
    True
    """
    step = (_EXACT - _START) // max(1, left_bound * right_bound)
    if step < 1 or not _fits(left, moduli, inverses) or not _regular(left, right):
        return _residues.matmul(left, right, moduli, inverses, left_bound, right_bound)
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    matrices = left.numel() // (rows * inner)
    out = torch.empty((*left.shape[:-1], columns), dtype=torch.float64)
    large = out.numel() * inner >= _PARALLEL_PRODUCTS
    numbers = matrices // left.shape[0], rows, inner, columns, step, *_strides(left), *_strides(right), *_strides(out)
    units = matrices * -(-columns // _compiled.WIDTH)
    share(_compiled.product, units, large, numbers, moduli, inverses, left, right, out)
    return out


def _regular(left: Tensor, right: Tensor) -> bool:
    """Whether the shapes are a code's, (M,m,n), or a network's, (M,N,m,n), or one right factor serves every channel."""
    dims, shape = left.dim(), right.shape
    if dims not in (3, 4) or not _usable(right) or not right.numel() or shape[-2] != left.shape[-1]:
        return False
    if right.dim() != 2 and (right.dim() != dims or shape[0] != left.shape[0]):
        return False
    return right.dim() != 4 or shape[1] in (1, left.shape[1])


def _strides(x: Tensor) -> tuple[int, int, int, int]:
    """Bytes from one channel, client, row and column to the next; 0 along an axis that is not there or repeats."""
    strides = x.stride()
    rows, columns = 8 * strides[-2], 8 * strides[-1]
    if x.dim() == 2:
        return 0, 0, rows, columns
    return 8 * strides[0], 8 * strides[1] if x.dim() == 4 and x.shape[1] > 1 else 0, rows, columns


def chain_gradient(
    steps: tuple[ChainStep, ...],
    factors: Tensor,
    target_factors: Tensor,
    weights: Tensor,
    coded: Coded | Encoded,
    moduli: Tensor,
    inverses: Tensor,
    bound: int,
) -> Tensor | None:
    """The gradient of a chain of dense layers and activations; None where nothing is compiled. `chain` says more."""
    if _compiled is None or weights.dtype != torch.int64 or weights.device.type != "cpu":
        return None
    if isinstance(coded, Encoded):
        like = coded.rows[0]
        regular = _fits(coded.matrix, moduli, inverses) and all(_row(x, like, moduli) for x in coded.rows)
    else:
        regular = all(_fits(x, moduli, inverses) and x.dim() == 4 and x.stride(3) == 1 for x in coded)
    if not regular:
        return None
    constants = factors, target_factors, weights
    return _chain_gradient(_compiled, steps, *constants, coded, moduli, inverses, bound)


# -- lifting -----------------------------------------------------------------------------------------------------


def mixed_radix_digits(residues: Tensor, moduli: Tensor, inverses: Tensor, garner: Tensor) -> Tensor | None:
    """Symmetric mixed-radix digits (M,...) of symmetric residues (M,...); None where nothing is compiled."""
    if not _fits(residues, moduli, inverses) or garner.shape != (len(moduli), len(moduli)):
        return None
    digits = residues.clone(memory_format=torch.contiguous_format)
    channels, columns = _flat(digits)
    large, garner = digits.numel() >= _PARALLEL_DIGITS, garner.contiguous()
    share(_compiled.mixed_radix, columns, large, (channels, columns), digits, moduli, inverses, garner)
    return digits


def nearest_float64(digits: Tensor, radix: Tensor) -> Tensor | None:
    """Σ_i d_i·P_i rounded once, to nearest even: digits (M,n), radix (L,M) -> (n,); None where nothing is compiled."""
    if _compiled is None or not (_usable(digits) and _usable(radix)) or radix.shape[1] != digits.shape[0]:
        return None
    digits, radix = digits.contiguous(), radix.contiguous()
    out = torch.empty(digits.shape[1], dtype=torch.float64)
    large = digits.numel() >= _PARALLEL_DIGITS
    share(_compiled.nearest, digits.shape[1], large, (*digits.shape, radix.shape[0]), digits, radix, out)
    return out


def combine_rows(
    coefficients: Tensor, rows: Sequence[Tensor], moduli: Tensor, inverses: Tensor, bound: int
) -> Tensor | None:
    """Σ_j coefficients[m,s,j]·rows[j], reduced: (M,S,R), R rows (M,...) of one shape, any of them a slice -> (M,S,...).

    No |residue| is above `bound`. None where nothing is compiled for it.
    """
    exact = _START + 2 * bound * bound <= _EXACT
    if not exact or not _fits(coefficients, moduli, inverses) or not all(_row(x, rows[0], moduli) for x in rows):
        return None
    (channels, results, count), shape = coefficients.shape, rows[0].shape[1:]
    columns, table, coefficients = math.prod(shape), rows_table(rows), coefficients.contiguous()
    out = torch.empty((channels, results, *shape), dtype=torch.float64)
    numbers = channels, count, results, columns
    blocks, large = -(-columns // _compiled.BLOCK), out.numel() >= _PARALLEL_ELEMENTS
    share(_compiled.combine_rows, blocks, large, numbers, table, coefficients, moduli, inverses, out)
    return out


def decode_lift(
    coefficients: Tensor,
    rows: Sequence[Tensor],
    moduli: Tensor,
    inverses: Tensor,
    bound: int,
    num_value_moduli: int,
    garner: Tensor,
    radix: Tensor,
) -> tuple[Tensor, Tensor] | None:
    """Σ_j coefficients[m,j]·rows[j], lifted: (M,R), R rows (M,n) -> (n,) float64, and how many are out of range.

    Each row is read once, and only the result is written. None where nothing is compiled for it.
    """
    exact = _START + 2 * bound * bound <= _EXACT
    if not exact or not _fits(coefficients, moduli, inverses) or not all(_row(x, rows[0], moduli) for x in rows):
        return None
    channels, columns = rows[0].shape
    coefficients, garner, radix = coefficients.contiguous(), garner.contiguous(), radix.contiguous()
    out, table = torch.empty(columns, dtype=torch.float64), rows_table(rows)
    blocks = -(-columns // _compiled.BLOCK)
    exceeded = torch.empty(blocks, dtype=torch.int64)
    numbers = channels, len(rows), num_value_moduli, columns, radix.shape[0]
    tensors = table, coefficients, moduli, inverses, garner, radix, out, exceeded
    share(_compiled.decode_lift, blocks, channels * columns >= _PARALLEL_DIGITS, numbers, *tensors)
    return out, exceeded.sum()


def _row(x: Tensor, like: Tensor, moduli: Tensor) -> bool:
    """Whether x (M,...) can be a row of `combine_rows`: float64, of the same shape, each channel contiguous."""
    return _fits(x, moduli, moduli) and x.shape == like.shape and x[0].is_contiguous()


# -- bytes and masks ---------------------------------------------------------------------------------------------


def pack(residues: Tensor, moduli: Tensor, size: int) -> bytes:
    """Residues (M,...), |r| < p, as little-endian integers in [0, p) of `size` ≤ 4 bytes, channel-major."""
    if not _fits(residues, moduli, moduli):
        p = _residues.per_channel(moduli, residues)
        words = torch.where(residues < 0, residues + p, residues).to(torch.int32).contiguous()
        return words.view(torch.uint8).view(-1, 4)[:, :size].numpy().tobytes()
    residues = residues.contiguous()
    channels, columns = _flat(residues)
    out = torch.empty(channels * columns * size, dtype=torch.uint8)
    large = residues.numel() >= _PARALLEL_ELEMENTS
    share(_compiled.pack, columns, large, (channels, columns, size), residues, moduli, out)
    return out.numpy().tobytes()


def unpack(packed: Tensor, shape: Sequence[int], moduli: Tensor, size: int) -> Tensor | None:
    """The canonical residues (M,*shape) in uint8 `packed`, as `pack` made it; None if one is not below its modulus."""
    full = (len(moduli), *shape)
    if packed.dtype != torch.uint8 or packed.numel() != math.prod(full) * size:
        raise ValueError(
            f"{math.prod(full) * size} bytes of residues expected, {packed.numel()} of {packed.dtype} came"
        )
    out = torch.empty(full, dtype=torch.float64)
    if not _fits(out, moduli, moduli) or packed.device.type != "cpu":
        powers = torch.tensor([256.0**i for i in range(size)], dtype=torch.float64)
        words = (packed.view(-1, size).to(torch.float64) @ powers).view(full)
        wrong = bool((words >= _residues.per_channel(moduli, words)).any())
        return None if wrong else _residues.canonical_(words, moduli)
    packed = packed.contiguous()
    addresses = packed.data_ptr(), moduli.data_ptr(), out.data_ptr()
    return None if _compiled.unpack(*_flat(out), size, *addresses) else out


def chacha20_blocks(keys: Tensor, counters: Tensor, nonces: Tensor) -> Tensor:
    """The keystream blocks of keys (R,8), counters (R,), nonces (R,3), all int32 -> words (R,16) int32."""
    blocks = counters.shape[0]
    inputs = keys, counters, nonces
    regular = all(x.dtype == torch.int32 and x.device.type == "cpu" for x in inputs)
    if _compiled is None or not blocks or not regular or (keys.shape, nonces.shape) != ((blocks, 8), (blocks, 3)):
        return _chacha20.chacha20_blocks(keys, counters, nonces)
    out = torch.empty((blocks, 16), dtype=torch.int32)
    share(_compiled.chacha20, blocks, blocks >= _PARALLEL_BLOCKS, (), *[x.contiguous() for x in inputs], out)
    return out


def residues_of_words(words: Tensor, moduli: Tensor, inverses: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Canonical residues (M,R,n) of 32-bit words (R,M,n) int32, and the places (J,3) of the words to draw again.

    A word, taken as unsigned, is to be drawn again if it is not below its channel's limit, the largest multiple of
    p up to 2^32; limits (M,) float64. Places are (row, channel, position), in order; their residues are no use.
    """
    rows, channels, places = words.shape
    out = torch.empty((channels, rows, places), dtype=torch.float64)
    regular = words.dtype == torch.int32 and words.device.type == "cpu" and _fits(out, moduli, inverses)
    if not regular or not _fits(out, limits, limits) or not words[0].is_contiguous():
        unsigned = words.to(torch.int64) & 0xFFFFFFFF
        again = (unsigned >= limits.view(1, -1, 1)).nonzero()
        residues = _residues.reduce_(unsigned.swapaxes(0, 1).to(torch.float64).contiguous(), moduli, inverses)
        return _residues.canonical_(residues, moduli), again
    addresses = moduli.data_ptr(), inverses.data_ptr(), limits.data_ptr(), out.data_ptr()
    room = 256
    while True:
        again = torch.empty((room, 3), dtype=torch.int64)
        source = words.data_ptr(), 4 * words.stride(0)
        found = _compiled.words_to_residues(channels, rows, places, *source, *addresses, room, again.data_ptr())
        if found <= room:
            return out, again[:found]
        room = found
