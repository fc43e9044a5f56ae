"""ChaCha20, LANES32 blocks side by side, and uniform residues out of its words."""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function as declare
from numba.extending import intrinsic

from .vectors import I64, LANES32, VI, at, compiled, pointer, read, read32, repeat, write32

CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"


def double_rounds(b: Any, start: list[Any]) -> list[Any]:
    """The ten double rounds over a state of sixteen vectors, one block to a lane."""
    rotate = declare(b.module, ir.FunctionType(VI, [VI, VI, VI]), f"llvm.fshl.v{LANES32}i32")

    def turned(x: Any, y: Any, left: int) -> Any:
        mixed = b.xor(x, y)
        return b.call(rotate, [mixed, mixed, ir.Constant(VI, [left] * LANES32)])

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

    return repeat(b, ir.Constant(I64, 10), start, double_round)


def _chacha20_rounds() -> Any:
    """The block function over the states (16,LANES32) at one address, into another."""

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        source, target = arguments
        start = [b.load(at(b, source, 4 * LANES32 * w, VI), align=4) for w in range(16)]
        found = double_rounds(b, start)
        for w in range(16):
            # read the state again rather than hold it through the rounds
            again = b.load(at(b, source, 4 * LANES32 * w, VI), align=4)
            b.store(b.add(found[w], again), at(b, target, 4 * LANES32 * w, VI), align=4)
        return context.get_dummy_value()

    def chacha20_rounds(typing: Any, source: Any, target: Any) -> Any:
        return types.void(types.intp, types.intp), emit

    return intrinsic(chacha20_rounds)


_rounds = _chacha20_rounds()


@compiled
def chacha20(first: int, last: int, keys: int, counters: int, nonces: int, out: int) -> None:
    """Blocks first ≤ b < last of keys (blocks,8), counters (blocks,) and nonces (blocks,3) into out (blocks,16)."""
    room = np.empty(2 * 16 * LANES32 + 16, np.int32)
    state = (room.ctypes.data + 63) // 64 * 64
    stream = state + 16 * LANES32 * 4
    for lane in range(LANES32):
        for word, constant in enumerate(CONSTANTS):
            write32(state + (word * LANES32 + lane) * 4, np.int32(constant))
    for low in range(first, last, LANES32):
        count = min(LANES32, last - low)
        for lane in range(LANES32):
            block = low + min(lane, count - 1)
            for word in range(8):
                write32(state + ((4 + word) * LANES32 + lane) * 4, read32(keys + (block * 8 + word) * 4))
            write32(state + (12 * LANES32 + lane) * 4, read32(counters + block * 4))
            for word in range(3):
                write32(state + ((13 + word) * LANES32 + lane) * 4, read32(nonces + (block * 3 + word) * 4))
        _rounds(state, stream)
        for lane in range(count):
            for word in range(16):
                write32(out + ((low + lane) * 16 + word) * 4, read32(stream + (word * LANES32 + lane) * 4))
    room[0] = 0  # Numba frees an array after its last use: this is it


@compiled
def words_to_residues(
    channels: int, rows: int, places: int, words: int, word_row: int, p: int, inverses: int, limits: int,
    out: int, room: int, again: int,
) -> int:  # fmt: skip
    """out (M,R,n): the canonical residues of 32-bit words (R,M,n). Returns how many words are ≥ their channel's limit.

    The places (row, channel, position) of the first `room` of them go to `again` (room,3) int64.
    """
    results = numba.carray(pointer(out), (channels, rows, places), np.float64)
    places_again = numba.carray(pointer(again), (room, 3), np.int64)
    found = 0
    for row in range(rows):
        table = numba.carray(pointer(words + row * word_row), (channels, places), np.uint32)
        for m in range(channels):
            modulus, inverse, limit = read(p + 8 * m), read(inverses + 8 * m), read(limits + 8 * m)
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
