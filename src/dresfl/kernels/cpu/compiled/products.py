"""Modular products of any strides: a tile of results stays in registers, is reduced there, and is written once."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function as declare
from numba.extending import intrinsic

from .vectors import I32, I64, LANES, ROWS, VECTORS, VF, WIDTH, at, compiled, read, tile_of, write

# Inner length per pass: a panel of this many rows of the right factor, WIDTH wide, stays in the second-level cache.
DEPTH = 2048

# Rows of the right factor further apart than this fall into few cache sets: copy them side by side first.
_FAR = 1024


def _copy_row(masked_read: bool, masked_write: bool) -> Any:
    """The first `width` of WIDTH float64 values from one address to another; zeros, or nothing, beyond them."""

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        source, target, width = arguments
        kind = f"v{LANES}f64.p0"
        mask_type, pointer = ir.VectorType(ir.IntType(1), LANES), VF.as_pointer()
        load = declare(b.module, ir.FunctionType(VF, [pointer, I32, mask_type, VF]), f"llvm.masked.load.{kind}")
        to_memory = ir.FunctionType(ir.VoidType(), [VF, pointer, I32, mask_type])
        store = declare(b.module, to_memory, f"llvm.masked.store.{kind}")
        align = ir.Constant(I32, 8)
        for v in range(VECTORS):
            mask = ir.Constant(mask_type, [1] * LANES)
            for lane in range(LANES):
                inside = b.icmp_signed(">", width, ir.Constant(I64, LANES * v + lane))
                mask = b.insert_element(mask, inside, ir.Constant(I32, lane))
            from_, to = (at(b, address, 8 * LANES * v, VF) for address in (source, target))
            zeros = ir.Constant(VF, [0.0] * LANES)
            value = b.call(load, [from_, align, mask, zeros]) if masked_read else b.load(from_, align=8)
            if masked_write:
                b.call(store, [value, to, align, mask])
            else:
                b.store(value, to, align=8)
        return context.get_dummy_value()

    def copy_row(typing: Any, source: Any, target: Any, width: Any) -> Any:
        return types.void(*[types.intp] * 3), emit

    return intrinsic(copy_row)


_tile = tile_of([(ROWS, VECTORS), (1, VECTORS)])
_copy, _copy_in, _copy_out = _copy_row(False, False), _copy_row(True, False), _copy_row(False, True)


@compiled
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
        write(zeros + j * 8, 0.0)
    held = 0  # what the panel is a copy of
    panels = (columns + WIDTH - 1) // WIDTH
    for unit in range(first, last):
        matrix, column = unit // panels, unit % panels * WIDTH
        m, n = matrix // batch, matrix % batch
        p, inverse = read(moduli + m * 8), read(inverses + m * 8)
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
                                value = read(y + i * right_k + j * right_column) if j < width else 0.0
                                write(panel + (i * WIDTH + j) * 8, value)
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
                _tile(
                    count, VECTORS, x + row * left_row, left_row, left_k, y, y_k, depth, step, 1, p, inverse,
                    start, start_row, target, target_row,
                )  # fmt: skip
                if width < WIDTH:
                    for i in range(count):
                        _copy_out(spill + i * WIDTH * 8, out0 + (row + i) * out_row, width)
                row += count
    room[0] = 0.0  # Numba frees an array after its last use: this is it
