"""Sums of uniform residues, and residues of bounded integers, as the keystream is made: GROUP words at a time.

A group is LANES32 blocks of one stream, side by side: word w of lane l at place w·LANES32 + l of a table in the
first-level cache. Sums of coefficient·word are 64-bit integers in a table of the same size. There the even lanes of a
word come first, then its odd lanes: a product of 32-bit numbers takes every second lane of a vector.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .keystream import CONSTANTS, double_rounds
from .vectors import I32, I64, LANES, LANES32, VI, at, compiled, pointer, read, repeat

GROUP = 16 * LANES32

_VL = ir.VectorType(I64, LANES)
_TERMS = 255  # coefficient·word < 2^24·2^32: so many, and a folded sum, stay below 2^64
_STREAMS = 8  # whose words are held at a time, for all channels: with the sums of eight channels they fit the cache
_WORDS = 4  # vectors of words whose sums are held in registers


def _splat(b: Any, value: Any, kind: Any) -> Any:
    undefined = ir.Constant(kind, ir.Undefined)
    first = b.insert_element(undefined, value, ir.Constant(I32, 0))
    return b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count))


def _group_of_words() -> Any:
    """The words of blocks counter … counter + LANES32 − 1 into `target`: key (8,), nonce (nonce0, nonce1, 0)."""

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        key, counter, nonce0, nonce1, target = arguments

        def state(word: int) -> Any:
            if word < 4:
                return ir.Constant(VI, [CONSTANTS[word]] * LANES32)
            if word < 12:
                return _splat(b, b.load(at(b, key, 4 * (word - 4), I32), align=4), VI)
            if word == 12:
                lanes = ir.Constant(VI, list(range(LANES32)))
                return b.add(_splat(b, b.trunc(counter, I32), VI), lanes)
            if word == 15:
                return ir.Constant(VI, [0] * LANES32)
            return _splat(b, b.trunc(nonce0 if word == 13 else nonce1, I32), VI)

        found = double_rounds(b, [state(w) for w in range(16)])
        for w in range(16):
            b.store(b.add(found[w], state(w)), at(b, target, 4 * LANES32 * w, VI), align=4)
        return context.get_dummy_value()

    def group_of_words(typing: Any, key: Any, counter: Any, nonce0: Any, nonce1: Any, target: Any) -> Any:
        return types.void(*[types.intp] * 5), emit

    return intrinsic(group_of_words)


def _multiply_add() -> Any:
    """sums += coefficient·words, over a group. Returns whether a word is above `largest` (0: none)."""

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        words, coefficient, largest, sums = arguments
        factor = _splat(b, coefficient, _VL)
        low, shift = ir.Constant(_VL, [2**32 - 1] * LANES), ir.Constant(_VL, [32] * LANES)
        most = ir.Constant(VI, [0] * LANES32)
        for w in range(16):
            word = b.load(at(b, words, 4 * LANES32 * w, VI), align=4)
            most = b.select(b.icmp_unsigned(">", word, most), word, most)
            pairs = b.bitcast(word, _VL)
            for half, factors in enumerate((b.and_(pairs, low), b.lshr(pairs, shift))):
                place = at(b, sums, 8 * (LANES32 * w + LANES * half), _VL)
                b.store(b.add(b.load(place, align=8), b.mul(factors, factor)), place, align=8)
        over = b.icmp_unsigned(">", most, _splat(b, b.trunc(largest, I32), VI))
        return b.zext(b.bitcast(over, ir.IntType(LANES32)), I64)

    def multiply_add(typing: Any, words: Any, coefficient: Any, largest: Any, sums: Any) -> Any:
        return types.intp(*[types.intp] * 4), emit

    return intrinsic(multiply_add)


def _multiply_add_streams() -> Any:
    """sums += Σ_i coefficients[i]·words[i], over a group of `count` ≥ 1 streams, one after the other in `words`."""

    def emit(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        words, coefficients, count, sums = arguments
        low, shift = ir.Constant(_VL, [2**32 - 1] * LANES), ir.Constant(_VL, [32] * LANES)
        next_words, next_coefficient = ir.Constant(I64, 4 * GROUP), ir.Constant(I64, 8)

        def add(carried: list[Any]) -> list[Any]:
            source, coefficient, *totals = carried
            factor = _splat(b, b.load(at(b, coefficient, 0, I64), align=8), _VL)
            found = []
            for w in range(_WORDS):
                pairs = b.bitcast(b.load(at(b, source, 4 * LANES32 * w, VI), align=4), _VL)
                for half, factors in enumerate((b.and_(pairs, low), b.lshr(pairs, shift))):
                    found.append(b.add(totals[2 * w + half], b.mul(factors, factor)))
            return [b.add(source, next_words), b.add(coefficient, next_coefficient), *found]

        for first in range(0, 16, _WORDS):
            places = [at(b, sums, 8 * (LANES32 * first + LANES * i), _VL) for i in range(2 * _WORDS)]
            source = b.add(words, ir.Constant(I64, 4 * LANES32 * first))
            before = [b.load(place, align=8) for place in places]
            for place, total in zip(places, repeat(b, count, [source, coefficients, *before], add)[2:], strict=True):
                b.store(total, place, align=8)
        return context.get_dummy_value()

    def multiply_add_streams(typing: Any, words: Any, coefficients: Any, count: Any, sums: Any) -> Any:
        return types.void(*[types.intp] * 4), emit

    return intrinsic(multiply_add_streams)


_words, _add, _add_streams = _group_of_words(), _multiply_add(), _multiply_add_streams()


@compiled
def _reduced(sums: int, p: float, inverse: float, radix: float, out: int) -> None:
    """out (GROUP,) float64: the symmetric residues of 64-bit sums; radix = 2^32 mod p, symmetric.

    x = h·2^32 + l: h is reduced first, so that h·radix + l stays below 2^47.
    """
    source, result = numba.carray(pointer(sums), GROUP, np.uint64), numba.carray(pointer(out), GROUP, np.float64)
    half = (p - 1) / 2
    for i in range(GROUP):
        high, low = np.float64(np.uint32(source[i] >> np.uint64(32))), np.float64(np.uint32(source[i]))
        high -= p * np.rint(high * inverse)
        value = high * radix + low
        value -= p * np.rint(value * inverse)
        value = value - p if value > half else value
        result[i] = value + p if value < -half else value


@compiled
def _fold(sums: int, p: float, radix: float) -> None:
    """Sums (GROUP,) of 64 bits to smaller ones, the same modulo p: h·2^32 + l to h·(2^32 mod p) + l < 2^56."""
    total = numba.carray(pointer(sums), GROUP, np.uint64)
    factor = np.uint64(radix + p if radix < 0 else radix)
    for i in range(GROUP):
        total[i] = (total[i] >> np.uint64(32)) * factor + (total[i] & np.uint64(0xFFFFFFFF))


@compiled
def _spread(values: int, skipped: int, places: int, out: int) -> None:
    """The first `places` values of a group, but those skipped, from the order of the sums to that of the stream."""
    source, result = numba.carray(pointer(values), GROUP, np.float64), numba.carray(pointer(out), places, np.float64)
    for lane in range(LANES32):
        first = (lane % 2) * LANES + lane // 2
        for word in range(max(0, skipped - 16 * lane), min(16, places - 16 * lane)):
            result[16 * lane + word] = source[word * LANES32 + first]


@compiled
def uniform_sum(
    first: int, last: int, seeds: int, count: int, nonce0: int, room: int, keys: int, coefficients: int, largest: int,
    p: int, inverses: int, radix: int, out: int, found: int, again: int,
) -> None:  # fmt: skip
    """out (M,count): Σ_s coefficients[m,s]·word modulo p_m, without the words above their channel's `largest`.

    Units are groups of channels, first ≤ u < last of M·groups. keys (S,8) int32; coefficients (M,S) int64 in [0, p);
    largest (M,) int64. found (units,) int64: how many words were left out; again (units,room) int64: of the first of
    them, seed·count + place.
    """
    groups = (count + GROUP - 1) // GROUP
    table = np.empty(5 * GROUP + 16, np.int32)  # words, sums, and the sums reduced
    words = (table.ctypes.data + 63) // 64 * 64
    sums, values = words + 4 * GROUP, words + 12 * GROUP
    total, drawn = numba.carray(pointer(sums), GROUP, np.uint64), numba.carray(pointer(words), GROUP, np.uint32)
    for unit in range(first, last):
        m, group = unit // groups, unit % groups
        modulus, inverse, base = read(p + 8 * m), read(inverses + 8 * m), read(radix + 8 * m)
        low = group * GROUP
        places = min(GROUP, count - low)
        factors = numba.carray(pointer(coefficients + 8 * m * seeds), seeds, np.int64)
        limit = numba.carray(pointer(largest + 8 * m), 1, np.int64)[0]
        left_out = numba.carray(pointer(again + 8 * unit * room), room, np.int64)
        over = 0
        total[:] = 0
        for s in range(seeds):
            _words(keys + 32 * s, low // 16, nonce0, m, words)
            if _add(words, factors[s], limit, sums) != 0:
                for lane in range(LANES32):
                    for word in range(16):
                        value = drawn[word * LANES32 + lane]
                        place = 16 * lane + word
                        if value > np.uint32(limit) and place < places:
                            at_sum = word * LANES32 + (lane % 2) * LANES + lane // 2
                            total[at_sum] -= np.uint64(factors[s]) * np.uint64(value)
                            if over < room:
                                left_out[over] = s * count + low + place
                            over += 1
            if s % _TERMS == _TERMS - 1:
                for i in range(GROUP):
                    total[i] %= np.uint64(modulus)
        numba.carray(pointer(found + 8 * unit), 1, np.int64)[0] = over
        _reduced(sums, modulus, inverse, base, values)
        _spread(values, 0, places, out + 8 * (m * count + low))
    table[0] = 0  # Numba frees an array after its last use: this is it


@compiled
def bounded(
    first: int, last: int, channels: int, seeds: int, count: int, limbs: int, top: int, nonce0: int, keys: int,
    powers: int, p: int, inverses: int, radix: int, out: int,
) -> None:  # fmt: skip
    """out (M,S,count): the residues of Σ_i w_i·2^(32 i), the last of the `limbs` words cut by the mask `top`.

    Units are groups of seeds, first ≤ u < last of S·groups. powers (M,limbs) int64: 2^(32 i) modulo p_m.
    """
    groups = (count + GROUP - 1) // GROUP
    table = np.empty((limbs + 4) * GROUP + 16, np.int32)  # sums, the sums reduced, and words
    sums = (table.ctypes.data + 63) // 64 * 64
    values, words = sums + 8 * GROUP, sums + 16 * GROUP
    total = numba.carray(pointer(sums), GROUP, np.uint64)
    last_words = numba.carray(pointer(words + 4 * GROUP * (limbs - 1)), GROUP, np.uint32)
    for unit in range(first, last):
        s, low = unit // groups, unit % groups * GROUP
        places = min(GROUP, count - low)
        for limb in range(limbs):
            _words(keys + 32 * s, low // 16, nonce0, limb, words + 4 * GROUP * limb)
        for i in range(GROUP):
            last_words[i] &= np.uint32(top)
        for m in range(channels):
            factors = numba.carray(pointer(powers + 8 * m * limbs), limbs, np.int64)
            total[:] = 0
            for limb in range(limbs):
                _add(words + 4 * GROUP * limb, factors[limb], 0, sums)
            _reduced(sums, read(p + 8 * m), read(inverses + 8 * m), read(radix + 8 * m), values)
            _spread(values, 0, places, out + 8 * ((m * seeds + s) * count + low))
    table[0] = 0


@compiled
def bounded_sum(
    first: int, last: int, channels: int, seeds: int, count: int, start: int, limbs: int, top: int, nonce0: int,
    keys: int, factors: int, p: int, inverses: int, radix: int, out: int,
) -> None:  # fmt: skip
    """out (M,count): Σ_s Σ_i factors[m,s,i]·w_{s,i} modulo p_m, from word `start` of the streams on.

    Units are groups, first ≤ u < last; the first group begins with the block of word `start`. w_{s,i} is the word of
    limb i of seed s, cut by the mask `top` in the last limb. factors (M,S,limbs) int64 in [0, p).
    Each word is made once, for all channels.
    """
    streams, skip = seeds * limbs, start % 16
    table = np.empty((_STREAMS + 2 + 2 * channels) * GROUP + 16, np.int32)  # words, the sums reduced, sums
    words = (table.ctypes.data + 63) // 64 * 64
    values = words + 4 * GROUP * _STREAMS
    sums = values + 8 * GROUP
    total = numba.carray(pointer(sums), (channels, GROUP), np.uint64)
    drawn = numba.carray(pointer(words), (_STREAMS, GROUP), np.uint32)
    for unit in range(first, last):
        low = unit * GROUP - skip  # the place of the group's first word in `out`
        places, skipped = min(GROUP, count - low), max(0, -low)
        total[:] = 0
        terms = 0
        for begin in range(0, streams, _STREAMS):
            held = min(_STREAMS, streams - begin)
            for i in range(held):
                s, limb = (begin + i) // limbs, (begin + i) % limbs
                _words(keys + 32 * s, start // 16 + unit * LANES32, nonce0, limb, words + 4 * GROUP * i)
                if limb == limbs - 1:
                    for j in range(GROUP):
                        drawn[i, j] &= np.uint32(top)
            terms += held
            if terms > _TERMS:
                for m in range(channels):
                    _fold(sums + 8 * GROUP * m, read(p + 8 * m), read(radix + 8 * m))
                terms = held
            for m in range(channels):
                _add_streams(words, factors + 8 * (m * streams + begin), held, sums + 8 * GROUP * m)
        for m in range(channels):
            _reduced(sums + 8 * GROUP * m, read(p + 8 * m), read(inverses + 8 * m), read(radix + 8 * m), values)
            _spread(values, skipped, places, out + 8 * (m * count + low))
    table[0] = 0
