"""The compiled kernels behind `dresfl.kernels.cpu`: Numba, with vector code written as LLVM IR where it pays.

For use only where Numba is installed. Nothing here checks its arguments: `dresfl.kernels.cpu` does. Every kernel
releases the GIL and works on a range of units, so that threads can share a call; each is compiled on first use and kept
on disk. The file is long because all its kernels share the vector helpers at its start.

Two inner loops are vector IR (LLVM makes the machine's instructions of it, AVX-512, AVX2 or NEON):

- a tile of ROWS × WIDTH results that stays in registers over the whole inner length, is reduced there, and is
  written once: product and reduction in one pass over memory;
- the ChaCha20 rounds of LANES32 blocks side by side.

Addresses and strides are integers, in bytes. All is in one file because Numba recompiles a kernel when the file
it stands in changes, and only then.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import llvmlite.binding as _llvm
import numba
import numpy as np
from llvmlite import ir as _ir
from numba import types as _types
from numba.core.cgutils import get_or_insert_function as _declare
from numba.extending import intrinsic as _intrinsic

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _jit(function: _Function) -> _Function:
    # "contract" allows multiply-add, and no other liberty: x − p·q then is exact up to |x| = 2^53
    options = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
    try:
        made: _Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep compiled code in: compile once per process
        made = numba.njit(**options)(function)
    return made


def _shape() -> tuple[int, int, int]:
    """Lanes of a float64 vector, rows and vectors of a tile: as many results as the registers hold."""
    features = str(numba.config.CPU_FEATURES or _llvm.get_host_cpu_features().flatten()).split(",")
    if "+avx512f" in features:
        return 8, 8, 2  # 16 of 32 registers: no other shape was faster, and this one divides 64
    if "+avx2" in features:
        return 4, 6, 2  # 12 of 16
    return (2, 6, 4) if "+neon" in features else (2, 4, 2)


LANES, ROWS, _VECTORS = _shape()
WIDTH = LANES * _VECTORS
LANES32 = 2 * LANES

# Inner length per pass: a panel of this many rows of the right factor, WIDTH wide, stays in the second-level cache.
DEPTH = 2048

# Rows of the right factor further apart than this fall into few cache sets: copy them side by side first.
_FAR = 1024

# -- vector IR -------------------------------------------------------------------------------------------------

_I32, _I64, _F64 = _ir.IntType(32), _ir.IntType(64), _ir.DoubleType()
_VF, _VI = _ir.VectorType(_F64, LANES), _ir.VectorType(_I32, LANES32)
_FUSE = ("contract",)  # multiply-add where the machine has it; both forms are exact here


def _at(b: Any, address: Any, offset: Any, kind: Any) -> Any:
    offset = _ir.Constant(_I64, offset) if isinstance(offset, int) else offset
    return b.inttoptr(b.add(address, offset), kind.as_pointer())


def _splat(b: Any, value: Any) -> Any:
    undefined = _ir.Constant(_VF, _ir.Undefined)
    first = b.insert_element(undefined, value, _ir.Constant(_I32, 0))
    return b.shuffle_vector(first, undefined, _ir.Constant(_ir.VectorType(_I32, LANES), [0] * LANES))


def _loop(b: Any, count: Any, carried: list[Any], body: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """`count` ≥ 1 times: carried = body(carried), held in registers."""
    entry, block = b.block, b.append_basic_block("loop")
    before = [count, *carried]
    b.branch(block)
    b.position_at_end(block)
    phis = [b.phi(value.type) for value in before]
    after = [b.sub(phis[0], _ir.Constant(_I64, 1)), *body(phis[1:])]
    latch, end = b.block, b.append_basic_block("end")
    b.cbranch(b.icmp_signed(">", after[0], _ir.Constant(_I64, 0)), block, end)
    for phi, first, next_ in zip(phis, before, after, strict=True):
        phi.add_incoming(first, entry)
        phi.add_incoming(next_, latch)
    b.position_at_end(end)
    return after[1:]


def _tile(rows: int) -> Any:
    """out[r,:] = start[r,:] + Σ_k left[r,k]·right[k,:], reduced after every `step` terms, for WIDTH columns."""

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        left, left_row, left_k, right, right_k, inner, step, p, inverse, start, start_row, out, out_row = arguments
        rint = _declare(b.module, _ir.FunctionType(_VF, [_VF]), f"llvm.rint.v{LANES}f64")
        spots = [(r, 8 * LANES * v) for r in range(rows) for v in range(_VECTORS)]
        left_rows, start_rows, out_rows = (
            [b.mul(stride, _ir.Constant(_I64, r)) for r in range(rows)] for stride in (left_row, start_row, out_row)
        )
        modulus, reciprocal = _splat(b, p), _splat(b, inverse)

        def multiply_add(carried: list[Any]) -> list[Any]:
            x, y, *sums = carried
            columns = [b.load(_at(b, y, 8 * LANES * v, _VF), align=8) for v in range(_VECTORS)]
            found = []
            for r in range(rows):
                factor = _splat(b, b.load(_at(b, x, left_rows[r], _F64)))
                for v in range(_VECTORS):
                    product = b.fmul(factor, columns[v], flags=_FUSE)
                    found.append(b.fadd(sums[r * _VECTORS + v], product, flags=_FUSE))
            return [b.add(x, left_k), b.add(y, right_k), *found]

        def reduced(carried: list[Any]) -> list[Any]:
            rest, *state = carried
            count = b.select(b.icmp_signed("<", rest, step), rest, step)
            x, y, *sums = _loop(b, count, state, multiply_add)
            quotients = [b.call(rint, [b.fmul(s, reciprocal)]) for s in sums]
            sums = [
                b.fsub(s, b.fmul(q, modulus, flags=_FUSE), flags=_FUSE) for s, q in zip(sums, quotients, strict=True)
            ]
            return [b.sub(rest, count), x, y, *sums]

        sums = [b.load(_at(b, b.add(start, start_rows[r]), column, _VF), align=8) for r, column in spots]
        up = b.sub(b.add(inner, step), _ir.Constant(_I64, 1))
        sums = _loop(b, b.sdiv(up, step), [inner, left, right, *sums], reduced)[3:]
        for (r, column), value in zip(spots, sums, strict=True):
            b.store(value, _at(b, b.add(out, out_rows[r]), column, _VF), align=8)
        return context.get_dummy_value()

    def tile(
        typing: Any, left: Any, left_row: Any, left_k: Any, right: Any, right_k: Any, inner: Any, step: Any, p: Any,
        inverse: Any, start: Any, start_row: Any, out: Any, out_row: Any,
    ) -> Any:  # fmt: skip
        integers, floats = [_types.intp] * 7, [_types.float64] * 2
        return _types.void(*integers, *floats, *[_types.intp] * 4), emit

    return _intrinsic(tile)


def _copy_row(masked_read: bool, masked_write: bool) -> Any:
    """The first `width` of WIDTH float64 values from one address to another; zeros, or nothing, beyond them."""

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        source, target, width = arguments
        kind = f"v{LANES}f64.p0"
        mask_type, pointer = _ir.VectorType(_ir.IntType(1), LANES), _VF.as_pointer()
        load = _declare(b.module, _ir.FunctionType(_VF, [pointer, _I32, mask_type, _VF]), f"llvm.masked.load.{kind}")
        to_memory = _ir.FunctionType(_ir.VoidType(), [_VF, pointer, _I32, mask_type])
        store = _declare(b.module, to_memory, f"llvm.masked.store.{kind}")
        align = _ir.Constant(_I32, 8)
        for v in range(_VECTORS):
            mask = _ir.Constant(mask_type, [1] * LANES)
            for lane in range(LANES):
                inside = b.icmp_signed(">", width, _ir.Constant(_I64, LANES * v + lane))
                mask = b.insert_element(mask, inside, _ir.Constant(_I32, lane))
            from_, to = (_at(b, address, 8 * LANES * v, _VF) for address in (source, target))
            zeros = _ir.Constant(_VF, [0.0] * LANES)
            value = b.call(load, [from_, align, mask, zeros]) if masked_read else b.load(from_, align=8)
            if masked_write:
                b.call(store, [value, to, align, mask])
            else:
                b.store(value, to, align=8)
        return context.get_dummy_value()

    def copy_row(typing: Any, source: Any, target: Any, width: Any) -> Any:
        return _types.void(*[_types.intp] * 3), emit

    return _intrinsic(copy_row)


def _chacha20_rounds() -> Any:
    """The block function over the states (16,LANES32) at one address, into another."""

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        source, target = arguments
        rotate = _declare(b.module, _ir.FunctionType(_VI, [_VI, _VI, _VI]), f"llvm.fshl.v{LANES32}i32")

        def turned(x: Any, y: Any, left: int) -> Any:
            mixed = b.xor(x, y)
            return b.call(rotate, [mixed, mixed, _ir.Constant(_VI, [left] * LANES32)])

        def double_round(carried: list[Any]) -> list[Any]:
            x = list(carried)
            columns = [(i, 4 + i, 8 + i, 12 + i) for i in range(4)]
            diagonals = [(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)]
            for group in (columns, diagonals):
                # the four quarter rounds are independent: side by side, they hide each other's latency
                for first, second in ((16, 12), (8, 7)):
                    for a, q, _, d in group:
                        x[a] = b.add(x[a], x[q])
                        x[d] = turned(x[d], x[a], first)
                    for _, q, c, d in group:
                        x[c] = b.add(x[c], x[d])
                        x[q] = turned(x[q], x[c], second)
            return x

        start = [b.load(_at(b, source, 4 * LANES32 * w, _VI), align=4) for w in range(16)]
        found = _loop(b, _ir.Constant(_I64, 10), start, double_round)
        for w in range(16):
            # read the state again rather than hold it through the rounds
            again = b.load(_at(b, source, 4 * LANES32 * w, _VI), align=4)
            b.store(b.add(found[w], again), _at(b, target, 4 * LANES32 * w, _VI), align=4)
        return context.get_dummy_value()

    def chacha20_rounds(typing: Any, source: Any, target: Any) -> Any:
        return _types.void(_types.intp, _types.intp), emit

    return _intrinsic(chacha20_rounds)


def _access(kind: Any, type_: Any, writing: bool) -> Any:
    """One value at an address: read it, or write it."""

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        pointer = _at(b, arguments[0], 0, kind)
        if not writing:
            return b.load(pointer)
        b.store(arguments[1], pointer)
        return context.get_dummy_value()

    def read(typing: Any, address: Any) -> Any:
        return type_(_types.intp), emit

    def write(typing: Any, address: Any, value: Any) -> Any:
        return _types.void(_types.intp, type_), emit

    return _intrinsic(write if writing else read)


def _to_pointer() -> Any:
    """An address as what `numba.carray` takes."""

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        return b.inttoptr(arguments[0], context.get_value_type(_types.voidptr))

    def pointer(typing: Any, address: Any) -> Any:
        return _types.voidptr(_types.intp), emit

    return _intrinsic(pointer)


_tile_of_rows, _tile_of_one = _tile(ROWS), _tile(1)
_copy, _copy_in, _copy_out = _copy_row(False, False), _copy_row(True, False), _copy_row(False, True)
_rounds = _chacha20_rounds()
_read, _write = _access(_F64, _types.float64, False), _access(_F64, _types.float64, True)
_pointer = _to_pointer()
_read32, _write32 = _access(_I32, _types.int32, False), _access(_I32, _types.int32, True)

# -- products --------------------------------------------------------------------------------------------------


@_jit
def product(
    first: int, last: int, batch: int, rows: int, inner: int, columns: int, step: int,
    left_m: int, left_n: int, left_row: int, left_k: int,
    right_m: int, right_n: int, right_k: int, right_column: int,
    out_m: int, out_n: int, out_row: int, _out_column: int,
    moduli: int, inverses: int, left: int, right: int, out: int,
) -> None:  # fmt: skip
    """out = left @ right, reduced, over units first ≤ u < last; a unit is WIDTH columns of one of the matrices.

    left (M,batch,rows,inner), right (M,batch,inner,columns), out contiguous along its columns.
    """
    deep = min(inner, DEPTH)
    room = np.empty((deep + ROWS + 1) * WIDTH + 8, np.float64)
    panel = (room.ctypes.data + 63) // 64 * 64
    spill = panel + deep * WIDTH * 8
    zeros = spill + ROWS * WIDTH * 8  # what a sum starts from
    for j in range(WIDTH):
        _write(zeros + j * 8, 0.0)
    held = 0  # what the panel is a copy of
    panels = (columns + WIDTH - 1) // WIDTH
    for unit in range(first, last):
        matrix, column = unit // panels, unit % panels * WIDTH
        m, n = matrix // batch, matrix % batch
        p, inverse = _read(moduli + m * 8), _read(inverses + m * 8)
        width = min(WIDTH, columns - column)
        x0 = left + m * left_m + n * left_n
        y0 = right + m * right_m + n * right_n + column * right_column
        out0 = out + m * out_m + n * out_n + column * 8
        for k in range(0, inner, DEPTH):
            depth = min(DEPTH, inner - k)
            y, y_k = y0 + k * right_k, right_k
            x = x0 + k * left_k
            if width < WIDTH or right_column != 8 or rows > 8 * ROWS or (right_k > _FAR and rows > 2 * ROWS):
                if y != held:
                    if right_column != 8:
                        for j in range(WIDTH):
                            for i in range(depth):
                                value = _read(y + i * right_k + j * right_column) if j < width else 0.0
                                _write(panel + (i * WIDTH + j) * 8, value)
                    elif width < WIDTH:
                        for i in range(depth):
                            _copy_in(y + i * right_k, panel + i * WIDTH * 8, width)
                    else:
                        for i in range(depth):
                            _copy(y + i * right_k, panel + i * WIDTH * 8, width)
                    held = y if inner <= DEPTH else 0
                y, y_k = panel, WIDTH * 8
            row = 0
            while row < rows:
                # the last rows: one by one if few, else a full tile that computes some results again
                count = ROWS
                if row + ROWS > rows:
                    if rows < ROWS or rows - row <= 2 or k > 0:
                        count = 1
                    else:
                        row = rows - ROWS
                start, start_row = zeros, 0
                target, target_row = out0 + row * out_row, out_row
                if width < WIDTH:
                    target, target_row = spill, WIDTH * 8
                    if k > 0:
                        for i in range(count):
                            _copy_in(out0 + (row + i) * out_row, spill + i * WIDTH * 8, width)
                if k > 0:
                    start, start_row = target, target_row
                if count == ROWS:
                    _tile_of_rows(
                        x + row * left_row, left_row, left_k, y, y_k, depth, step, p, inverse,
                        start, start_row, target, target_row,
                    )  # fmt: skip
                else:
                    _tile_of_one(
                        x + row * left_row, left_row, left_k, y, y_k, depth, step, p, inverse,
                        start, start_row, target, target_row,
                    )  # fmt: skip
                if width < WIDTH:
                    for i in range(count):
                        _copy_out(spill + i * WIDTH * 8, out0 + (row + i) * out_row, width)
                row += count
    room[0] = 0.0  # Numba frees an array after its last use: this is it


# -- elementwise, one pass each ----------------------------------------------------------------------------------

# Loops run over slices from 0: an index that might be negative would keep LLVM from using vectors. Results go to
# memory of their own, or back where the one operand was: on overlapping operands the loops would be scalar.
# Operands are the addresses of contiguous float64 arrays; columns first ≤ i < last of every row are worked on.


@_jit
def reduce(first: int, last: int, channels: int, columns: int, x: int, p: int, inverses: int) -> None:
    """x (M,n) reduced, in place."""
    matrix = numba.carray(_pointer(x), (channels, columns), np.float64)
    for m in range(channels):
        modulus, inverse, row = _read(p + 8 * m), _read(inverses + 8 * m), matrix[m, first:last]
        for i in range(row.size):
            row[i] -= modulus * np.rint(row[i] * inverse)


@_jit
def embed(
    first: int, last: int, channels: int, columns: int, values: int, p: int, inverses: int, out: int
) -> None:  # fmt: skip
    """out (M,n) = values (n,) reduced."""
    part = numba.carray(_pointer(values), columns, np.float64)[first:last]
    matrix = numba.carray(_pointer(out), (channels, columns), np.float64)
    for m in range(channels):
        modulus, inverse, row = _read(p + 8 * m), _read(inverses + 8 * m), matrix[m, first:last]
        for i in range(row.size):
            row[i] = part[i] - modulus * np.rint(part[i] * inverse)


@_jit
def bytes_of_totals(first: int, last: int, channels: int, columns: int, totals: int, p: int, out: int) -> None:
    """int32 totals to symmetric residues int8: one pass in, one out."""
    matrix = numba.carray(_pointer(totals), (channels, columns), np.int32)
    found = numba.carray(_pointer(out), (channels, columns), np.int8)
    for m in range(channels):
        modulus, row, target = _read(p + 8 * m), matrix[m, first:last], found[m, first:last]
        inverse = 1.0 / modulus
        for i in range(row.size):
            value = np.float64(row[i])  # |value| < 2^31, so the rounded quotient leaves |r| ≤ (p−1)/2
            target[i] = np.int8(value - modulus * np.rint(value * inverse))


@_jit
def combine(
    first: int, last: int, channels: int, rows: int, columns: int, b_columns: int, products: bool, sign: float,
    a: int, b: int, p: int, inverses: int, out: int,
) -> None:  # fmt: skip
    """out = a·b or a + sign·b, reduced: a and out (M,r,n), b (M,n), the same for every row, or (M,1)."""
    lefts = numba.carray(_pointer(a), (channels, rows, columns), np.float64)
    rights = numba.carray(_pointer(b), (channels, b_columns), np.float64)
    results = numba.carray(_pointer(out), (channels, rows, columns), np.float64)
    for m in range(channels):
        modulus, inverse = _read(p + 8 * m), _read(inverses + 8 * m)
        for r in range(rows):
            left, result, b_row = lefts[m, r, first:last], results[m, r, first:last], rights[m]
            if b_columns > 1 or columns == 1:
                right = b_row[first:last]
                if products:
                    for i in range(result.size):
                        value = left[i] * right[i]
                        result[i] = value - modulus * np.rint(value * inverse)
                else:
                    for i in range(result.size):
                        value = left[i] + sign * right[i]
                        result[i] = value - modulus * np.rint(value * inverse)
            else:
                factor, term = (b_row[0], 0.0) if products else (1.0, sign * b_row[0])
                for i in range(result.size):
                    value = factor * left[i] + term
                    result[i] = value - modulus * np.rint(value * inverse)


_BLOCK = 256  # columns whose digits of all channels stay in the first-level cache


@_jit
def mixed_radix(
    first: int, last: int, channels: int, columns: int, digits: int, p: int, inverses: int, garner: int
) -> None:  # fmt: skip
    """Garner's conversion, in place: residues (M,n), |r| ≤ p/2 + 2 -> symmetric mixed-radix digits."""
    matrix = numba.carray(_pointer(digits), (channels, columns), np.float64)
    for low in range(first, last, _BLOCK):
        high = min(low + _BLOCK, last)
        modulus, row = _read(p), matrix[0, low:high]  # the first residue, once canonical, is the first digit
        half = (modulus - 1) / 2
        for i in range(row.size):
            value = row[i]
            value = value - modulus if value > half else value
            row[i] = value + modulus if value < -half else value
        for source in range(channels - 1):
            known = matrix[source, low:high]
            for m in range(source + 1, channels):
                modulus, inverse = _read(p + 8 * m), _read(inverses + 8 * m)
                factor, half, row = _read(garner + 8 * (source * channels + m)), (modulus - 1) / 2, matrix[m, low:high]
                for i in range(row.size):
                    value = (row[i] - known[i]) * factor
                    value -= modulus * np.rint(value * inverse)
                    value = value - modulus if value > half else value
                    row[i] = value + modulus if value < -half else value


@_jit
def nearest(
    first: int, last: int, channels: int, columns: int, limbs: int, digits: int, radix: int, out: int
) -> None:  # fmt: skip
    """out (n,) = Σ_i d_i·P_i rounded once: digits (M,n), radix (L,M) of 24-bit limbs; `field.lifting` explains it."""
    matrix = numba.carray(_pointer(digits), (channels, columns), np.float64)
    results = numba.carray(_pointer(out), columns, np.float64)
    table = np.empty((limbs, _BLOCK), np.float64)
    scales = np.array([2.0 ** (24.0 * (limb - 3)) for limb in range(limbs)])
    for low in range(first, last, _BLOCK):
        size = min(_BLOCK, last - low)
        table[:] = 0.0
        for limb in range(limbs):
            row = table[limb, :size]
            for m in range(channels):
                factor, source = _read(radix + 8 * (limb * channels + m)), matrix[m, low : low + size]
                for i in range(size):
                    row[i] += factor * source[i]
        top = table[limbs - 1, :size]
        for sweep in range(2):  # carries; then, of the negative ones, the absolute value, and carries again
            if sweep == 1:
                for i in range(size):
                    results[low + i] = -1.0 if top[i] < 0 else 1.0
                signs = results[low : low + size]
                for limb in range(limbs):
                    row = table[limb, :size]
                    for i in range(size):
                        row[i] *= signs[i]
            for limb in range(limbs - 1):
                row, above = table[limb, :size], table[limb + 1, :size]
                for i in range(size):
                    carry = np.floor(row[i] * 2.0**-24)
                    row[i] -= carry * 2.0**24
                    above[i] += carry
        for i in range(size):
            lead = limbs - 1
            while lead > 0 and table[lead, i] == 0.0:
                lead -= 1
            high = table[lead, i] * 2.0**24 + (table[lead - 1, i] if lead > 0 else 0.0)
            rest = (table[lead - 2, i] * 2.0**24 if lead > 1 else 0.0) + (table[lead - 3, i] if lead > 2 else 0.0)
            below = lead - 4
            while below >= 0 and table[below, i] == 0.0:
                below -= 1
            if below >= 0 and np.int64(rest) % 2 == 0:
                rest += 1.0  # the sticky bit
            results[low + i] *= (high * 2.0**48 + rest) * scales[lead]


# -- bytes -------------------------------------------------------------------------------------------------------


@_jit
def pack(first: int, last: int, channels: int, columns: int, size: int, x: int, p: int, out: int) -> None:
    """out (M,n,size) bytes: |x| < p as little-endian integers in [0,p)."""
    matrix = numba.carray(_pointer(x), (channels, columns), np.float64)
    octets = numba.carray(_pointer(out), (channels, columns, size), np.uint8)
    for m in range(channels):
        modulus = _read(p + 8 * m)
        for i in range(first, last):
            value = matrix[m, i]
            word = np.int64(value + modulus if value < 0 else value)
            for byte in range(size):
                octets[m, i, byte] = (word >> (8 * byte)) & 255


@_jit
def unpack(channels: int, columns: int, size: int, octets: int, p: int, out: int) -> int:
    """out (M,n): the canonical residues in bytes (M,n,size). Returns how many are not below their modulus."""
    source = numba.carray(_pointer(octets), (channels, columns, size), np.uint8)
    matrix = numba.carray(_pointer(out), (channels, columns), np.float64)
    wrong = 0
    for m in range(channels):
        modulus = _read(p + 8 * m)
        half = (modulus - 1) / 2
        for i in range(columns):
            word = np.int64(0)
            for byte in range(size):
                word |= np.int64(source[m, i, byte]) << (8 * byte)
            value = np.float64(word)
            wrong += value >= modulus
            matrix[m, i] = value - modulus if value > half else value
    return wrong


# -- keystream ---------------------------------------------------------------------------------------------------


@_jit
def chacha20(first: int, last: int, keys: int, counters: int, nonces: int, out: int) -> None:
    """Blocks first ≤ b < last of keys (blocks,8), counters (blocks,) and nonces (blocks,3) into out (blocks,16)."""
    room = np.empty(2 * 16 * LANES32 + 16, np.int32)
    state = (room.ctypes.data + 63) // 64 * 64
    stream = state + 16 * LANES32 * 4
    for lane in range(LANES32):
        for word, constant in enumerate((0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)):
            _write32(state + (word * LANES32 + lane) * 4, np.int32(constant))
    for low in range(first, last, LANES32):
        count = min(LANES32, last - low)
        for lane in range(LANES32):
            block = low + min(lane, count - 1)
            for word in range(8):
                _write32(state + ((4 + word) * LANES32 + lane) * 4, _read32(keys + (block * 8 + word) * 4))
            _write32(state + (12 * LANES32 + lane) * 4, _read32(counters + block * 4))
            for word in range(3):
                _write32(state + ((13 + word) * LANES32 + lane) * 4, _read32(nonces + (block * 3 + word) * 4))
        _rounds(state, stream)
        for lane in range(count):
            for word in range(16):
                _write32(out + ((low + lane) * 16 + word) * 4, _read32(stream + (word * LANES32 + lane) * 4))
    room[0] = 0  # Numba frees an array after its last use: this is it


@_jit
def words_to_residues(
    channels: int, rows: int, places: int, words: int, word_row: int, p: int, inverses: int, limits: int,
    out: int, room: int, again: int,
) -> int:  # fmt: skip
    """out (M,R,n): the canonical residues of 32-bit words (R,M,n). Returns how many words are ≥ their channel's limit.

    The places (row, channel, position) of the first `room` of them go to `again` (room,3) int64.
    """
    results = numba.carray(_pointer(out), (channels, rows, places), np.float64)
    places_again = numba.carray(_pointer(again), (room, 3), np.int64)
    found = 0
    for row in range(rows):
        table = numba.carray(_pointer(words + row * word_row), (channels, places), np.uint32)
        for m in range(channels):
            modulus, inverse, limit = _read(p + 8 * m), _read(inverses + 8 * m), _read(limits + 8 * m)
            half, source, result = (modulus - 1) / 2, table[m], results[m, row]
            over = 0
            for i in range(result.size):
                word = np.float64(source[i])
                over += word >= limit
                value = word - modulus * np.rint(word * inverse)
                value = value - modulus if value > half else value
                result[i] = value + modulus if value < -half else value
            if over > 0:
                for i in range(places):
                    if np.float64(source[i]) >= limit:
                        if found < room:
                            places_again[found, 0], places_again[found, 1], places_again[found, 2] = row, m, i
                        found += 1
    return found
