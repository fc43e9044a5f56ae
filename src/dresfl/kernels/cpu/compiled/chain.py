"""The gradient of a chain of dense layers and quadratic activations, all of it in one compiled call.

A unit of work is one client in one channel. What lies between the coded rows and the gradient stays in the scratch
memory of the thread, which fits the second-level cache; each value of the gradient is written once, where it belongs.
Nothing here checks its arguments: `dresfl.kernels.cpu` does.

Tables: `steps` (S,6) int64 = kind, inputs, outputs, place of the weights, place of the packed matrix, place of the
packed transpose; `factors` (M,S) float64 = the residue of the step's integer (`ChainStep` says which).

Packed: a right factor (inner,columns) as panels of PANEL columns, each panel contiguous, the last one as wide as needed
in whole vectors, zeros beyond the last column.
"""

import numba
import numpy as np

from .lifting import combine_row
from .vectors import LANES, ROWS, VECTORS, compiled, pointer, read, tile_of, write

AFFINE, ACTIVATION = 0, 1

# What a tile holds: AVX-512 has 32 registers, others 16 or fewer. 8 × 3 was the fastest of seven on an Intel CPU.
TILE_ROWS, TILE_VECTORS = (8, 3) if LANES == 8 else (ROWS, VECTORS)
PANEL = LANES * TILE_VECTORS
_FEWER_ROWS = 4 if TILE_ROWS > 4 else 1

# Inner length per pass: a panel of this many rows stays in the first-level cache.
_PASS = 16384 // (8 * PANEL)

_tile = tile_of([(rows, 1 + v) for rows in sorted({TILE_ROWS, _FEWER_ROWS, 1}) for v in range(TILE_VECTORS)])


@compiled
def padded(count: int) -> int:
    """`count` rounded up to whole vectors."""
    return (count + LANES - 1) // LANES * LANES


@compiled
def stride_of(count: int) -> int:
    """Bytes from row to row of `count` values in scratch memory; a power of two would crowd few cache sets."""
    return (padded(count) + LANES) * 8


@compiled
def _multiply(
    left: int, left_row: int, left_k: int, rows: int, inner: int, right: int, right_row: int, columns: int,
    exactly: bool, start: int, out: int, out_row: int, spill: int, step: int, p: float, inverse: float,
) -> None:  # fmt: skip
    """out (rows,columns) = start (1,columns) + left (rows,inner) @ right, reduced.

    right_row: bytes from row to row of the right factor, whose rows are whole vectors; 0 if it is packed.
    exactly: write no value beyond the last column; else the row is written in whole vectors.
    """
    whole = padded(columns)
    for column in range(0, whole, PANEL):
        width = min(PANEL, whole - column)
        vectors = width // LANES
        panel, panel_row = right + column * inner * 8, width * 8
        if right_row > 0:
            panel, panel_row = right + column * 8, right_row
        spilled = exactly and column + width > columns
        pass_ = inner if spilled else _PASS
        for k in range(0, inner, pass_):
            depth = min(pass_, inner - k)
            reducing = 1 if k + depth == inner or inner > step else 0
            y, x = panel + k * panel_row, left + k * left_k
            row = 0
            while row < rows:
                count = TILE_ROWS
                if row + count > rows:
                    count = _FEWER_ROWS if row + _FEWER_ROWS <= rows else 1
                target, target_row = out + row * out_row + column * 8, out_row
                if spilled:
                    target, target_row = spill, PANEL * 8
                first, first_row = start + column * 8, 0
                if k > 0:
                    first, first_row = target, target_row
                _tile(
                    count, vectors, x + row * left_row, left_row, left_k, y, panel_row, depth, step, reducing,
                    p, inverse, first, first_row, target, target_row,
                )  # fmt: skip
                if spilled:
                    for i in range(count):
                        for j in range(columns - column):
                            write(out + (row + i) * out_row + (column + j) * 8, read(spill + (i * PANEL + j) * 8))
                row += count


@compiled
def pack_weights(count: int, steps: int, weights: int, packed: int) -> int:
    """The matrices of a chain, packed, out of the weights (P,) int64; returns the largest |weight| of them."""
    table = numba.carray(pointer(steps), (count, 6), np.int64)
    largest = 0
    for s in range(count):
        if table[s, 0] != AFFINE:
            continue
        rows, columns = table[s, 1], table[s, 2]
        matrix = numba.carray(pointer(weights + table[s, 3] * 8), (rows, columns), np.int64)
        for column in range(0, columns, PANEL):
            used = min(PANEL, columns - column)
            width = padded(used)
            panel = numba.carray(pointer(packed + (table[s, 4] + column * rows) * 8), (rows, width), np.float64)
            for k in range(rows):
                source, target = matrix[k, column : column + used], panel[k]
                for j in range(used):
                    largest = max(largest, abs(source[j]))
                    target[j] = source[j]
                for j in range(used, width):
                    target[j] = 0.0
        if table[s, 5] >= 0:
            for column in range(0, rows, PANEL):
                used = min(PANEL, rows - column)
                width = padded(used)
                panel = numba.carray(
                    pointer(packed + (table[s, 5] + column * columns) * 8), (columns, width), np.float64
                )
                for j in range(used):
                    source = matrix[column + j]
                    for k in range(columns):
                        panel[k, j] = source[k]
                for k in range(columns):
                    for j in range(used, width):
                        panel[k, j] = 0.0
    return largest


@compiled
def _activate(
    x: int, x_row: int, rows: int, size: int, linear: float, p: float, inverse: float, out: int, out_row: int
) -> None:  # fmt: skip
    """out (rows, padded) = x² + linear·x, reduced; zeros beyond the last column."""
    whole = padded(size)
    for r in range(rows):
        source = numba.carray(pointer(x + r * x_row), size, np.float64)
        target = numba.carray(pointer(out + r * out_row), whole, np.float64)
        for i in range(size):
            value = source[i] * (source[i] + linear)
            target[i] = value - p * np.rint(value * inverse)
        for i in range(size, whole):
            target[i] = 0.0


@compiled
def chain_gradient(
    first: int, last: int, clients: int, rows: int, count: int, parameters: int, public_terms: int, secret_terms: int,
    in_m: int, in_n: int, in_row: int, target_m: int, target_n: int, target_row: int, hidden: int,
    steps: int, factors: int, moduli: int, inverses: int, target_factors: int, weights: int, packed: int,
    inputs: int, targets: int, hidden_rows: int, encoding: int, out: int,
) -> None:  # fmt: skip
    """out (M,N,P): the gradient of units first ≤ u < last; a unit is one client in one channel.

    hidden > 0: the unit's coded rows are made here, Σ_j encoding[m,n,j]·row j of that many hidden rows, a table as in
    `lifting.combine_rows`; inputs and targets then are the places of the first of each in a coded row, in bytes.

    inputs (M,N,B,F), targets (M,N,B,C), both contiguous along their last axis. public_terms, secret_terms: how many
    products with a weight, and of two residues, are summed before a reduction.
    """
    table = numba.carray(pointer(steps), (count, 6), np.int64)
    widest, total = 0, 0
    for s in range(count):
        widest = max(widest, stride_of(table[s, 2]))
        total += rows * stride_of(table[s, 2])
    # kept values | two deltas | zeros | a bias | a tile that does not fit its place | coded rows
    coded = rows * in_row if hidden > 0 else 0  # bytes
    room = np.empty((coded + total + 2 * rows * widest + 2 * widest) // 8 + TILE_ROWS * PANEL + 16, np.float64)
    kept = (room.ctypes.data + 63) // 64 * 64
    delta = kept + total
    other = delta + rows * widest
    zeros = other + rows * widest
    bias = zeros + widest
    spill = bias + widest
    own_rows = (spill + TILE_ROWS * PANEL * 8 + 63) // 64 * 64
    hidden_table = numba.carray(pointer(hidden_rows), (hidden, 2), np.int64)
    nothing = numba.carray(pointer(zeros), widest // 8, np.float64)
    nothing[:] = 0.0
    places, strides = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    for unit in range(first, last):
        m, n = unit // clients, unit % clients
        p, inverse = read(moduli + m * 8), read(inverses + m * 8)
        factor = numba.carray(pointer(factors + m * count * 8), count, np.float64)

        # forward: places[s] is what step s is given
        places[0], strides[0] = inputs + m * in_m + n * in_n, in_row
        wanted_rows = targets + m * target_m + n * target_n
        if hidden > 0:
            place = encoding + 8 * (m * clients + n) * hidden
            combine_row(hidden_table, 0, coded // 8, m, place, p, inverse, own_rows)
            places[0], wanted_rows = own_rows + inputs, own_rows + targets
        free = kept
        for s in range(count):
            size = table[s, 2]
            stride = stride_of(size)
            if table[s, 0] == AFFINE:
                row = numba.carray(pointer(bias), padded(size), np.float64)
                row[:] = 0.0
                given = numba.carray(pointer(weights + (table[s, 3] + table[s, 1] * size) * 8), size, np.int64)
                for i in range(size):
                    value = np.float64(given[i])
                    value = (value - p * np.rint(value * inverse)) * factor[s]
                    row[i] = value - p * np.rint(value * inverse)
                _multiply(
                    places[s], strides[s], 8, rows, table[s, 1], packed + table[s, 4] * 8, 0, size, False, bias, free,
                    stride, spill, public_terms, p, inverse,
                )  # fmt: skip
            else:
                _activate(places[s], strides[s], rows, size, factor[s], p, inverse, free, stride)
            places[s + 1], strides[s + 1] = free, stride
            free += rows * stride

        # the error: 2·(f(X) − 2^S·Y)
        size = table[count - 1, 2]
        scale = read(target_factors + m * 8)
        for r in range(rows):
            wanted = numba.carray(pointer(wanted_rows + r * target_row), size, np.float64)
            found = numba.carray(pointer(places[count] + r * strides[count]), size, np.float64)
            error = numba.carray(pointer(delta + r * strides[count]), padded(size), np.float64)
            for i in range(size):
                value = wanted[i] * scale
                value = 2.0 * (found[i] - (value - p * np.rint(value * inverse)))
                error[i] = value - p * np.rint(value * inverse)
            for i in range(size, padded(size)):
                error[i] = 0.0

        for back in range(count):
            s = count - 1 - back
            size = table[s, 2]
            whole, stride = padded(size), stride_of(size)
            if table[s, 0] == ACTIVATION:
                linear = factor[s]
                for r in range(rows):
                    x = numba.carray(pointer(places[s] + r * strides[s]), whole, np.float64)
                    d = numba.carray(pointer(delta + r * stride), whole, np.float64)
                    for i in range(whole):
                        value = d[i] * (2.0 * x[i] + linear)
                        d[i] = value - p * np.rint(value * inverse)
                continue
            gradient = out + ((m * clients + n) * parameters + table[s, 3]) * 8
            row = numba.carray(pointer(bias), whole, np.float64)
            row[:] = 0.0
            for r in range(rows):
                d = numba.carray(pointer(delta + r * stride), whole, np.float64)
                for i in range(whole):
                    row[i] += d[i]
            found = numba.carray(pointer(gradient + table[s, 1] * size * 8), size, np.float64)
            for i in range(size):
                value = (row[i] - p * np.rint(row[i] * inverse)) * factor[s]
                found[i] = value - p * np.rint(value * inverse)
            _multiply(
                places[s], 8, strides[s], table[s, 1], rows, delta, stride, size, True, zeros, gradient, size * 8,
                spill, secret_terms, p, inverse,
            )  # fmt: skip
            if table[s, 5] < 0:
                break  # nothing below has weights
            _multiply(
                delta, stride, 8, rows, size, packed + table[s, 5] * 8, 0, table[s, 1], False, zeros, other,
                stride_of(table[s, 1]), spill, public_terms, p, inverse,
            )  # fmt: skip
            delta, other = other, delta
    room[0] = 0.0  # Numba frees an array after its last use: this is it
